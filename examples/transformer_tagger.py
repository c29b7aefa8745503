"""A part-of-speech tagger: a Transformer over words, with a convolution over the letters of each.

    python transformer_tagger.py                               # train on a Turkish treebank, then tag a sentence
    python transformer_tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    echo "The dog barks ." | python transformer_tagger.py tag  # tag text: one sentence per line, split into words

The network is made of layers (dy.nn) and written for one sentence, a matrix with a column for each word.  There is no
padding and no mask: the engine computes the layers of all sentences of a minibatch together, whatever their lengths.
"""

from __future__ import annotations

import argparse
import random

import dynet_cy as dy
from dynet_cy import commandline, nn
from dynet_cy.data import CONLLU_COLUMNS, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags

SIZES = {
    "layers": 2,
    "dim": 128,  # length of the vector of a word
    "heads": 4,
    "hidden": 512,  # units in the linear layers after attention
    "letter_dim": 32,
    "dropout": 0.2,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}


class Tagger(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict) -> None:
        super().__init__(dy.ParameterCollection(), (sizes,))
        self.sizes = sizes
        self.words = Vocabulary(sizes["words"])
        self.letters = Vocabulary(sizes["letters"])
        self.tags = Vocabulary(sizes["tags"], unknown=None)
        self.rng = random.Random(sizes["seed"])

        pc, dim, letter_dim = self.collection, sizes["dim"], sizes["letter_dim"]
        # Vectors of words begin small, so that at first the letters count more: most words are rare.
        self.word_vectors = nn.Embedding(len(self.words), dim, pc, init=dy.GlorotInitializer())
        self.letter_vectors = nn.Embedding(len(self.letters), letter_dim, pc, init=dy.GlorotInitializer())
        self.spell = nn.Sequential([(nn.Conv1d, letter_dim, dim, 3, 1, "same"), "tanh"], pc)
        self.positions = nn.SinusoidalPositions(dim)
        self.dropout = nn.Dropout(sizes["dropout"])
        shape = sizes["layers"], dim, sizes["heads"], sizes["hidden"]
        self.encoder = nn.TransformerEncoder(*shape, pc, sizes["dropout"], norm_first=True)
        self.out = nn.Linear(dim, len(self.tags), pc)

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Add two vectors: one looked up for the word in lower case, and one made of the letters of its form."""
        word = form.lower()
        hidden = self.training and self.words.word_dropout(word, self.sizes["word_dropout"], self.rng)
        if form not in spellings:
            # A column for each letter, which depends on its neighbours; then the maximum of each row.
            letters = self.spell(self.letter_vectors([self.letters[letter] for letter in form]))
            spellings[form] = dy.max_dim(letters, 1) if len(form) > 1 else letters
        return self.word_vectors(0 if hidden else self.words[word]) + spellings[form]

    def __call__(self, words: list[str], spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Return the scores of all tags, a column for each word; `spellings` are those of the minibatch so far."""
        x = dy.concatenate_cols([self.embed(form, spellings) for form in words])
        return self.out(self.encoder(self.dropout(self.positions(x))))

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        spellings, losses = {}, []
        for words, tags in sentences:
            # The columns of a sentence as a batch: one loss for each.
            scores = dy.reshape(self(words, spellings), (len(self.tags),), len(words))
            losses.append(dy.sum_batches(dy.pickneglogsoftmax_batch(scores, self.tags.encode(tags))))
        return dy.esum(losses) / sum(len(words) for words, _ in sentences)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best tag of each word."""
        dy.renew_cg(forward_only=True)
        spellings = {}
        scores = [self(words, spellings) for words in sentences if words]
        if scores:
            dy.forward(scores)  # all at once, so that it can be batched
        found = (s.npvalue().reshape(len(self.tags), -1).argmax(0) for s in scores)
        return [self.tags.decode(next(found)) if words else [] for words in sentences]


def train(tagger: Tagger, sentences: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(tagger.collection, args.learning_rate)
    trainer.set_clip_threshold(1.0)
    data = dy.data.batches(sentences, args.batch, shuffle=True, seed=args.seed)
    updates, rising = args.epochs * len(data), max(1, round(args.warmup * args.epochs * len(data)))
    trainer.schedule = dy.WarmupSchedule(rising, then=dy.LinearSchedule(updates - rising))
    for epoch in commandline.training(args, tagger.collection, data, extra=tagger.sizes, unit="words"):
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
        sentences, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
        forms = [form for words, _ in sentences for form in words]
        spec = {
            "words": Vocabulary((form.lower() for form in forms), min_count=2).counts,
            "letters": Vocabulary((letter for form in forms for letter in form), min_count=5).counts,
            "tags": sorted({tag for _, tags in sentences for tag in tags}),
            "seed": args.seed,
            **args.sizes,
        }
        print(f"{len(sentences)} training and {len(dev)} dev sentences, {len(spec['words'])} words, ", end="")
        print(f"{len(spec['letters'])} letters and {len(spec['tags'])} tags in the vocabulary")
        train(Tagger(spec), sentences, dev, args)
    tagger = dy.load_network(args.model, Tagger).eval()
    parts = ([line.split() for line in lines] for lines in commandline.input_lines(args.file))
    for texts in [[dev[0][0]]] if args.command == "train" else parts:
        for words, tags in zip(texts, tagger.tag(texts)):
            print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a part-of-speech tagger, or tag text with one.",
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        command="tag",
        file="text, one sentence per line, split into words",
        epochs=10,
        batch=16,
        learning_rate=0.003,  # the greatest
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--column", choices=CONLLU_COLUMNS[3:], default="UPOS", help="what to predict")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    parser.run(main)
