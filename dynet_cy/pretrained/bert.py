"""BERT, and encoders with other settings and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.nn import Layer, Linear, RelativeBias
from dynet_cy.pretrained.encoder import Encoder
from dynet_cy.pretrained.heads import TOKEN, HeadPlan
from dynet_cy.pretrained.names import projections
from dynet_cy.pretrained.settings import KEYS

EMBEDDINGS = {
    "embeddings.pieces": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.types": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
FEED_FORWARD = {
    "layers.*.inner": "encoder.layer.*.intermediate.dense",
    "layers.*.outer": "encoder.layer.*.output.dense",
    "layers.*.output_norm": "encoder.layer.*.output.LayerNorm",
}
_GROUPS = "encoder.albert_layer_groups.*.albert_layers.*"
_TWO_LAYERS = {"head.dense": "classifier.dense", "head.output": "classifier.out_proj"}
_MASKED = {"head": "lm_head", "head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm"}
_ROBERTA = {"masked": HeadPlan(_MASKED, "gelu"), "sequence": HeadPlan(_TWO_LAYERS, "tanh", True), "token": TOKEN}


class Bert(Encoder):
    """BERT (Devlin et al., "BERT: Pre-training of deep bidirectional Transformers for language understanding", NAACL
    2019). See `Encoder` for arguments and methods.
    """

    model_types = {"bert": "BertModel"}
    names = {
        **EMBEDDINGS,
        **projections("encoder.layer.*.attention", "self.query", "self.key", "self.value", "output.dense"),
        "layers.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
        **FEED_FORWARD,
        "pooler": "pooler.dense",
    }
    prefix = "bert."
    heads = {
        "masked": HeadPlan(
            {
                "head": "cls.predictions",
                "head.dense": "cls.predictions.transform.dense",
                "head.norm": "cls.predictions.transform.LayerNorm",
            }
        ),
        "sequence": TOKEN,  # of the vector that `pooler` makes
        "token": TOKEN,
    }


class Roberta(Bert):
    """RoBERTa (Liu et al., 2019), and those with its architecture: CamemBERT (Martin et al., ACL 2020), XLM-RoBERTa
    (Conneau et al., ACL 2020), PhoBERT (Nguyen and Nguyen, Findings of EMNLP 2020). See `Encoder` for arguments and
    methods.
    """

    model_types = {"roberta": "RobertaModel", "camembert": "CamembertModel", "xlm-roberta": "XLMRobertaModel"}
    keys = {**KEYS, "padding": ("pad_token_id", 1)}
    prefix = "roberta."
    heads = _ROBERTA

    def _first_position(self) -> int:
        return self.settings.padding + 1


class Electra(Bert):
    """ELECTRA (Clark et al., ICLR 2020). See `Encoder` for arguments and methods."""

    model_types = {"electra": "ElectraModel"}
    keys = {**KEYS, "embedding_dim": ("embedding_size", 128)}
    names = {**Bert.names, "projection": "embeddings_project"}
    prefix = "electra."
    heads = {
        "masked": HeadPlan(
            {
                "head": "generator_lm_head",
                "head.dense": "generator_predictions.dense",
                "head.norm": "generator_predictions.LayerNorm",
            },
            "gelu",
        ),
        "sequence": HeadPlan(_TWO_LAYERS, "gelu", True),
        "token": TOKEN,
    }


class DistilBert(Encoder):
    """DistilBERT (Sanh et al., 2019). See `Encoder` for arguments and methods."""

    model_types = {"distilbert": "DistilBertModel"}
    keys = {
        **KEYS,
        "dim": ("dim", None),
        "layers": ("n_layers", None),
        "heads": ("n_heads", None),
        "hidden_dim": ("hidden_dim", None),
        "types": ("", 0),
        "activation": ("activation", "gelu"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
    }
    names = {
        **EMBEDDINGS,
        **projections("transformer.layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        "layers.*.attention_norm": "transformer.layer.*.sa_layer_norm",
        "layers.*.inner": "transformer.layer.*.ffn.lin1",
        "layers.*.outer": "transformer.layer.*.ffn.lin2",
        "layers.*.output_norm": "transformer.layer.*.output_layer_norm",
    }
    prefix = "distilbert."
    heads = {
        "masked": HeadPlan(
            {"head": "vocab_projector", "head.dense": "vocab_transform", "head.norm": "vocab_layer_norm"}
        ),
        "sequence": HeadPlan({"head.dense": "pre_classifier", "head.output": "classifier"}, "relu"),
        "token": TOKEN,
    }

    def _head_dropout(self, kind: str) -> float:
        return self.config.rate("seq_classif_dropout", 0.2) if kind == "sequence" else self.settings.dropout


class Albert(Encoder):
    """ALBERT (Lan et al., ICLR 2020), whose blocks share parameters. See `Encoder` for arguments and methods."""

    model_types = {"albert": "AlbertModel"}
    keys = {
        **KEYS,
        "embedding_dim": ("embedding_size", 128),
        "activation": ("hidden_act", "gelu_new"),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    }
    names = {
        **EMBEDDINGS,
        "projection": "encoder.embedding_hidden_mapping_in",
        **projections(f"{_GROUPS}.attention", "query", "key", "value", "dense", here="layers.*.*.attention"),
        **{
            f"layers.*.*.{path}": f"{_GROUPS}.{name}"
            for path, name in {
                "attention_norm": "attention.LayerNorm",
                "inner": "ffn",
                "outer": "ffn_output",
                "output_norm": "full_layer_layer_norm",
            }.items()
        },
        "pooler": "pooler",
    }
    prefix = "albert."
    heads = {
        "masked": HeadPlan(
            {"head": "predictions", "head.dense": "predictions.dense", "head.norm": "predictions.LayerNorm"}
        ),
        "sequence": TOKEN,
        "token": TOKEN,
    }

    def _head_dropout(self, kind: str) -> float:
        return self.config.rate("classifier_dropout_prob", 0.1)

    def _make_projection(self) -> Layer:
        return Linear(self.settings.embedding_dim, self.settings.dim, self.collection)

    def _make_layers(self) -> list[Any]:
        groups = self.config.size("num_hidden_groups", 1)
        inner = self.config.size("inner_group_num", 1)
        self.config.check_room("num_hidden_layers", self.settings.layers, self.settings.dim)
        self.config.check_room("num_hidden_groups", groups, inner, self.settings.dim, self.settings.dim)
        return [[self._make_block(i) for i in range(inner)] for _ in range(groups)]

    def _stack(self) -> Sequence[Any]:
        count = self.settings.layers
        return [block for i in range(count) for block in self.layers[i * len(self.layers) // count]]


class MPNet(Encoder):
    """MPNet (Song et al., NeurIPS 2020), whose scores get a learnt bias for each distance. See `Encoder` for arguments
    and methods.
    """

    model_types = {"mpnet": "MPNetModel"}
    keys = {**KEYS, "types": ("", 0), "padding": ("pad_token_id", 1)}
    names = {
        **EMBEDDINGS,
        "distances": "encoder.relative_attention_bias",
        **projections("encoder.layer.*.attention.attn", "q", "k", "v", "o"),
        "layers.*.attention_norm": "encoder.layer.*.attention.LayerNorm",
        **FEED_FORWARD,
        "pooler": "pooler.dense",
    }
    prefix = "mpnet."
    heads = _ROBERTA

    def _first_position(self) -> int:
        return 2  # whatever the piece is that fills short texts

    def _make_layers(self) -> list[Any]:
        self.config.only("relative_attention_num_buckets", 32)
        self.distances = RelativeBias(self.settings.heads, self.collection, 32)
        return super()._make_layers()

    def _context(self, columns: int) -> tuple[Expression, ...]:
        return (self.distances(columns),)

    def _further_tables(self) -> list[Layer]:
        return [self.distances]
