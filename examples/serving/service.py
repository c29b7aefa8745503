"""A web service that tags sentences, with a tagger that it trains itself.

    python service.py train                                    # on a Turkish treebank, or --train en-train.conllu.gz
    python service.py                                          # serve the trained model
    curl -d 'Bu iyi .' http://127.0.0.1:8000/analyse
    curl http://127.0.0.1:8000/statistics
    curl http://127.0.0.1:8000/metrics                         # the same for Prometheus
    curl -X POST http://127.0.0.1:8000/reload                  # after it was trained again

`Tagger.tag` tags a sentence word by word, and each chosen tag helps to choose the next.  The server runs many sentences
side by side: a new request joins the running ones at their next step.
`pip install '.[serve]'` in the clone installs starlette and uvicorn; `client.py` puts load on the service.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import Vocabulary, read_conllu
from dynet_cy.serving import web

LONGEST = 200  # words in a sentence
Sentence = tuple[list[str], list[str]]  # its words, and their tags

SIZES = {
    "word_dim": 100,
    "tag_dim": 16,
    "hidden": 128,  # units in each direction
}


def serve(args: argparse.Namespace) -> None:
    tag = dy.load_network(args.model, Tagger).tag
    with dy.Server(tag, queue=args.queue, width=args.width, deadline=args.deadline) as server:

        async def analyse(text: str) -> dict:
            words = split(text)
            return {"words": words, "tags": await server.call_async(words, wait=False)}

        def reload() -> None:
            server.reload(dy.load_network(args.model, Tagger).tag)

        app = web.application("analyse", analyse, server.statistics, reload)
        # The application limits requests, uvicorn the connections, such as those whose headers never end.
        uvicorn.run(app, host=args.host, port=args.port, log_level="warning", limit_concurrency=args.connections)


def split(text: str) -> list[str]:
    words = text.split()
    if not 0 < len(words) <= LONGEST:
        raise web.BadRequest(f"expected 1 to {LONGEST} words, not {len(words)}")
    return words


class Tagger:
    """A BiLSTM reads the words; the tag of each is chosen by its state and the tag before it."""

    def __init__(self, spec: dict) -> None:
        """`spec` holds everything needed to build the network again, except the weights."""
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.tags = Vocabulary(spec["tags"], unknown=None)
        self.pc = pc = dy.ParameterCollection()
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags) + 1, spec["tag_dim"]))  # the last: no tag yet
        self.reader = dy.BiRNNBuilder(1, spec["word_dim"], 2 * spec["hidden"], pc, dy.LSTMBuilder)
        self.W = pc.add_parameters((len(self.tags), 2 * spec["hidden"]))
        self.U = pc.add_parameters((len(self.tags), spec["tag_dim"]))
        self.b = pc.add_parameters(len(self.tags), init=0)

    def read(self, words: list[str]) -> list[dy.Expression]:
        return self.reader.transduce([self.word_vectors[self.words[word.lower()]] for word in words])

    def scores(self, state: dy.Expression, previous: int) -> dy.Expression:
        return dy.affine_transform([self.b, self.W, state, self.U, self.tag_vectors[previous]])

    def tag(self, words: list[str]) -> list[str]:
        """Return the tags of a sentence; the server calls this."""
        found = [len(self.tags)]
        for state in self.read(words):
            found.append(int(self.scores(state, found[-1]).npvalue().argmax()))  # what comes next depends on this value
        return self.tags.decode(found[1:])

    def loss(self, words: list[str], tags: list[str]) -> dy.Expression:
        """Return the summed loss of a sentence, with the right tag before each word."""
        right = self.tags.encode(tags)
        steps = zip(self.read(words), [len(self.tags), *right], right)
        return dy.esum([dy.pickneglogsoftmax(self.scores(state, previous), tag) for state, previous, tag in steps])


def train(args: argparse.Namespace) -> None:
    sentences, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
    words = Vocabulary((word.lower() for words, _ in sentences for word in words), min_count=2)
    tags = sorted({tag for _, tags in sentences for tag in tags})
    tagger = Tagger({"words": words.counts, "tags": tags, **args.sizes})
    trainer = dy.AdamTrainer(tagger.pc, args.learning_rate)
    data = dy.data.batches(sentences, args.batch, shuffle=True, seed=args.seed)
    for epoch in commandline.training(args, tagger.pc, data, extra=tagger.spec, unit="words"):
        for batch in epoch:
            words = sum(len(words) for words, _ in batch)
            dy.renew_cg()
            loss = dy.esum([tagger.loss(*sentence) for sentence in batch]) / words
            epoch.add(loss.value(), words)
            loss.backward()
            trainer.update()
        dy.renew_cg(forward_only=True)
        found = dy.batched_map(tagger.tag, [words for words, _ in dev])
        epoch.report(accuracy=dy.metrics.accuracy(found, [tags for _, tags in dev]))


def read(path: Path) -> list[Sentence]:
    """Read words and tags (UPOS) of a treebank in CoNLL-U, plain or gzipped."""
    return [(sentence.form, sentence.upos) for sentence in read_conllu(path, required=["UPOS"])]


def main(args: argparse.Namespace) -> None:
    (train if args.command == "train" else serve)(args)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Tag sentences over HTTP, or train the tagger.",
        data="train: CoNLL-U; else a treebank from turkish-treebanks",
        epochs=5,
        batch=16,  # sentences
        learning_rate=0.002,
        sizes=SIZES,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["serve", "train"], default="serve")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--deadline", type=float, default=10.0, help="seconds within which a request must be answered")
    add("--queue", type=int, default=1024, help="requests that may wait; further ones are refused")
    add("--width", type=int, default=256, help="requests that run at once")
    add("--connections", type=int, default=4096, help="open connections; further ones are refused")
    parser.run(main)
