"""Time of an epoch of the classic convolutional network on MNIST, on a GPU, compared with PyTorch and cuDNN.

    python benchmarks/mnist_gpu.py --data DIR --torch PYTHON

DIR holds the four MNIST files; without it, images of the same number and size are generated, to measure times only. The
processes of `mnist_worker.py` take turns, one epoch each. The first epoch is a warm-up: it counts for the accuracy, but
not for the time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from compare import Child, gpu_name, processor
from mnist_worker import MADE_UP
from report import markdown, number

WORKER = Path(__file__).with_name("mnist_worker.py")
FORMS = {"dynet_cy": ["minibatch", "autobatch"], "torch": ["default", "tuned", "float32"]}
NAMES = {"dynet_cy": "dynet_cy", "torch": "PyTorch"}
# The largest share of PyTorch's time to reach; and DyNet's time on a GTX 1080 Ti, where PyTorch took 4.49 s.
GOALS = {"minibatch": (0.6, 4.13 / 4.49), "autobatch": (1.0, 8.58 / 4.49)}
ACCURACY = 0.989


def measure(pythons: dict[str, str], args: argparse.Namespace) -> list[dict[str, Any]]:
    devices = {"dynet_cy": args.device, "torch": args.torch_device}
    options = ["--batch", str(args.batch), *(["--limit", str(args.limit)] if args.limit else [])]
    children: dict[tuple[str, str], Child] = {}
    data = str(args.data) if args.data else MADE_UP
    try:
        for library, python in pythons.items():
            for form in args.forms.get(library, FORMS[library]):
                more = [*options, "--device", devices[library]]
                children[library, form] = Child(python, library, form, data, args.threads, WORKER, more)
        for epoch in range(args.epochs + 1):
            for child in children.values():
                found = child.round()
                told = f"{found['seconds']:.2f} s, loss {found['loss']:.4f}, accuracy {found['accuracy']:.2%}"
                print(f"epoch {epoch}: {child.name}: {told}", file=sys.stderr, flush=True)
    finally:
        for child in children.values():
            child.close()
    return [
        {
            "library": library,
            "form": form,
            "seconds": [r["seconds"] for r in child.rounds[1:]],
            "median": child.seconds,
            "accuracies": [r["accuracy"] for r in child.rounds],
        }
        for (library, form), child in children.items()
    ]


def table(result: dict[str, Any]) -> str:
    """Markdown: the time of an epoch, and its ratio to that of PyTorch with default settings.  Bold: goal missed."""
    rows = result["forms"]
    by_default = next((r["median"] for r in rows if r["library"] == "torch"), None)
    lines = []
    for row in rows:
        part = row["median"] / by_default if by_default else None
        best = max(row["accuracies"])
        line = [NAMES[row["library"]], row["form"], number(row["median"]), number(part), "", "", f"{best:.2%}"]
        if row["library"] == "dynet_cy":
            most, original = GOALS[row["form"]]
            if part is not None and part > most:
                line[3] = f"**{line[3]}**"
            line[4:6] = [number(most), number(original)]
        if result["mnist"]:
            line[6] = line[6] if best >= ACCURACY else f"**{line[6]}**"
        lines.append([x.replace("%", " %") for x in line])
    accuracy = "best test accuracy" if result["mnist"] else "accuracy, not of MNIST"
    heads = ["library", "form", "s/epoch", "part of PyTorch's", "at most", "DyNet's, GTX 1080 Ti", accuracy]
    machine = f"{result['date']}, {result['device']}, {result['processor']}"
    return f"{machine}, {result['epochs']} epochs, {result['images']}\n\n{markdown(heads, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.; else made up")
    add("--torch", metavar="PYTHON", help="an interpreter that has PyTorch with CUDA")
    add("--epochs", type=int, default=5, help="measured epochs, after one to warm up (%(default)s)")
    add("--batch", type=int, default=64, help="images in a minibatch (%(default)s)")
    add("--limit", type=int, metavar="N", help="the first N training and N test images only")
    add("--threads", type=int, default=1, help="of the CPU (%(default)s)")
    add("--device", default="GPU:0", metavar="NAME", help="of dynet_cy; cpu to check that it works")
    add("--torch-device", default="cuda", metavar="NAME", help="of PyTorch; cpu to check that it works")
    add(
        "--quick",
        dest="forms",
        action="store_const",
        const={"torch": ["default"]},
        default={},
        help="default PyTorch only",
    )
    add("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be at least 1")
    pythons = {"dynet_cy": sys.executable, **({"torch": args.torch} if args.torch else {})}
    device = "CPU" if args.device == "cpu" else gpu_name()
    try:
        forms = measure(pythons, args)
    except RuntimeError as error:
        sys.exit(str(error))
    result = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "device": device,
        "epochs": args.epochs + 1,
        "images": f"minibatches of {args.batch}{f', {args.limit} images' if args.limit else ''}",
        "mnist": bool(args.data),
        "forms": forms,
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
