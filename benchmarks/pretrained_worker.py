"""A worker process for pretrained models in one library: runs a round for each line of its standard input.

    python pretrained_worker.py LIBRARY FORM PROGRAM THREADS DATA

LIBRARY is dynet_cy, torch (with transformers) or onnx (onnxruntime); with "export" the encoder is written as an ONNX
file for several texts at once.  `pretrained.py` says what the programs and forms are and writes DATA.  Each answer is a
line of JSON: the CPU seconds and wall seconds of a round, a number that is the same in all libraries, and the peak of
the process's resident memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np
from worker import peak, reset_peak

BATCH = 32
RATE = 5e-5
DECAY = 0.01  # of weights

Round = Callable[[], float]


class Data:
    """What all libraries read.

    Attributes:
        encoder, decoder, onnx: folders and a file
        ids: the pieces of each text
        firsts: the first piece of each of its words
        tags: a number for each word
        prompts: texts to continue
        longest: how many pieces are added to a prompt
        text: the first text that a user asks for
    """

    def __init__(self, path: str) -> None:
        vars(self).update(json.loads(Path(path).read_text(encoding="utf-8")))
        self.head = np.random.RandomState(1).normal(0, 0.02, (1 + max(map(max, self.tags)), self.dim))

    def batches(self, form: str, count: int | None = None) -> Iterator[list[int]]:
        """The numbers of the texts of each minibatch; with "sorted", those of a minibatch are similarly long."""
        order = list(range(len(self.ids) if count is None else count))
        if "sorted" in form:
            order.sort(key=lambda i: len(self.ids[i]))
        size = next((int(word) for word in form.split() if word.isdigit()), BATCH)
        for begin in range(0, len(order), size):
            yield order[begin : begin + size]


# -- dynet_cy ------------------------------------------------------------------------------------


def dynet_finetune(dy: Any, form: str, data: Data) -> Round:
    class Tagger(dy.nn.Layer):
        def __init__(self) -> None:
            super().__init__(dy.ParameterCollection())
            self.bert = dy.pretrained.load(data.encoder, self.collection)
            self.out = dy.nn.Linear(self.bert.settings.dim, len(data.head), self.collection)

        def loss(self, i: int) -> Any:
            scores = self.out(dy.select_cols(self.bert(data.ids[i]), data.firsts[i]))
            return dy.cross_entropy(scores, data.tags[i], reduction="sum")

    tagger = Tagger()
    tagger.out.W.set_value(data.head)
    tagger.train("dropout" in form)
    trainer = dy.AdamWTrainer(tagger, RATE)
    trainer.group(list(tagger.parameters()), weight_decay=DECAY)

    def run() -> float:
        total = 0.0
        for batch in data.batches(form):
            dy.renew_cg()
            loss = dy.esum([tagger.loss(i) for i in batch]) / sum(len(data.tags[i]) for i in batch)
            total += loss.value()
            loss.backward()
            trainer.update()
        return total

    return run


def dynet_encode(dy: Any, form: str, data: Data) -> Round:
    bert = dy.pretrained.load(data.encoder, dy.ParameterCollection())

    def run() -> float:
        total = 0.0
        for batch in data.batches(form, data.encoded):
            dy.renew_cg(forward_only=True)
            total += sum(float(np.abs(x).sum()) for x in dy.npvalues([bert(data.ids[i]) for i in batch]))
        return total

    return run


def dynet_generate(dy: Any, form: str, data: Data) -> Round:
    gpt = dy.pretrained.load(data.decoder, dy.ParameterCollection())

    def run() -> float:
        dy.renew_cg(forward_only=True)
        return float(sum(map(sum, gpt.generate(data.prompts, longest=data.longest))))

    return run


def dynet_start(dy: Any, form: str, data: Data) -> Round:
    def run() -> float:
        bert = dy.pretrained.load(data.encoder, dy.ParameterCollection())
        return float(np.abs(bert(bert.tokenize(data.text) if bert.text else data.ids[0]).npvalue()).sum())

    return run


# -- transformers --------------------------------------------------------------------------------


def padded(texts: Sequence[Sequence[int]], left: bool = False) -> tuple[Any, Any]:
    """Texts as rows of equal length, and 1 where there is a piece."""
    longest = max(map(len, texts))
    ids, mask = np.zeros((2, len(texts), longest), np.int64)
    for i, text in enumerate(texts):
        place = slice(longest - len(text), None) if left else slice(len(text))
        ids[i, place], mask[i, place] = text, 1
    return ids, mask


def torch_finetune(torch: Any, form: str, data: Data) -> Round:
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(data.encoder).train("dropout" in form)
    out = torch.nn.Linear(data.dim, len(data.head))
    out.weight.data, out.bias.data = torch.tensor(data.head, dtype=torch.float32), torch.zeros(len(data.head))
    optimizer = torch.optim.AdamW([*bert.parameters(), *out.parameters()], RATE, weight_decay=DECAY, fused=True)

    def run() -> float:
        total = 0.0
        for batch in data.batches(form):
            optimizer.zero_grad()
            ids, mask = map(torch.from_numpy, padded([data.ids[i] for i in batch]))
            states = bert(input_ids=ids, attention_mask=mask).last_hidden_state
            rows = torch.tensor([row for row, i in enumerate(batch) for _ in data.firsts[i]])
            columns = torch.tensor([first for i in batch for first in data.firsts[i]])
            tags = torch.tensor([tag for i in batch for tag in data.tags[i]])
            loss = torch.nn.functional.cross_entropy(out(states[rows, columns]), tags)
            total += loss.item()
            loss.backward()
            optimizer.step()
        return total

    return run


def torch_encode(torch: Any, form: str, data: Data) -> Round:
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(data.encoder).eval()

    def states(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            found = bert(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        return found.last_hidden_state.numpy()

    return encode(states, form, data)


def torch_generate(torch: Any, form: str, data: Data) -> Round:
    from transformers import AutoModelForCausalLM

    gpt = AutoModelForCausalLM.from_pretrained(data.decoder).eval()
    ids, mask = map(torch.from_numpy, padded(data.prompts, left=True))
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": data.longest, "pad_token_id": 0}

    def run() -> float:
        with torch.inference_mode():
            found = gpt.generate(ids, attention_mask=mask, **options)
        return float(found[:, ids.shape[1] :].sum())

    return run


def torch_start(torch: Any, form: str, data: Data) -> Round:
    from transformers import AutoModel, AutoTokenizer

    def run() -> float:
        bert = AutoModel.from_pretrained(data.encoder).eval()
        if (Path(data.encoder) / "tokenizer.json").exists():
            inputs = AutoTokenizer.from_pretrained(data.encoder)(data.text, return_tensors="pt")
        else:
            inputs = {"input_ids": torch.tensor([data.ids[0]])}
        with torch.inference_mode():
            return float(bert(**inputs).last_hidden_state.abs().sum())

    return run


def export(data: Data) -> None:
    """Write the encoder as `transformers` and PyTorch export it."""
    import torch
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(data.encoder, attn_implementation="eager").eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    axes = {name: {0: "texts", 1: "pieces"} for name in ("ids", "mask", "states")}
    example = tuple(map(torch.from_numpy, padded(data.ids[:2])))
    names: dict[str, Any] = {"input_names": ["ids", "mask"], "output_names": ["states"], "dynamic_axes": axes}
    torch.onnx.export(States(), example, data.onnx, dynamo=False, opset_version=17, **names)


# -- onnxruntime ---------------------------------------------------------------------------------


def onnx_encode(threads: int, form: str, data: Data) -> Round:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(data.onnx, options, ["CPUExecutionProvider"])
    return encode(lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0], form, data)


def encode(states: Callable[[Any, Any], Any], form: str, data: Data) -> Round:
    """A round for a library that takes padded texts."""

    def run() -> float:
        total = 0.0
        for batch in data.batches(form, data.encoded):
            ids, mask = padded([data.ids[i] for i in batch])
            total += float(np.abs(states(ids, mask)[mask.astype(bool)]).sum())
        return total

    return run


# -- rounds --------------------------------------------------------------------------------------


PROGRAMS: dict[str, dict[str, Callable[[Any, str, Data], Round]]] = {
    "dynet_cy": {
        "finetune": dynet_finetune,
        "encode": dynet_encode,
        "generate": dynet_generate,
        "start": dynet_start,
    },
    "torch": {
        "finetune": torch_finetune,
        "encode": torch_encode,
        "generate": torch_generate,
        "start": torch_start,
    },
    "onnx": {"encode": onnx_encode},
}


def make_round(library: str, form: str, program: str, threads: int, data: Data) -> Round:
    """Import a library, with its settings, and make the program."""
    make = PROGRAMS[library][program]
    if library == "onnx":
        return make(threads, form, data)
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
        return make(torch, form, data)
    import dynet_cy as dy
    from dynet_cy import config

    config.set(threads=threads, autobatch=1, precision="bf16" if "bf16" in form else "float32")
    return make(dy, form, data)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", choices=["dynet_cy", "torch", "onnx", "export"])
    parser.add_argument("form")
    parser.add_argument("program")
    parser.add_argument("threads", type=int)
    parser.add_argument("data")
    args = parser.parse_args()
    # `transformers` asks for a package `kernels`, which the program of that name in this folder is not.
    sys.path.remove(str(Path(__file__).resolve().parent))
    data = Data(args.data)
    if args.library == "export":
        export(data)
        return
    run = make_round(args.library, args.form, args.program, args.threads, data)
    reset_peak()
    for _ in sys.stdin:
        # What was needed until now counts as well where a new process is measured.
        start, begun = 0.0 if args.program == "start" else time.process_time(), time.perf_counter()
        found = run()
        answer = {"seconds": time.process_time() - start, "wall": time.perf_counter() - begun, "loss": found}
        print(json.dumps({**answer, "memory": peak()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
