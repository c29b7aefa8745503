"""Items that a user gives are those by position: data with labels of their own are read so, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import metrics


class Labelled:
    """Like a series of pandas whose rows were shuffled: iteration is by position, indexing by label."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.index = [*range(1, len(values)), 0]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return iter(self.values)

    def __getitem__(self, label: int) -> Any:
        return self.values[self.index.index(label)]

    def tolist(self) -> list[Any]:
        return self.values


class Frame(Labelled):
    """Like a table of pandas: iteration yields the names of its columns."""

    columns = ("a", "b")

    def __iter__(self) -> Any:
        return iter(self.columns)

    def to_dict(self, kind: str) -> list[dict[str, Any]]:
        return [{"a": value} for value in self.values]

    iloc = None


REFUSED: dict[str, Callable[[Any], Any]] = {
    "hold_out": dy.data.hold_out,
    "shard": dy.parallel.shard,
    "batches": lambda data: dy.data.batches(data, 2),
    "map_batches": lambda data: dy.data.map_batches(list, data),
}
ONLY_TABLES: dict[str, Callable[[Any], Any]] = {
    "batched_map": lambda data: dy.batched_map(lambda item: item, data),
    "Vocabulary": lambda data: dy.data.Vocabulary(data).words,
    "special": lambda data: dy.data.Vocabulary(special=data).words,
    "encode": lambda data: dy.data.Vocabulary(["x", "y", "z"]).encode(data),
    "accuracy": lambda data: metrics.accuracy(data, ["x", "y", "x"]),
    "precision_recall": lambda data: metrics.precision_recall([data], [["x"]]),
}


@pytest.mark.parametrize("name", [*REFUSED, *ONLY_TABLES])
def test_labels(name: str) -> None:
    function = {**REFUSED, **ONLY_TABLES}[name]
    with pytest.raises(TypeError, match=r"not Frame; write \w+\.to_dict\('records'\), or choose a column"):
        function(Frame(["x", "y", "x"]))
    if name in REFUSED:
        with pytest.raises(TypeError, match=r"not Labelled; write \w+\.tolist\(\)"):
            function(Labelled(["x", "y", "z"]))
    else:
        assert function(Labelled(["x", "y", "z"])) == function(["x", "y", "z"])


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(["x", "y", "z"], index=[2, 0, 1])
    for name, function in {**REFUSED, **ONLY_TABLES}.items():
        with pytest.raises(TypeError, match="not DataFrame; write"):
            function(series.to_frame())
        if name in REFUSED:
            with pytest.raises(TypeError, match="not Series; write"):
                function(series)
        else:
            assert function(series) == function(["x", "y", "z"])
    words = dy.nn.WordVectors(["x", "y", "z"], np.eye(3))
    assert words.embedding(dy.ParameterCollection(), series)([1]).npvalue().ravel().tolist() == [0, 1, 0]


INDICES: dict[str, Callable[[Any], Any]] = {
    "lookup_batch": lambda i: dy.lookup_batch(table(), i).npvalue().tolist(),
    "batch": lambda i: table().batch(i).npvalue().tolist(),
    "pick_batch": lambda i: dy.pick_batch(dy.inputTensor(np.eye(3), batched=True), i).npvalue().tolist(),
    "pickneglogsoftmax_batch": lambda i: (
        dy.pickneglogsoftmax_batch(dy.inputTensor(np.arange(9).reshape(3, 3) ** 2, batched=True), i).npvalue().tolist()
    ),
    "select_rows": lambda i: dy.select_rows(dy.inputTensor(np.arange(9).reshape(3, 3)), i).npvalue().tolist(),
    "pick_batch_elems": lambda i: dy.pick_batch_elems(dy.inputTensor(np.eye(3), batched=True), i).npvalue().tolist(),
}


def table() -> dy.LookupParameters:
    return dy.ParameterCollection().lookup_parameters_from_numpy(np.arange(12).reshape(4, 3))


@pytest.mark.parametrize("name", INDICES)
def test_indices(name: str) -> None:
    function, indices = INDICES[name], [1, 2, 0]
    wanted = function(indices)
    for same in (tuple(indices), np.array(indices), np.array(indices, np.uint8)):
        assert function(same) == wanted
    if name in ("lookup_batch", "batch"):
        assert function(Labelled(indices)) == wanted
    for other in (np.array([indices]), np.array([indices]).T, 1.5, {1: 2, 2: 0, 0: 1}, {1, 2, 0}):
        with pytest.raises(TypeError, match="a list of indices is needed"):
            function(other)


def test_indices_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    for function in INDICES.values():
        for index in ([2, 0, 1], [10, 11, 12]):
            assert function(pandas.Series([1, 2, 0], index=index)) == function([1, 2, 0])


def test_rewards_are_gone_through_by_position() -> None:
    assert dy.data.discounted_returns(Labelled([1.0, 0.0, 4.0]), 0.5) == [2.0, 2.0, 4.0]


def test_data_of_other_libraries_have_items_by_number_only() -> None:
    class Data:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> int:
            return 10 * i  # without an IndexError, so iteration does not end

    assert dy.data.hold_out(Data(), 2) == ([10, 30], [0, 20, 40])
    assert list(dy.parallel.shard(Data())) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3]])
def test_results_belong_to_their_items(results: list[int]) -> None:
    with pytest.raises(ValueError, match=f"map_batches: the function has returned {len(results)} results for 2 items"):
        dy.data.map_batches(lambda batch: results, ["a", "b"])
