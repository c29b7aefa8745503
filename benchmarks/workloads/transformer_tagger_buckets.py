"""`transformer_tagger`, in batches of sentences of similar length, which is best for padding."""

from __future__ import annotations

from workloads.transformer_tagger import TransformerTagger


class BucketedTagger(TransformerTagger):
    title = "Transformer tagger, batches by length"
    torch_forms = ("batched", "encoder")

    def arranged(self, sentences: list[list[int]]) -> list[list[int]]:
        return sorted(sentences, key=len)


WORKLOAD = BucketedTagger
