"""Train a part-of-speech tagger with several processes.

    python train_tagger.py                                                    # one process, a Turkish treebank
    python -m dynet_cy.launch -n 2 train_tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python -m dynet_cy.launch -n 2 --mode async train_tagger.py
    mpirun -n 2 python train_tagger.py

Read the function `train`: it contains everything that several processes need.  `--batch` is per process.  With
`--checkpoint FILE` a run that was stopped continues where it was, with any number of processes.  The network is a
BiLSTM over words, with one over letters for rare words, as in the example `tagger.py`, which can tag text with the
model saved here.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import Vocabulary, read_conllu

SIZES = {
    "word_dim": 100,
    "letter_dim": 32,
    "letter_hidden": 50,  # units in each direction
    "hidden": 128,  # units in each direction
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}
Sentence = tuple[list[str], list[str]]  # its words, and their tags


def train(network: Tagger, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train with all processes that were started; rank 0 prints and saves."""
    rank, processes = dy.parallel.rank(), dy.parallel.size()
    trainer = dy.parallel.wrap(dy.AdamTrainer(network.pc))
    # All ranks get equally many sentences: some get one of the first again at the end. In each update they have
    # about the same number of words.
    data = dy.parallel.shard(training, shuffle=True, seed=args.seed, uneven="pad", batch_size=args.batch, cost=size)
    own_dev = dev[rank::processes]  # this process's share of the dev data
    network.rng = random.Random(f"{args.seed} {rank}")  # which words are hidden
    for path in filter(None, (args.model, args.checkpoint)):
        path.parent.mkdir(parents=True, exist_ok=True)

    best = {"score": float("-inf"), "epoch": 0}
    restart = {"data": data, "generators": [network.rng]}
    if args.checkpoint and args.checkpoint.exists():
        best = dy.parallel.load_checkpoint(args.checkpoint, network.pc, trainer, **restart)
        tell(f"resuming from {args.checkpoint}: epoch {data.epoch + 1}, item {data.state()['position']}")

    while data.epoch < args.epochs and data.epoch - best["epoch"] < args.patience:
        epoch = data.epoch + 1
        network.training = True
        summed, units, start = 0.0, 0, time.perf_counter()
        shown = dy.parallel.progress(data, total=len(data), leave=False, disable=None)
        for number, batch in enumerate(shown, start=1):
            state = data.state()
            done = state["epoch"] + state["position"] / state["length"]
            trainer.learning_rate = args.learning_rate * max(1 - done / args.epochs, 0.01)
            dy.renew_cg()
            loss = network.loss(batch)
            value = loss.value()
            loss.backward()
            trainer.update()
            own = sum(map(size, batch))
            summed, units = summed + value * own, units + own
            if args.checkpoint and number % args.every == 0:
                dy.parallel.save_checkpoint(args.checkpoint, network.pc, trainer, **restart, extra=best)
        dy.parallel.barrier()  # until asynchronous processes have finished their updates
        seconds = time.perf_counter() - start
        network.training = False
        loss_mean = dy.parallel.average(summed / max(units, 1), units)
        speed = dy.parallel.average(units / seconds) * processes
        score = dy.parallel.average(network.accuracy(own_dev), sum(map(size, own_dev)))
        tell(f"epoch {epoch}: loss {loss_mean:.4f}, {seconds:.1f} s, {speed:.0f} words/s, dev accuracy {score:.2%}")
        if score > best["score"]:
            best = {"score": score, "epoch": epoch}
            if rank == 0:
                dy.save_safetensors(args.model, network.pc, extra=network.spec)
        if args.checkpoint:  # an epoch may have fewer updates than there are between two checkpoints
            dy.parallel.save_checkpoint(args.checkpoint, network.pc, trainer, **restart, extra=best)
    tell(f"best dev accuracy {best['score']:.2%} after epoch {best['epoch']}, model saved in {args.model}")


def size(sentence: Sentence) -> int:
    return len(sentence[0])


def tell(words: str) -> None:
    if dy.parallel.rank() == 0:
        print(words, flush=True)


class Tagger:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.frequent = Vocabulary(spec["frequent"])
        self.letters = Vocabulary(spec["letters"])
        self.tags = Vocabulary(spec["tags"], unknown=None)
        self.training = False  # whether to apply dropout
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        letter_dim, letter_hidden, hidden = spec["letter_dim"], spec["letter_hidden"], spec["hidden"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.frequent_vectors = pc.add_lookup_parameters((len(self.frequent), 2 * letter_hidden))
        self.letter_vectors = pc.add_lookup_parameters((len(self.letters), letter_dim))
        self.speller = dy.BiRNNBuilder(1, letter_dim, 2 * letter_hidden, pc, dy.LSTMBuilder)
        self.reader = dy.BiRNNBuilder(1, spec["word_dim"] + 2 * letter_hidden, 2 * hidden, pc, dy.LSTMBuilder)
        self.W = pc.add_parameters((len(self.tags), 2 * hidden))
        self.b = pc.add_parameters(len(self.tags), init=0)

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one of the word in lower case, and one of its form, which is spelled if it is rare."""
        word = form.lower()
        hidden = self.training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
        word_vector = self.word_vectors[0 if hidden else self.words[word]]
        if form in self.frequent and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent[form]]])
        if form not in spellings:
            states = self.speller.add_inputs([self.letter_vectors[self.letters[letter]] for letter in form])
            spellings[form] = dy.concatenate([states[-1][0].output(), states[0][1].output()])  # the last of each
        return dy.concatenate([word_vector, spellings[form]])

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word; `spellings` are those of the minibatch so far."""
        states = self.reader.transduce([self.drop(self.embed(form, spellings)) for form in words])
        return [dy.affine_transform([self.b, self.W, self.drop(state)]) for state in states]

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        spellings: dict[str, dy.Expression] = {}
        losses = [
            dy.pickneglogsoftmax(scores, self.tags[tag])
            for words, tags in sentences
            for scores, tag in zip(self.scores(words, spellings), tags)
        ]
        return dy.esum(losses) / len(losses)

    def accuracy(self, sentences: list[Sentence]) -> float:
        """Return the share of words whose tag is right; 0 if there are none."""
        right = 0
        for batch in dy.data.batches(sentences, 64):
            dy.renew_cg(forward_only=True)
            spellings: dict[str, dy.Expression] = {}
            scores = [scores for words, _ in batch for scores in self.scores(words, spellings)]
            dy.forward(scores)  # all at once, so that it can be batched
            tags = [tag for _, tags in batch for tag in tags]
            right += sum(self.tags.words[s.npvalue().argmax()] == tag for s, tag in zip(scores, tags))
        return right / max(sum(map(size, sentences)), 1)


def new_spec(sentences: list[Sentence], args: argparse.Namespace) -> dict:
    """Collect the vocabularies, with how often each thing was seen, and the sizes given on the command line."""
    forms = [form for words, _ in sentences for form in words]
    return {
        "words": Vocabulary((form.lower() for form in forms), min_count=2).counts,
        "frequent": Vocabulary(forms, min_count=args.frequent).counts,
        "letters": Vocabulary((letter for form in forms for letter in form), min_count=5).counts,
        "tags": sorted({tag for _, tags in sentences for tag in tags}),
        "seed": args.seed,
        **args.sizes,
    }


def read(path: Path) -> list[Sentence]:
    return [(sentence.form, sentence.upos) for sentence in read_conllu(path, required=["UPOS"])]


def main(args: argparse.Namespace) -> None:
    sentences, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
    train(Tagger(new_spec(sentences, args)), sentences, dev, args)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a tagger with several processes.",
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        epochs=10,
        patience=3,
        batch=16,  # of each process
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
        curves=False,
    )
    add = parser.add_argument
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    add("--checkpoint", type=Path, metavar="FILE", help="save checkpoints here, and resume if it exists")
    add("--every", type=int, default=100, metavar="N", help="updates between checkpoints, besides one after each epoch")
    parser.set_defaults(model=Path("runs/tagger.safetensors"))  # so that tagger.py finds it
    parser.run(main)
