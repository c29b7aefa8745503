"""The tagger with a BiLSTM over the letters of rare words, instead of their own vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads.common import TorchWeights, bilstm_multiplications
from workloads.tagger import Tagger


class LetterTagger(Tagger):
    title = "the same with a character BiLSTM for rare words"
    sizes = {**Tagger.sizes, "frequent": 1_500, "letters": 60, "letter_dim": 20}
    tiny = {**Tagger.tiny, "frequent": 15, "letter_dim": 3}

    def prepare(self) -> None:
        super().prepare()
        lengths = self.lengths(self.vocabulary, 8, 20)
        self.spelling = [[int(c) for c in self.rng.randint(self.letters, size=n)] for n in lengths]
        self.letter_hidden = self.word_dim // 2

    def multiplications(self) -> float:
        letters = sum(len(self.spelling[w]) for s in self.data for w in s if w >= self.frequent)
        return super().multiplications() + bilstm_multiplications(letters, 1, self.letter_dim, self.letter_hidden)

    def dynet_embed(self, dy: Any, pc: Any, table: Any) -> Callable[[int], Any]:
        letters = pc.add_lookup_parameters((self.letters, self.letter_dim))
        forward = dy.LSTMBuilder(1, self.letter_dim, self.letter_hidden, pc)
        backward = dy.LSTMBuilder(1, self.letter_dim, self.letter_hidden, pc)

        def embed(word: int) -> Any:
            if word < self.frequent:
                return table[word]
            inputs = [letters[c] for c in self.spelling[word]]
            first = forward.initial_state().transduce(inputs)[-1]
            second = backward.initial_state().transduce(inputs[::-1])[-1]
            return dy.concatenate([first, second])

        return embed

    def torch_embed(self, torch: Any, weights: TorchWeights, table: Any) -> tuple[Callable, Callable]:
        rnn = torch.nn.utils.rnn
        letters = weights.table(self.letters, self.letter_dim)
        speller = weights.lstm(1, self.letter_dim, self.letter_hidden, bidirectional=True)
        spelling = [weights.tensor(s) for s in self.spelling]

        def one(words: Any) -> Any:
            vectors = list(table(words))
            for i, word in enumerate(words.tolist()):
                if word >= self.frequent:
                    _, (last, _) = speller(letters(spelling[word])[None])
                    vectors[i] = last.reshape(-1)
            return torch.stack(vectors)

        def padded(words: Any) -> Any:
            rare = words >= self.frequent
            spelled = [spelling[w] for w in words[rare].tolist()]
            lengths = torch.tensor([len(s) for s in spelled])
            inputs = letters(rnn.pad_sequence(spelled, batch_first=True))
            packed = rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
            _, (last, _) = speller(packed)
            return table(words).index_put((rare,), last.transpose(0, 1).reshape(len(spelled), -1))

        return one, padded


WORKLOAD = LetterTagger
