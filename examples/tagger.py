"""A part-of-speech tagger: a BiLSTM over words, with a BiLSTM over letters for words it has rarely seen.

    python tagger.py                                           # train on a Turkish treebank, then tag a sentence
    python tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    echo "The dog barks ." | python tagger.py tag              # tag text: one sentence per line, split into words
    python tagger.py tag text --onnx tagger.onnx               # write the network as an ONNX file, too

The network is written for one sentence, word by word and letter by letter, as on a whiteboard, without padding and
masks: the engine finds by itself what it can compute together in a minibatch.
"""

from __future__ import annotations

import argparse
import random
from functools import partial

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import CONLLU_COLUMNS, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags

SIZES = {
    "word_dim": 100,
    "letter_dim": 32,
    "letter_hidden": 50,  # units in each direction
    "hidden": 128,  # units in each direction
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}


class Tagger:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words, self.frequent = Vocabulary(spec["words"]), Vocabulary(spec["frequent"])
        self.letters, self.tags = Vocabulary(spec["letters"]), Vocabulary(spec["tags"], unknown=None)
        self.training, self.rng = False, random.Random(spec["seed"])
        self.pc = pc = dy.ParameterCollection()
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.frequent_vectors = pc.add_lookup_parameters((len(self.frequent), 2 * spec["letter_hidden"]))
        self.letter_vectors = pc.add_lookup_parameters((len(self.letters), spec["letter_dim"]))
        self.speller = dy.BiRNNBuilder(1, spec["letter_dim"], 2 * spec["letter_hidden"], pc, dy.LSTMBuilder)
        inputs = spec["word_dim"] + 2 * spec["letter_hidden"]
        self.reader = dy.BiRNNBuilder(1, inputs, 2 * spec["hidden"], pc, dy.LSTMBuilder)
        self.W = pc.add_parameters((len(self.tags), 2 * spec["hidden"]))
        self.b = pc.add_parameters(len(self.tags), init=0)

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one of the word in lower case, one of its form, whose letters are read if it is rare."""
        word = form.lower()
        hidden = self.training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
        word_vector = self.word_vectors[0 if hidden else self.words[word]]
        if form in self.frequent and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent[form]]])
        if form not in spellings:
            spellings[form] = self.spell(self.letters.encode(list(form)))
        return dy.concatenate([word_vector, spellings[form]])

    def spell(self, letters: list[int]) -> dy.Expression:
        """Return the vector of a form by its letters."""
        states = self.speller.add_inputs([self.letter_vectors[letter] for letter in letters])
        return dy.concatenate([states[-1][0].output(), states[0][1].output()])  # the last of each

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word; `spellings` are those of the minibatch so far."""
        return self.read([self.drop(self.embed(form, spellings)) for form in words])

    def read(self, vectors: list[dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word of a sentence by its vectors."""
        return [dy.affine_transform([self.b, self.W, self.drop(state)]) for state in self.reader.transduce(vectors)]

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        spellings, losses = {}, []
        for words, tags in sentences:
            pairs = zip(self.scores(words, spellings), self.tags.encode(tags))
            losses += [dy.pickneglogsoftmax(scores, tag) for scores, tag in pairs]
        return dy.esum(losses) / len(losses)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best tag of each word."""
        dy.renew_cg(forward_only=True)
        return dy.batched_map(partial(self.tag_one, spellings={}), sentences)

    def tag_one(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[str]:
        """Return the best tag of each word of a sentence, in the current graph."""
        scores = dy.npvalues(self.scores(words, spellings))  # all at once, so that they can be batched
        return self.tags.decode(values.argmax() for values in scores)

    def export(self, path: str) -> None:
        """Write the network as an ONNX file.  What its inputs are for some sentences, `arrays` says."""

        def scores(words, forms, rare, spelled) -> list[dy.Expression]:
            vectors = []
            for i, (word, form, spelling) in enumerate(zip(words, forms, spelled)):
                is_rare = dy.pick(rare, i)  # 0 or 1, as the file has no branches
                form_vector = spelling * is_rare + self.frequent_vectors[form] * (1 - is_rare)
                vectors.append(dy.concatenate([self.word_vectors[word], form_vector]))
            return self.read(vectors)

        onnx, letters = dy.onnx, {"letters": dy.onnx.Indices("letter", len(self.letters))}
        inputs = {
            "words": onnx.Indices("word", len(self.words)),
            "forms": onnx.Indices("word", len(self.frequent)),
            "rare": onnx.Floats("word"),
            "spelled": onnx.Each(self.spell, letters, "word", lengths={"letter": "word_lengths"}),
        }
        onnx.export(scores, inputs, path, lengths={"word": "lengths"})

    def arrays(self, sentences: list[list[str]]) -> dict[str, np.ndarray]:
        """Return the inputs of the ONNX file: all sentences are as long as the longest, all words too."""
        n, m = max(map(len, sentences)), max(len(form) for forms in sentences for form in forms)
        kinds = {"words": int, "forms": int, "rare": np.float32, "word_lengths": int}
        found = {name: np.ones((len(sentences), n), kind) for name, kind in kinds.items()}
        found["letters"] = np.zeros((len(sentences), n, m), int)
        found["lengths"] = np.array([len(forms) for forms in sentences])
        for i, forms in enumerate(sentences):
            found["words"][i, : len(forms)] = self.words.encode(map(str.lower, forms))
            found["forms"][i, : len(forms)] = self.frequent.encode(forms)
            found["rare"][i, : len(forms)] = [form not in self.frequent for form in forms]
            found["word_lengths"][i, : len(forms)] = [len(form) for form in forms]
            for j, form in enumerate(forms):
                found["letters"][i, j, : len(form)] = self.letters.encode(list(form))
        return found


def train(tagger: Tagger, sentences: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(tagger.pc)
    data = dy.data.batches(sentences, args.batch, shuffle=True, seed=args.seed)
    options = {"extra": tagger.spec, "unit": "words", "total": sum(len(words) for words, _ in sentences)}
    training = commandline.training(args, tagger.pc, data, **options)
    for epoch in training:
        tagger.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = tagger.loss(batch)
            epoch.add(loss.value(), sum(len(words) for words, _ in batch))
            loss.backward()
            trainer.update()
        tagger.training = False
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
            "frequent": Vocabulary(forms, min_count=args.frequent).counts,
            "letters": Vocabulary((letter for form in forms for letter in form), min_count=5).counts,
            "tags": sorted({tag for _, tags in sentences for tag in tags}),
            "seed": args.seed,
            **args.sizes,
        }
        print(f"{len(sentences)} training and {len(dev)} dev sentences, {len(spec['words'])} words, ", end="")
        print(f"{len(spec['letters'])} letters and {len(spec['tags'])} tags in the vocabulary")
        train(Tagger(spec), sentences, dev, args)
    tagger = dy.load_network(args.model, Tagger)
    if args.onnx:
        tagger.export(args.onnx)
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
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--column", choices=CONLLU_COLUMNS[3:], default="UPOS", help="what to predict")
    add("--onnx", metavar="FILE", help="write the network as an ONNX file, too")
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    parser.run(main)
