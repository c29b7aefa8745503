"""Wrapping again and again."""

from __future__ import annotations

from parallel import jobs


def test_many_models(tmp_path) -> None:
    result = jobs.launch(tmp_path, "wrapping.py")
    assert result.code == 0, result.err
    lines = [line.partition("] ")[2].partition(" ") for line in result.out.splitlines()]
    used = [int(words) for what, _, words in lines if what == "used"]
    # Two gradients, new values and two states of four megabytes each, and not once more for each model.
    assert min(used[:2]) > 19e6
    assert max(used) < 45e6
    values = [words for what, _, words in lines if what == "values"]
    assert len(values) == 2
    first, second = eval(values[0])
    assert first == second
    assert first[0] < 1
    said = [words for what, _, words in lines if what == "said"]
    assert sum("several wrapped trainers" in words for words in said) == 2
    assert sum("parameters need" in words for words in said) == 2
