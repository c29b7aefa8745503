"""Data for training: batches, readers of files, and vocabularies.

sentences = dy.data.read_conllu("train.conllu", required=["UPOS"])
words = dy.data.Vocabulary((form for sentence in sentences for form in sentence.form), min_count=2)
data = dy.data.batches(sentences, 32, shuffle=True, seed=1)
"""

from dynet_cy.data.batching import Batches, batches
from dynet_cy.data.conllu import CONLLU_COLUMNS, ConlluSentence, read_conllu
from dynet_cy.data.files import Lines, lines
from dynet_cy.data.text import read_labelled, read_parallel, read_tsv
from dynet_cy.data.vocabulary import Vocabulary
from dynet_cy.nn.vectors import WordVectors, read_vectors

__all__ = ["CONLLU_COLUMNS", "Batches", "ConlluSentence", "Lines", "Vocabulary", "WordVectors", "batches", "lines"]
__all__ += ["read_conllu", "read_labelled", "read_parallel", "read_tsv", "read_vectors"]
