"""Data for training: batches, readers of files, and vocabularies.

sentences = dy.data.read_conllu("train.conllu", required=["UPOS"])
words = dy.data.Vocabulary((form for sentence in sentences for form in sentence.form), min_count=2)
data = dy.data.batches(sentences, 32, shuffle=True, seed=1)
"""

from dynet_cy.data import metrics  # noqa: F401 - an attribute
from dynet_cy.data.batching import Batches, batches, hold_out, map_batches
from dynet_cy.data.conllu import CONLLU_COLUMNS, ConlluSentence, read_conllu
from dynet_cy.data.digits import read_digits, read_idx
from dynet_cy.data.entities import read_entities
from dynet_cy.data.environments import discounted_returns, make_environment, mean_return
from dynet_cy.data.files import Lines, installed, lines, read_text
from dynet_cy.data.inflections import english_inflections, read_inflections
from dynet_cy.data.text import read_labelled, read_parallel, read_tsv
from dynet_cy.data.toy_trees import toy_constituents, toy_sentiment
from dynet_cy.data.transitions import ArcHybrid, ArcHybridOracle
from dynet_cy.data.trees import Tree, parse_tree, read_trees
from dynet_cy.data.vocabulary import Vocabulary
from dynet_cy.files.places import name_all
from dynet_cy.nn.vectors import WordVectors, read_vectors

__all__ = ["CONLLU_COLUMNS", "ArcHybrid", "ArcHybridOracle", "Batches", "ConlluSentence", "Lines", "Tree", "Vocabulary"]
__all__ += ["WordVectors", "batches", "discounted_returns", "english_inflections", "hold_out", "installed", "lines"]
__all__ += [
    "make_environment",
    "map_batches",
    "mean_return",
    "parse_tree",
    "read_conllu",
    "read_digits",
    "read_entities",
]
__all__ += ["read_idx", "read_inflections", "read_labelled", "read_parallel", "read_text", "read_trees", "read_tsv"]
__all__ += ["read_vectors", "toy_constituents", "toy_sentiment"]

name_all(__name__)
