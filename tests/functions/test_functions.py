"""Functions composed of ops: what the tables of cases cannot express, and errors."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import functions
from dynet_cy.ops.registry import DimensionError

A = np.arange(12.0).reshape(4, 3) / 8


def gradient(f, *arrays):
    """The gradient of the sum of f with respect to its first argument."""
    xs = [dy.inputTensor(a) for a in arrays]
    f(*xs).sum().backward(full=True)
    return xs[0].gradient()


def test_no_builtin_is_hidden_but_dynets_own() -> None:
    import builtins

    assert [name for name in dy.__all__ if hasattr(builtins, name)] == ["abs", "pow", "round"]


@pytest.mark.parametrize("name", functions.__all__)
def test_docstrings(name: str) -> None:
    """Every function has a summary line, and lists its errors if it raises any."""
    f = getattr(dy, name)
    doc = inspect.getdoc(f)
    assert doc
    assert doc.split("\n")[0].endswith((".", "`."))
    if "raise " in inspect.getsource(f):
        assert "Raises:" in doc


def test_norms_of_zeros_have_a_gradient_of_zeros(graph) -> None:
    for p in (1, 2, 3, 2.5, math.inf):
        x = dy.zeros((3, 2))
        y = dy.norm(x, p, 0)
        assert y.value() == [0, 0]
        np.testing.assert_array_equal(gradient(lambda e, p=p: dy.norm(e, p, 0), np.zeros((3, 2))) * (p != math.inf), 0)
    for f in (dy.normalize, lambda e: dy.clip_norm(e, 1), lambda e: dy.cosine_similarity(e, dy.ones(3)), dy.rms_norm):
        assert np.isfinite(gradient(f, np.zeros(3))).all()


def test_draws_of_gumbel_softmax(graph) -> None:
    scores = dy.inputVector(np.log([0.1, 0.2, 0.7]))
    draws = dy.gumbel_softmax(scores * dy.ones((1, 2000)), 0.5, hard=True)
    value = draws.npvalue()
    assert set(np.unique(value)) == {0.0, 1.0}
    np.testing.assert_array_equal(value.sum(0), 1)
    np.testing.assert_allclose(value.mean(1), [0.1, 0.2, 0.7], atol=0.05)
    x = dy.inputVector([1, 2, 3])
    y = dy.gumbel_softmax(x, 1.0, hard=True)
    dy.dot_product(y, dy.inputVector([1, 2, 4])).backward(full=True)
    assert np.abs(x.gradient()).min() > 0
    np.testing.assert_allclose(x.gradient().sum(), 0, atol=1e-6)


def test_sentences_of_all_lengths_run_together(graph) -> None:
    """Sums over sentences of all lengths run as one call."""
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    rest = [model.parameters_from_numpy(rng.normal(size=s)) for s in ((4, 4), (4,), (4,))]
    lengths = [3, 7, 1, 7, 5, 2]
    sentences = [rng.normal(size=(4, n)) for n in lengths]
    tags = [rng.integers(0, 4, n) for n in lengths]
    found = []
    for batching in (0, 1):
        graph = dy.renew_cg(autobatching=batching)
        losses = [dy.crf_log_partition(dy.inputTensor(x), *rest) for x in sentences]
        dy.esum(losses).backward()
        found.append((dy.values(losses), [p.grad_as_array() for p in rest], graph.n_batches()))
        model.zero_gradients()
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    all_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)
    assert found[0][2] == len(lengths) + 1
    assert found[1][2] == 2
    dy.renew_cg()
    total = dy.esum([dy.crf_loss(dy.inputTensor(x), y, *rest) for x, y in zip(sentences, tags)])
    assert total.value() > 0


def test_many_labels(graph) -> None:
    """3,000 different labels in as many frames have one alignment; memory and time are those of 18 million scores."""
    n = 3000
    labels = 1 + np.arange(n) % 2
    scores = np.random.default_rng(0).uniform(-3, 0, (3, n)).astype(np.float32)
    x = dy.inputTensor(scores) * 1
    loss = dy.ctc_loss(x, labels)
    exact = scores[labels, np.arange(n)].sum(dtype=np.float64)
    assert loss.value() == pytest.approx(-exact, rel=1e-6)
    loss.backward(full=True)
    desired = np.zeros_like(scores)
    desired[labels, np.arange(n)] = -1
    np.testing.assert_allclose(x.gradient(), desired, atol=1e-5)


def test_labels_that_are_values_of_the_graph(graph) -> None:
    """As those of a list, also in a batch; the loss is infinite, without a gradient, where there are too few frames."""
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 4, (6, 3))
    scores = rng.uniform(-3, 0, (4, 12, 3))
    batch = dy.ctc_loss(dy.inputTensor(scores, batched=True), dy.input_indices(labels, batched=True))
    for k, found in enumerate(batch.npvalue().ravel()):
        assert found == pytest.approx(dy.ctc_loss(dy.inputTensor(scores[..., k]), labels[:, k].tolist()).value())
    x = dy.inputTensor(scores[:, :3, 0]) * 1
    loss = dy.ctc_loss(x, dy.inputVector([2, 2, 1]))
    assert loss.value() == np.inf
    loss.backward(full=True)
    np.testing.assert_array_equal(x.gradient(), 0)
    wrong = {4: "the index is 4 at element 1; .*from 0 to 3", 0: "the blank, 0, is among the labels, at element 1"}
    for bad, says in wrong.items():
        for made in (dy.input_indices, dy.inputVector):
            with pytest.raises(IndexError, match=f"^ctc_loss: {says}"):
                dy.ctc_loss(x, made([1, bad])).value()
    with pytest.raises(IndexError, match="^ctc_loss: the index is 1.5 at element 0"):
        dy.ctc_loss(x, dy.inputVector([1.5, 0])).value()


def test_sequences_of_all_lengths_run_together(graph) -> None:
    rng = np.random.default_rng(0)
    cases = [(frames, list(rng.integers(1, 4, frames // 2))) for frames in (4, 9, 4, 20)]
    scores = [rng.uniform(-3, 0, (4, frames)) for frames, _ in cases]
    found = []
    for batching in (0, 1):
        dy.renew_cg(autobatching=batching)
        xs = [dy.inputTensor(x) * 1 for x in scores]
        losses = [dy.ctc_loss(x, labels) for x, (_, labels) in zip(xs, cases)]
        dy.esum(losses).backward(full=True)
        found.append([*map(np.atleast_1d, dy.values(losses)), *(x.gradient() for x in xs)])
    all_close(*found, rtol=1e-5, atol=1e-6)


def test_straight_through(graph) -> None:
    p = dy.inputVector([0.2, 0.9])
    y = dy.straight_through(p > 0.5, p)
    assert y.value() == [0, 1]
    y.sum().backward(full=True)
    np.testing.assert_array_equal(p.gradient(), [1, 1])


def test_sorting_equal_numbers_and_nan(graph) -> None:
    x = dy.inputVector([2, 1, math.nan, 1, 2])
    assert dy.argsort(x).value() == [1, 3, 0, 4, 2]
    assert dy.argsort(x, descending=True).value() == [0, 4, 1, 3, 2]
    np.testing.assert_array_equal(dy.sort(x).npvalue(), [1, 1, 2, 2, math.nan])
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 17, 100, 1000):
        a = rng.integers(0, 9, n).astype(float)
        np.testing.assert_array_equal(dy.argsort(dy.inputVector(a)).npvalue(), np.argsort(a, kind="stable"))


def test_more_places_than_a_node_holds(graph) -> None:
    rng = np.random.default_rng(1)
    n = 4_200_000
    a, places = rng.normal(size=1000), rng.integers(0, 1000, n)
    y = dy.gather(dy.inputVector(a), places)
    np.testing.assert_allclose(y.npvalue(), a[places], rtol=1e-6)
    counts = dy.scatter_rows(dy.ones(n), places, 1000)
    np.testing.assert_array_equal(counts.npvalue(), np.bincount(places, minlength=1000))


def test_kl_divergence_of_impossible_classes(graph) -> None:
    p = dy.log(dy.inputVector([0.5, 0.5, 0.0]))
    q = dy.log(dy.inputVector([0.25, 0.75, 0.0]))
    assert dy.kl_divergence(p, q).value() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)


def test_cross_entropy_is_that_of_dynet(graph) -> None:
    x = dy.inputTensor(A)
    each = [dy.pickneglogsoftmax(x[:, i], t).value() for i, t in enumerate([2, 0, 3])]
    np.testing.assert_allclose(dy.cross_entropy(x, [2, 0, 3], reduction="none").value(), each, rtol=1e-6)
    assert dy.cross_entropy(x[:, 0], np.int64(2)).item() == pytest.approx(each[0], rel=1e-6)


def x43():
    return dy.inputTensor(A)


def field():
    return dy.ones((4, 4)), dy.ones(4), dy.ones(4)


WRONG = {
    "norm-p": (lambda: dy.norm(x43(), 0.5), ValueError, "norm: p must be at least 1, not 0.5"),
    "norm-type": (lambda: dy.norm(A), TypeError, "norm: x must be an Expression, not ndarray"),
    "cross_entropy-list": (
        lambda: dy.cross_entropy([dy.ones(3)] * 2, [0, 1]),
        TypeError,
        "cross_entropy: x must be an Expression, not list; join them with dy.concatenate_cols",
    ),
    "cross_entropy-texts": (
        lambda: dy.cross_entropy(dy.ones((3, 2)), ["a", "b"]),
        TypeError,
        "cross_entropy: targets must be whole numbers, not texts",
    ),
    "norm-empty": (lambda: dy.norm(dy.zeros((0, 3)), math.inf), DimensionError, "norm: x has no elements"),
    "norm-axis": (lambda: dy.norm(x43(), 2, 2), DimensionError, "norm: there is no axis 2"),
    "normalize-eps": (lambda: dy.normalize(x43(), eps=0), ValueError, "normalize: eps must be a number above 0"),
    "clip_norm": (lambda: dy.clip_norm(x43(), -1), ValueError, "clip_norm: max_norm must be a number above 0, not -1"),
    "rms_norm": (lambda: dy.rms_norm(x43(), dy.ones(3)), DimensionError, "rms_norm: g has shape .3,., but x has 4"),
    "group_norm": (lambda: dy.group_norm(x43(), 2), DimensionError, "3 channels cannot be divided into 2 groups"),
    "stack-empty": (lambda: dy.stack([]), ValueError, "stack: the list of expressions is empty"),
    "stack-shapes": (lambda: dy.stack([x43(), dy.ones(4)]), DimensionError, r"xs\[1\] has shape"),
    "stack-axis": (lambda: dy.stack([x43()], 3), DimensionError, "stack: axis is 3, but the result has 3 axes"),
    "split": (lambda: dy.split(x43(), [1, 2]), DimensionError, "do not add up to the 4 elements along axis 0"),
    "split-0": (lambda: dy.split(x43(), 0), DimensionError, "split: parts must have at least one element"),
    "pad": (lambda: dy.pad(x43(), [(0, 0)] * 3), DimensionError, "are no pairs for each of 2 axes"),
    "pad-negative": (lambda: dy.pad(x43(), -1), ValueError, "pad: widths must be whole numbers of at least 0"),
    "outer": (lambda: dy.outer(x43(), dy.ones(2)), DimensionError, "outer: x must be a vector"),
    "arange": (lambda: dy.arange(0, 3, 0), ValueError, "arange: step must not be 0"),
    "arange-large": (lambda: dy.arange(2**63), ValueError, r"9223372036854775808 is more than 2147483647 steps of 1"),
    "arange-float": (lambda: dy.arange(0, 1, 1e-300), ValueError, "arange: 1 is more than 2147483647 steps of 1e-300"),
    "arange-nan": (lambda: dy.arange(float("nan")), ValueError, "arange: start, stop and step must be finite"),
    "arange-down": (lambda: dy.arange(0, -(2**40), -1), ValueError, "more than 2147483647 steps of -1 from 0"),
    "eye": (lambda: dy.eye(2**31 - 1), ValueError, "eye: 2147483647 x 2147483647 is too large"),
    "eye-axis": (lambda: dy.eye(2, 2**31), ValueError, "eye: m must be from 0 to 2147483647"),
    "eye-float": (lambda: dy.eye(1.5), TypeError, "eye: n must be a whole number, not 1.5"),
    "gather-index": (lambda: dy.gather(x43(), [[4, 0, 0]]), IndexError, "gather: index 4 is not within axis 0"),
    "gather-shape": (lambda: dy.gather(x43(), [[1, 0]]), DimensionError, "gather: indices have shape"),
    "gather-floats": (lambda: dy.gather(x43(), [[0.5]]), TypeError, "gather: indices must be whole numbers"),
    "scatter-twice": (
        lambda: dy.scatter(x43(), [[0, 0, 0], [0, 1, 1]], dy.ones((2, 3))),
        ValueError,
        "scatter: a position is repeated",
    ),
    "scatter-source": (lambda: dy.scatter_add(x43(), [[0, 0, 0]], dy.ones(3)), DimensionError, "the source has shape"),
    "scatter_rows": (lambda: dy.scatter_rows(dy.ones(2), [0, 2], 2), IndexError, "index 2 is not from 0 to 1"),
    "scatter_cols-vector": (lambda: dy.scatter_cols(dy.ones(2), [0, 1], 2), DimensionError, "x must have 2 columns"),
    "scatter_cols-count": (lambda: dy.scatter_cols(x43(), [0, 1], 2), DimensionError, "x must have 2 columns"),
    "scatter_cols-none": (lambda: dy.scatter_cols(x43(), [], 2), DimensionError, "but there are no positions"),
    "index_add": (
        lambda: dy.index_add(x43(), [0, 1], dy.ones((4, 3)), axis=1),
        DimensionError,
        r"with 2 indices along axis 1 the source needs \(4, 2\)",
    ),
    "index_add-axis": (lambda: dy.index_add(dy.ones(2), [0], dy.ones(1), axis=1), DimensionError, "index_add"),
    "einsum-letters": (lambda: dy.einsum("ijk->", x43()), DimensionError, "'ijk' has 3 letters but"),
    "einsum-sizes": (
        lambda: dy.einsum("ij,ij->", x43(), dy.ones((4, 2))),
        DimensionError,
        "axis j has 3 elements, but 2",
    ),
    "einsum-number": (lambda: dy.einsum("ij,jk->ik", x43()), ValueError, "is for 2 expressions, 1 are given"),
    "einsum-spec": (lambda: dy.einsum("i...->i", x43()), ValueError, "the result of 'i...->i' must have ... too"),
    "einsum-letter": (lambda: dy.einsum("i1->i", x43()), ValueError, "must consist of letters, commas and ->"),
    "einsum-axes": (
        lambda: dy.einsum("i...,...->i...", x43(), x43()),
        DimensionError,
        r"stands for \[1, 2\] axes",
    ),
    "einsum-result": (lambda: dy.einsum("ij->ik", x43()), ValueError, "must have letters of the expressions"),
    "sort": (lambda: dy.sort(x43(), 2), DimensionError, "sort"),
    "topk": (lambda: dy.topk(x43(), 5), DimensionError, "k is 5, but axis 0 of x has 4 elements"),
    "topk-negative": (lambda: dy.topk(x43(), -1), DimensionError, "topk: k must be a number of elements, not -1"),
    "cumprod": (lambda: dy.cumprod(x43(), -3), DimensionError, "cumprod: d is -3, but x has 2 axes"),
    "logcumsumexp": (lambda: dy.logcumsumexp(x43(), -3), DimensionError, "logcumsumexp: d is -3, but x has 2 axes"),
    "prod": (lambda: dy.prod(x43(), [0, 2]), DimensionError, "prod: axis is 2, but x has 2 axes"),
    "prod-float": (lambda: dy.prod(x43(), 1.0), TypeError, "prod: axis must be a whole number, not 1.0"),
    "cross_entropy-class": (lambda: dy.cross_entropy(x43(), [0, 1, 4]), IndexError, "class 4 is not from 0 to 3"),
    "cross_entropy-large": (
        lambda: dy.cross_entropy(x43(), [0, 1, 2**63]),
        IndexError,
        "cross_entropy: targets has 9223372036854775808, but an axis can have 2147483647 elements",
    ),
    "cross_entropy-floats": (
        lambda: dy.cross_entropy(x43(), [0.5, 1, 2.0**63]),
        DimensionError,
        "cross_entropy: targets have shape .3,., x has",
    ),
    "cross_entropy-shape": (lambda: dy.cross_entropy(x43(), [0, 1]), DimensionError, "targets have shape"),
    "cross_entropy-none": (
        lambda: dy.cross_entropy(x43(), [-1] * 3, ignore_index=-1),
        ValueError,
        "no position counts, so there is no mean",
    ),
    "cross_entropy-reduction": (
        lambda: dy.cross_entropy(x43(), [0] * 3, reduction="all"),
        ValueError,
        'reduction must be "mean", "sum" or "none"',
    ),
    "cross_entropy-weights": (
        lambda: dy.cross_entropy(x43(), [0] * 3, weights=[1, 2]),
        DimensionError,
        "but there are 4 classes",
    ),
    "cross_entropy-smoothing": (
        lambda: dy.cross_entropy(x43(), [0] * 3, 0, 2),
        ValueError,
        "must be from 0 to 1, not 2",
    ),
    "focal_loss": (lambda: dy.focal_loss(x43(), [0] * 3, -1), ValueError, "focal_loss: gamma must be at least 0"),
    "gumbel_softmax": (lambda: dy.gumbel_softmax(x43(), 0), ValueError, "temperature must be a number above 0, not 0"),
    "triplet_loss": (lambda: dy.triplet_loss(x43(), x43(), None), TypeError, "triplet_loss: negative must be"),
    "crf_tags": (lambda: dy.crf_loss(x43(), [0, 1], *field()), DimensionError, "2 tags are given for 3 words"),
    "crf_tag": (lambda: dy.crf_loss(x43(), [0, 1, 4], *field()), IndexError, "tag 4 is not from 0 to 3"),
    "crf_transitions": (lambda: dy.crf_viterbi(x43(), dy.ones((3, 4)), *field()[1:]), DimensionError, "of 4 x 4"),
    "crf_start": (
        lambda: dy.crf_marginals(x43(), field()[0], dy.ones(3), dy.ones(4)),
        DimensionError,
        "start must have",
    ),
    "chain_states": (lambda: dy.label_chain(x43(), [0, 0]), DimensionError, "skips has 2 elements for 4 states"),
    "chain_frames": (lambda: dy.label_chain(dy.zeros((2, 2, 2)), [0, 0]), DimensionError, "a column for each frame"),
    "ctc_blank": (lambda: dy.ctc_loss(x43(), [1, 0]), ValueError, "the blank, 0, is among the labels"),
    "ctc_frames": (lambda: dy.ctc_loss(x43(), [1, 1, 2]), ValueError, "3 labels need 4 frames, there are 3"),
    "ctc_class": (lambda: dy.ctc_loss(x43(), [4]), IndexError, "labels has 4, which is not from 0 to 3"),
    "where": (lambda: dy.where("a", 1, 2), TypeError, "where: condition must be an Expression, a number or an array"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str, graph) -> None:
    build, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        build()
    assert dy.ones(2).value() == [1, 1]


def test_cross_entropy_of_one_label_is_one_node() -> None:
    x = dy.inputVector([1, 2, 3])
    before = len(dy.cg())
    loss = dy.cross_entropy(x, 2)
    assert len(dy.cg()) == before + 1
    assert loss.value() == pytest.approx(dy.pickneglogsoftmax(x, 2).value(), rel=1e-6)


def test_errors_name_what_was_meant() -> None:
    x = dy.inputVector([1, 2])
    with pytest.raises(TypeError, match=r"concatenate: xs is a list of all expressions: concatenate\(\[x, y\]\)"):
        dy.concatenate(x, x)
    with pytest.raises(dy.DimensionError, match="b has 2 rows; element by element: cmult"):
        x * x
    with pytest.raises(dy.DimensionError, match="b has 2 rows(?!;)"):
        dy.ones((3, 3)) * x
