"""Pretrained models of texts and of images, from folders in Hugging Face's layout. docs/pretrained.md explains them.

An architecture is a class derived from `Encoder`, `Decoder` or `EncoderDecoder`: its settings and a table of names.

- `model_types`: the values of `model_type` in `config.json` that mean this class, and its names in `transformers`;
- `keys`: the name of each setting of `Settings` in `config.json`, with a default: `KEYS` with the entries that differ;
- `names`: the name of each module with parameters, by its path of attributes here; see `dynet_cy.pretrained.names`.

Where that is not enough, the class overrides a method: `_make_embeddings`, `_make_projection`, `_make_layers`,
`_make_block`, `_stack`, `_context` (further arguments of all blocks, such as a bias of the scores), `_finished`. The
module `dynet_cy.pretrained.bert` has architectures of both kinds. Blocks of decoders have `step`, too. Then the class
goes into `_CLASSES` in `dynet_cy.pretrained.loading`, small random models of it into the table of
`tests/pretrained/architectures.py`, and a row into that of docs/pretrained.md.

A model of images is a class derived from `VisionModel`, with the same tables, and its tests are in
`tests/pretrained/test_vision.py`.
"""

from dynet_cy.pretrained.bart import Bart, Marian
from dynet_cy.pretrained.bert import Albert, Bert, DistilBert, Electra, MPNet, Roberta
from dynet_cy.pretrained.deberta import Deberta
from dynet_cy.pretrained.decoder import Decoder
from dynet_cy.pretrained.encoder import Encoder
from dynet_cy.pretrained.encoder_decoder import EncoderDecoder
from dynet_cy.pretrained.generation import Sampling
from dynet_cy.pretrained.gpt import GPT2
from dynet_cy.pretrained.llama import Llama, Qwen2, Qwen3, SmolLM3
from dynet_cy.pretrained.loading import load
from dynet_cy.pretrained.lora import Adapters, LoRA, load_lora, lora
from dynet_cy.pretrained.modernbert import ModernBert
from dynet_cy.pretrained.resnet import ResNet
from dynet_cy.pretrained.t5 import T5
from dynet_cy.pretrained.text import Code
from dynet_cy.pretrained.vision import VisionModel
from dynet_cy.pretrained.vit import ViT

__all__ = [
    "GPT2",
    "T5",
    "Adapters",
    "Albert",
    "Bart",
    "Bert",
    "Code",
    "Deberta",
    "Decoder",
    "DistilBert",
    "Electra",
    "Encoder",
    "EncoderDecoder",
    "Llama",
    "LoRA",
    "MPNet",
    "Marian",
    "ModernBert",
    "Qwen2",
    "Qwen3",
    "ResNet",
    "Roberta",
    "Sampling",
    "SmolLM3",
    "ViT",
    "VisionModel",
    "load",
    "load_lora",
    "lora",
]
