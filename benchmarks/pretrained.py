"""Pretrained encoders and decoders, compared with `transformers` on PyTorch and with onnxruntime.

    python benchmarks/pretrained.py [--encoder FOLDER] [--torch PYTHON] [--rounds N] [--threads 1 2] [--json FILE]

Without `--encoder`, one with MiniLM's sizes and random numbers is made; the decoder is always made so (GPT-2's form, 6
layers of 384).  PYTHON is an interpreter that has torch, transformers, onnx and onnxruntime.  Texts are random pieces,
with lengths as in a treebank, or those of `--texts`, in CoNLL-U.

Every program runs in each library and form in a process of its own (`pretrained_worker.py`); the processes take turns,
a round each, and the least of a form's rounds counts.  With one thread the times are CPU time, with more wall time.

- finetune: an epoch of training a tagger by AdamW, 32 sentences an update, in random order or sorted by length.
  dynet_cy runs sentences of different lengths together; PyTorch pads.
- encode: the states of some sentences, one after the other, 32 together as they come, and the best of further forms.
- start: a new process until it has the states of a first sentence: import, loading, tokenizing.
- generate: 16 prompts of different lengths, greedily, with caches.

All libraries must have the same results to 1e-3, or the comparison fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compare import Child, processor
from report import markdown, number
from tqdm import tqdm

WORKER = Path(__file__).with_name("pretrained_worker.py")
TOLERANCE = 1e-3  # of results, relatively
OTHERS = {"dropout", "bf16"}  # words of forms whose results differ

PADDED = ["alone 1", "mixed 32", "sorted 8", "sorted 16", "sorted 32"]
FORMS: dict[str, dict[str, list[str]]] = {
    "finetune": {
        "dynet_cy": ["mixed", "sorted", "mixed bf16", "mixed dropout"],
        "torch": ["mixed", "sorted", "mixed dropout"],
    },
    "encode": {
        "dynet_cy": ["alone 1", "mixed 32", "mixed 128", "sorted 16", "sorted 32", "mixed 128 bf16"],
        "torch": PADDED,
        "onnx": PADDED,
    },
    "start": {"dynet_cy": [""], "torch": [""]},
    "generate": {"dynet_cy": [""], "torch": [""]},
}
TITLES = {"dynet_cy": "dynet_cy", "torch": "transformers", "onnx": "onnxruntime"}

# MiniLM's, and those of a small GPT.
ENCODER = {"vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
ENCODER |= {"intermediate_size": 1536, "max_position_embeddings": 512, "model_type": "bert"}
DECODER = {"vocab_size": 8000, "n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256, "model_type": "gpt2"}
DECODER |= {"bos_token_id": None, "eos_token_id": None}
TINY_ENCODER = {**ENCODER, "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY_ENCODER |= {"intermediate_size": 16}
TINY_DECODER = {**DECODER, "vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2}
TAGS = 17


# -- data ----------------------------------------------------------------------------------------


def make_data(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What the workers read: models, and texts as numbers."""
    import dynet_cy as dy

    if args.encoder is None:
        made = dy.pretrained.Bert(TINY_ENCODER if args.tiny else ENCODER, dy.ParameterCollection(), pooler=True)
        made.save(folder / "encoder")
    encoder = args.encoder or folder / "encoder"
    bert = dy.pretrained.load(encoder, dy.ParameterCollection())
    gpt = dy.pretrained.GPT2(TINY_DECODER if args.tiny else DECODER, dy.ParameterCollection())
    rng = np.random.default_rng(1)
    # So large that the best scores differ clearly.
    gpt.load_state_dict({name: rng.normal(0, 0.3, array.shape) for name, array in gpt.state_dict().items()})
    gpt.save(folder / "decoder")
    texts = read_texts(bert, args) if args.texts else made_up_texts(bert.settings.vocabulary, args.sentences)
    rng = random.Random(2)
    prompts = [[rng.randrange(gpt.settings.vocabulary) for _ in range(rng.randint(4, 20))] for _ in range(16)]
    return {
        "encoder": str(encoder),
        "decoder": str(folder / "decoder"),
        "onnx": str(folder / "encoder.onnx"),
        "dim": bert.settings.dim,
        "ids": [ids for ids, _ in texts],
        "firsts": [firsts for _, firsts in texts],
        "tags": [[rng.randrange(TAGS) for _ in firsts] for _, firsts in texts],
        "encoded": min(args.encoded, len(texts)),
        "prompts": prompts,
        "longest": 4 if args.tiny else 48,
        "text": "The first sentence is the one for which a user waits.",
    }


def read_texts(bert: Any, args: argparse.Namespace) -> list[tuple[list[int], list[int]]]:
    """The pieces of the sentences of a treebank, in random order, and the first piece of each word."""
    from dynet_cy.data import read_conllu

    sentences = list(read_conllu(args.texts))
    random.Random(1).shuffle(sentences)
    codes = [bert.tokenize(sentence.form) for sentence in sentences[: args.sentences]]
    return [(code.ids, [begin for begin, _ in code.spans]) for code in codes]


def made_up_texts(vocabulary: int, count: int) -> list[tuple[list[int], list[int]]]:
    """The same for random pieces, with lengths as in a treebank: 21 on average, most below that, some far above."""
    rng = random.Random(1)
    lengths = [min(max(round(rng.gammavariate(1.7, 11)), 1), 120) + 2 for _ in range(count)]
    texts = [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths]
    return [(ids, [1, *(i for i in range(2, len(ids) - 1) if rng.random() < 0.8)]) for ids in texts]


def there(program: str, pythons: dict[str, str]) -> list[tuple[str, str]]:
    """The libraries and forms of a program that this machine can run."""
    from dynet_cy.kernels.kernels import check_precision

    forms = [(library, form) for library, names in FORMS[program].items() if library in pythons for form in names]
    try:
        check_precision("bf16")
    except RuntimeError:
        return [(library, form) for library, form in forms if "bf16" not in form]
    return forms


# -- measuring -----------------------------------------------------------------------------------


def run_rounds(
    program: str, forms: Sequence[tuple[str, str]], pythons: dict[str, str], threads: int, rounds: int, data: Path
) -> list[dict[str, Any]]:
    """The least times of each form, and the peak of its memory.

    Raises:
        RuntimeError: a worker failed, or results differ
    """

    def start(library: str, form: str) -> Child:
        return Child(pythons[library], library, form, program, threads, WORKER, [str(data)])

    once = program == "start"  # a process has one round
    children = {} if once else {form: start(*form) for form in forms}
    answers: dict[tuple[str, str], list[dict[str, float]]] = {form: [] for form in forms}
    with tqdm(total=len(forms) * (rounds + 1), desc=f"{program}, {threads} thread{'s' * (threads > 1)}") as bar:
        for _ in range(rounds + 1):  # the first one warms up
            for form in forms:
                begun = time.perf_counter()
                child = start(*form) if once else children[form]
                answer = child.round()
                if once:  # the process tells only what it has taken since it began
                    answer["wall"] = time.perf_counter() - begun
                    child.close()
                answers[form].append(answer)
                bar.update()
    for child in children.values():
        child.close()
    same_results(program, answers)
    clock = "seconds" if threads == 1 else "wall"
    return [
        {
            "library": library,
            "form": form,
            "seconds": min(answer[clock] for answer in found[1:]),
            "memory": found[-1]["memory"],
        }
        for (library, form), found in answers.items()
    ]


def same_results(program: str, answers: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Compare the results of the first round.

    Raises:
        RuntimeError: they differ
    """
    groups: dict[str, dict[str, float]] = {}
    for (library, form), found in answers.items():
        if not OTHERS & set(form.split()):
            order = "sorted" if program == "finetune" and "sorted" in form else ""
            groups.setdefault(order, {})[f"{library} {form}"] = found[0]["loss"]
    for results in groups.values():
        first = next(iter(results.values()))
        if any(not abs(result - first) <= TOLERANCE * max(1.0, abs(first)) for result in results.values()):
            raise RuntimeError(f"{program}: results differ: {results}")


# -- the table -----------------------------------------------------------------------------------


def best(measured: list[dict[str, Any]], library: str, *forms: str, key: str = "seconds") -> float | None:
    """The least value of a library's forms; those whose name begins so, or without `forms` all but bfloat16."""
    values = [
        one[key]
        for one in measured
        if one["library"] == library and (one["form"] in forms if forms else not OTHERS & set(one["form"].split()))
    ]
    return min(values, default=None)


def table(result: dict[str, Any], threads: int) -> str:
    """Markdown: a row for each program and form; the last columns say how many times longer the others take."""
    programs: dict[str, list[dict[str, Any]]] = result["threads"][str(threads)]
    sentences, encoded = result["sentences"], result["encoded"]
    tune, code, start, write = (programs[name] for name in FORMS)
    per = "CPU" if threads == 1 else "wall"
    rows = [
        ("fine-tuning, random batches", f"{per} ms/sentence", tune, ["mixed"], "seconds", 1e3 / sentences),
        ("fine-tuning, similar lengths", f"{per} ms/sentence", tune, ["sorted"], "seconds", 1e3 / sentences),
        ("fine-tuning, bfloat16", f"{per} ms/sentence", tune, ["mixed bf16"], "seconds", 1e3 / sentences),
        ("peak memory of fine-tuning", "MiB", tune, ["mixed"], "memory", 2**-20),
        ("the same with dropout", "MiB", tune, ["mixed dropout"], "memory", 2**-20),
        ("encoding, one by one", f"{per} ms/sentence", code, ["alone 1"], "seconds", 1e3 / encoded),
        ("encoding, 32 as they come", f"{per} ms/sentence", code, ["mixed 32"], "seconds", 1e3 / encoded),
        ("encoding, the best form", f"{per} ms/sentence", code, [], "seconds", 1e3 / encoded),
        ("encoding, bfloat16", f"{per} ms/sentence", code, ["mixed 128 bf16"], "seconds", 1e3 / encoded),
        ("import, load, first sentence", f"{per} s", start, [""], "seconds", 1.0),
        ("generation, 16 prompts", f"{per} s", write, [""], "seconds", 1.0),
    ]
    libraries = [library for library in TITLES if any(one["library"] == library for one in tune + code)]
    heads = ["program", "unit", *(TITLES[one] for one in libraries), *(f"to {TITLES[one]}" for one in libraries[1:])]
    lines = []
    for title, unit, measured, forms, key, scale in rows:
        values = [best(measured, library, *forms, key=key) for library in libraries]
        if values[0] is None:  # a program that was not asked for, or bfloat16 on a CPU without its instructions
            continue
        ratios = ["" if x is None else number(x / values[0]) for x in values[1:]]
        lines.append([title, unit, *(number(None if x is None else x * scale) for x in values), *ratios])
    return markdown(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--encoder", type=Path, metavar="FOLDER", help="in Hugging Face's layout; else one is made")
    add("--torch", metavar="PYTHON", help="an interpreter that has PyTorch, transformers, onnx and onnxruntime")
    add("--texts", type=Path, metavar="FILE", help="CoNLL-U; else texts are made up")
    add("--sentences", type=int, default=480, help="sentences of an epoch")
    add("--encoded", type=int, default=128, help="sentences to encode")
    add("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--programs", nargs="+", choices=[*FORMS], default=[*FORMS])
    add("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    add("--tiny", action="store_true", help="tiny models, to check that it works")
    args = parser.parse_args()
    pythons = {"dynet_cy": sys.executable, **({"torch": args.torch, "onnx": args.torch} if args.torch else {})}
    result: dict[str, Any] = {"date": datetime.date.today().isoformat(), "processor": processor(), "threads": {}}
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data.json"
        texts = make_data(args, Path(name))
        data.write_text(json.dumps(texts), encoding="utf-8")
        result.update(sentences=len(texts["ids"]), encoded=texts["encoded"])
        if args.torch and "encode" in args.programs:
            command = [args.torch, "-W", "ignore", WORKER, "export", "", "", "1", data]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        try:
            for threads in args.threads:
                found = result["threads"][str(threads)] = dict.fromkeys(FORMS, [])
                for program in args.programs:
                    forms = there(program, pythons)
                    found[program] = run_rounds(program, forms, pythons, threads, args.rounds, data)
                    if args.json:  # after each program, so that nothing is lost
                        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        except RuntimeError as error:
            sys.exit(str(error))
    for threads in args.threads:
        print(f"{result['processor']}, {threads} thread{'s' * (threads > 1)}, {result['date']}\n")
        print(table(result, threads), end="\n\n")


if __name__ == "__main__":
    main()
