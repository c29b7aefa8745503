"""Training curves, as pictures and for TensorBoard."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from dynet_cy.curves import Curves


def test_numbers_are_kept() -> None:
    with Curves() as curves:
        curves.add(1, loss=2, accuracy=0.5)
        curves.add(2, loss=1)
    assert curves.values == {"loss": [(1, 2.0), (2, 1.0)], "accuracy": [(1, 0.5)]}


@pytest.mark.parametrize(("package", "argument"), [("matplotlib", "picture"), ("tensorboardX", "tensorboard")])
def test_without_the_package(package: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{argument} needs the package {package}: pip install 'dynet_cy\[\w+\]'"):
        Curves(**{argument: tmp_path / "c.svg"})
    assert list(tmp_path.iterdir()) == []


def test_bad_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a picture ends in .svg, .png or .pdf, not as 'loss.txt' does"):
        Curves(picture="loss.txt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib")
    picture = tmp_path / "curves.svg"
    with contextlib.suppress(KeyError), Curves(picture) as curves:
        for step in range(5):
            curves.add(step, loss=float("nan") if step == 2 else 1 / (step + 1), accuracy=step / 5)
        raise KeyError  # an interrupted training has curves too
    text = picture.read_text(encoding="utf-8")
    assert text.count('<g id="axes_') == 2
    Curves(tmp_path / "empty.svg").close()
    assert not (tmp_path / "empty.svg").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="scalars are written by tensorboardX")
    with Curves(tensorboard=tmp_path / "run") as curves:
        curves.add(1, loss=0.25)
    (events,) = (tmp_path / "run").iterdir()
    assert b"loss" in events.read_bytes()
