"""The benchmark drivers make the same measurements on the device as on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import compare
import launches
import mnist_gpu
import pytest
from made_data import write_digits


def test_compare(device: str) -> None:
    """The test measures both devices, and compares their losses in every round."""
    devices = {"dynet_cy": "cpu", "dynet_cy_gpu": device}
    result = compare.measure("tree_lstm", {"dynet_cy": sys.executable}, 1, devices, ["--tiny", "--repeat", "2"])
    forms = [(f["library"], f["form"]) for f in result["forms"]]
    assert forms == [(library, form) for library in devices for form in ("plain", "autobatch", "fused")]
    assert all(f["result"] > 0 for f in result["forms"])
    assert [f["share_of_peak"] > 0 for f in result["forms"]] == [True] * 3 + [False] * 3


def test_epochs_of_mnist(device: str, tmp_path: Path) -> None:
    command = [sys.executable, mnist_gpu.__file__, "--data", str(write_digits(tmp_path)), "--limit", "20"]
    done = subprocess.run([*command, "--epochs", "1", "--batch", "10"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for form in ("minibatch", "autobatch"):
        assert re.search(rf"^\| dynet_cy \| {form} \| [\d.]+ \|  \| (0.600|1.00) \| ", done.stdout, re.M), done.stdout
    losses = re.findall(r"loss ([\d.]+)", done.stderr)
    assert len(losses) == 4
    assert [float(x) for x in losses[::2]] == pytest.approx([float(x) for x in losses[1::2]], abs=2e-3)


def test_launches(device: str) -> None:
    """Repeated updates launch one CUDA graph per pass and do not wait; counts equal those of fresh updates."""
    programs = ["mlp", "tree_lstm", "latency"]
    command = [sys.executable, launches.__file__, "--tiny", "--workloads", *programs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [[x.strip().replace(",", "") for x in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert found[0] == launches.HEADS
    table = {(*row[:2], kind[4]): dict(zip(found[0][5:], map(int, kind[5:]))) for row, kind in pairs(found[2:])}
    nodes = {(row[0], row[1]): int(row[2]) for row in found[2:] if row[0]}
    # 64 single examples take no more launches than a minibatch of 64, and their sums and scales run as one.
    assert table["mlp", "autobatch", "fresh"]["launches"] <= table["mlp", "minibatch", "fresh"]["launches"]
    assert nodes["tree_lstm", "fused"] < nodes["tree_lstm", "autobatch"]
    for (program, form, update), counts in table.items():
        name = f"{program} {form} {update}"
        assert counts["waits"] == 0, name
        # The record of whether gradients were finite, which the host reads later.
        assert counts["copies back"] == (program != "latency"), name
        made = counts["launches"] + counts["products"] + counts["fills"]
        if update == "fresh":
            assert counts["CUDA graphs"] == 0, name
            assert 10 < made < nodes[program, form] + 60, name
        else:
            assert counts["CUDA graphs"] == (1 if program == "latency" else 2), name
            assert made <= 4, name
            assert counts["KiB there"] == table[program, form, "fresh"]["KiB there"], name


def pairs(rows: list[list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Each row with the row that has its names."""
    for first, second in zip(rows[::2], rows[1::2]):
        yield first, first
        yield first, second


def test_table_of_mnist() -> None:
    forms = [
        {"library": "dynet_cy", "form": "minibatch", "median": 1.0, "accuracies": [0.5, 0.99]},
        {"library": "dynet_cy", "form": "autobatch", "median": 2.5, "accuracies": [0.98]},
        {"library": "torch", "form": "default", "median": 2.0, "accuracies": [0.991]},
    ]
    result = {"date": "d", "device": "G", "processor": "P", "epochs": 2, "images": "i", "mnist": True, "forms": forms}
    lines = mnist_gpu.table(result).splitlines()
    assert lines[4:] == [
        "| dynet_cy | minibatch | 1.00 | 0.500 | 0.600 | 0.920 | 99.00 % |",
        "| dynet_cy | autobatch | 2.50 | **1.25** | 1.00 | 1.91 | **98.00 %** |",
        "| PyTorch | default | 2.00 | 1.00 |  |  | 99.10 % |",
    ]


def test_a_model_predicts_times(device: str) -> None:
    """In three more columns; only where the driver computes nothing, or the time of the host would include it."""
    command = [sys.executable, launches.__file__, "--tiny", "--workloads", "latency", "--model", "h100"]
    environment = {key: value for key, value in os.environ.items() if key != "EMU_IDLE"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "--model needs the emulated driver with EMU_IDLE=1" in done.stderr
    if not os.environ.get("DYNET_CY_GPU_EMULATED"):
        return
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "EMU_IDLE": "1"})
    assert done.returncode == 0, done.stderr
    heads, _, *table = ([x.strip() for x in line.split("|")[1:-1]] for line in done.stdout.splitlines())
    assert heads == [*launches.HEADS, *launches.MODEL_HEADS]
    times = [[float(x) for x in row[-3:-1]] for row in table]
    assert len(times) == 2
    assert [row[-1].endswith(" %") for row in table] == [True, False]  # the errors of the program, once
    assert all(ms > 0 for pair in times for ms in pair)  # not which is longer: the yardstick may meet a busy moment
