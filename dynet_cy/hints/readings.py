"""Places where a program means one thing in PyTorch or NumPy and another here, without an error: one table.

Its rows are the errors of `dynet_cy.strict`, the table of docs/dynet-cy-for-pytorch-users.md, and what
``python -m dynet_cy.port`` says of a program of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple


class AmbiguityError(ValueError):
    """In strict mode, an expression would mean something else in PyTorch or NumPy; see `dynet_cy.strict`.

    Example:
        >>> A = dy.ones((2, 2))
        >>> with dy.strict():
        ...     A * A
        Traceback (most recent call last):
            ...
        dynet_cy.AmbiguityError: `*`: in PyTorch and NumPy: element by element; here: the matrix product; ...
    """


class Use(NamedTuple):
    """A use in a program: a function, method or operator with its arguments."""

    name: str
    args: tuple[Any, ...]
    """The arguments without a name."""
    given: Mapping[str, Any]
    """All arguments, by the names of the parameters; no defaults."""

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter(self.given.values()), None)


class Reading(NamedTuple):
    """A row of the table."""

    place: str
    """The use in a program."""
    there: str
    """Its meaning in PyTorch and NumPy."""
    here: str
    """Its meaning in dynet_cy."""
    write: str
    """Code for each of the two meanings."""
    names: str = ""
    """The operators, functions and methods that `differs` is asked about, separated by two spaces."""
    differs: Callable[[Use], bool] | None = None
    """Whether a use would go on in both with different results; None: only `dynet_cy.port` finds the place."""
    torch: str = ""
    """How programs of PyTorch call it: names of functions and methods (ending in a dot: before any name), or keywords
    (with ``=``), separated by spaces."""


# ---- shapes


def shape(x: object) -> tuple[int, ...]:
    """The shape of an expression, a parameter or an array; () for a number."""
    return tuple(getattr(x, "shape", ()))


def batch(x: object) -> int:
    return getattr(x, "batch_size", 1)


def long_axes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of more than one element: the others change nothing in the order of elements."""
    return tuple(n for n in sizes if n != 1)


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether shapes broadcast that are aligned at the first axis."""
    return all(m == n or 1 in (m, n) for m, n in zip(a, b))


def moves(shapes: list[tuple[int, ...]]) -> bool:
    """Whether shapes broadcast from the first axis on and from the last one, with different results."""
    for a in shapes:
        for b in shapes:
            if len(a) < len(b) and math.prod(a) > 1 and fits(a, b) and fits(a[::-1], b[::-1]):
                return True
    return False


# ---- conditions


def is_product(use: Use) -> bool:
    a, b = map(shape, use.args)
    if math.prod(a) == 1 or math.prod(b) == 1 or max(len(a), len(b)) > 2:
        return False
    columns, rows = (a + (1, 1))[1], b[0]
    outer = columns == 1 and len(a) == len(b) == 2
    return columns == rows and fits(a[::-1], b[::-1]) and not (outer and a[1] == b[0] == 1)


def has_matrices_first(use: Use) -> bool:
    a, b = map(shape, use.args)
    if max(len(a), len(b)) < 3 or min(len(a), len(b)) < 2:
        return False
    here = a[1] == b[0] and fits(a[2:], b[2:])
    return here and a[-1] == b[-2] and fits(a[-3::-1], b[-3::-1])


def broadcasts(use: Use) -> bool:
    return moves([shape(x) for x in use.given.values()])


def is_reordered(use: Use) -> bool:
    if "order" in use.given:
        return False
    sizes = use.given.get("shape", use.given.get("d"))
    sizes = sizes[0] if isinstance(sizes, tuple) and len(sizes) == 1 else sizes
    old, new = shape(use.x), tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if -1 in new and math.prod(new):
        new = tuple(-math.prod(old) // math.prod(new) if n == -1 else n for n in new)
    return long_axes(old) != long_axes(new)


def is_split_in_sections(use: Use) -> bool:
    size, sizes = use.given.get("sizes"), shape(use.x)
    axis = use.given.get("axis", 0)
    return isinstance(size, int) and len(sizes) > axis and size > 0 and sizes[axis] != size * size


def has_no_axis(use: Use) -> bool:
    return len(shape(use.x)) > 1 and "d" not in use.given and "axis" not in use.given


def has_no_axis_and_is_square(use: Use) -> bool:
    sizes = shape(use.x)
    return has_no_axis(use) and sizes[0] == sizes[-1]


def has_batch(use: Use) -> bool:
    return batch(use.x) > 1


def is_several(use: Use) -> bool:
    return len(shape(use.x)) > 1 or math.prod(shape(use.x)) * batch(use.x) != 1


def has_rows(use: Use) -> bool:
    return len(long_axes(shape(use.x))) > 1 or batch(use.x) > 1


def has_sizes_apart(use: Use) -> bool:
    sizes = use.args[1:] if use.name in ("reshape", "add_parameters", "add_lookup_parameters") else use.args
    return len(sizes) > 1 and all(isinstance(size, int) for size in sizes)


def has_no_c(use: Use) -> bool:
    return "c" not in use.given


def are_matrices(use: Use) -> bool:
    return all(len(shape(x)) > 1 for x in use.given.values())


def are_unnamed(use: Use) -> bool:
    return len(use.args) > 1


def is_one_pair(use: Use) -> bool:
    widths = use.given.get("widths")
    pair = isinstance(widths, (tuple, list)) and len(widths) == 2 and all(isinstance(n, int) for n in widths)
    return pair and len(shape(use.x)) > 1


def clips_by_default(use: Use) -> bool:
    return not use.x._clip_chosen


def is_with_a_value(use: Use) -> bool:
    return use.args[1] is not None


def always(use: Use) -> bool:
    return True


# ---- the table

# fmt: off
READINGS = (
    Reading("`A * B`, `W * x`", "element by element", "the matrix product", "`x @ y` for the matrix product, "
        "`dy.cmult(x, y)` element by element", "*", is_product, torch="*"),
    Reading("`A @ B` of three axes and more", "matrices along the last two axes", "matrices along the first two axes",
        "`dy.matmul(x, y)` for the first two axes, `dy.einsum(\"hmk,hkn->hmn\", x, y)` for the last two", "@",
        has_matrices_first, torch="bmm"),
    Reading("`X + b`, of a matrix and a vector", "adds the vector to each row (shapes align at the last axis)",
        "adds it to each column (shapes align at the first axis)",
        "`b[:, None]` for each column, `b[None]` for each row",
        "+  -  /  **  <  <=  >  >=  cmult  cdiv  bmax  bmin  pow  where  masked_fill  equal  not_equal  less  "
        "less_equal  greater  greater_equal", broadcasts, torch="+"),
    Reading("`dy.zeros(3, 4)`, `pc.add_parameters(3, 4)`", "a matrix of 3 rows and 4 columns",
        "a vector of 3 elements; the second number is another argument",
        "a tuple for the shape, `(3, 4)` or `(3,)`, and the name of the other argument, such as `batch_size=4`",
        "zeros  zeroes  ones  reshape  random_normal  random_uniform  random_bernoulli  random_gumbel  "
        "ParameterCollection.add_parameters  ParameterCollection.add_lookup_parameters", has_sizes_apart,
        torch="zeros ones randn rand"),
    Reading("`x.reshape(shape)`, `x.view(shape)`", "by rows", "by columns",
        "`order=\"F\"` by columns, `order=\"C\"` by rows; of an image, `dy.nn.Flatten()(x)`",
        "Expression.reshape  reshape", is_reordered, torch="view reshape ravel view_as"),
    Reading("`torch.flatten(x, 1)` of an image, `nn.Flatten`", "by channels, each one by rows",
        "`reshape` of (rows, columns, channels) has another order, both with `order=\"F\"` and with `order=\"C\"`",
        "`dy.nn.Flatten()(x)`, or `dy.transpose(x, [2, 0, 1]).reshape((n,), order=\"C\")`; of a matrix or vector, "
        "`order=\"C\"`", torch="flatten Flatten"),
    Reading("`dy.softmax(X)` of a matrix, and others without an axis", "along the last axis, or over all elements",
        "along the first axis, in each column", "`d=0` (or `axis=0`) for each column, `d=1` for each row",
        "softmax  log_softmax  softmin  gumbel_softmax  cumsum  cumprod  logcumsumexp  sort  argsort  topk  max_dim  "
        "min_dim  logsumexp_dim  normalize  cosine_similarity", has_no_axis,
        torch="softmax log_softmax softmin cumsum cumprod sort argsort topk normalize cosine_similarity"),
    Reading("`dy.cross_entropy(X, ids)`, `dy.layer_norm(X, g, b)` of a square matrix",
        "an example in each row, its classes or features along the last axis",
        "an example in each column, its classes or features along the first axis",
        "`axis=0` for columns, `axis=1` for rows",
        "cross_entropy  focal_loss  layer_norm  rms_norm  batch_norm  batch_moments  group_norm",
        has_no_axis_and_is_square,
        torch="cross_entropy CrossEntropyLoss layer_norm LayerNorm batch_norm BatchNorm1d BatchNorm2d"),
    Reading("`x[i]` of a batch", "an element of the batch, the first axis", "within each element of the batch",
        "`dy.pick(x, i)` or `dy.pick_range(x, a, b)` within each element, `dy.pick_batch_elem(x, i)` for an element of "
        "the batch", "x[i]", has_batch),
    Reading("`len(x)`, `for y in x` of a batch", "the elements of the batch, the first axis",
        "the first axis of each element of the batch", "`x.shape[0]`, or `x.batch_size`", "len(x)  for x", has_batch),
    Reading("`x.sum()`, `x.mean(0)` and others of a batch", "over the batch too, as an axis",
        "within each element of the batch", "`dy.sum_elems(x)`, `dy.mean_elems(x)`, `dy.sum_dim(x, [axis])`, "
        "`dy.max_dim(x, axis)` within each element; then `dy.sum_batches`, `dy.mean_batches` over the batch",
        "Expression.sum  Expression.mean  Expression.max  Expression.min", has_batch),
    Reading("`loss.backward()` of a batch of losses", "an error, or of their mean where a loss takes it by default",
        "of their sum", "`dy.sum_batches(loss).backward()` or `dy.mean_batches(loss).backward()`",
        "Expression.backward", has_batch,
        torch="mse_loss MSELoss l1_loss L1Loss smooth_l1_loss SmoothL1Loss nll_loss NLLLoss binary_cross_entropy "
        "BCELoss binary_cross_entropy_with_logits BCEWithLogitsLoss"),
    Reading("`x.value()`", "an array", "a float for one element, a flat list for a vector or a batch, else an array",
        "`x.item()` for a number, `x.npvalue()` for an array, `x.vec_value()` for a list", "Expression.value",
        is_several),
    Reading("`x.vec_value()` of a matrix or a batch", "by rows, as `tolist` and `ravel`", "by columns, the batch last",
        "`x.npvalue().ravel(order=\"F\")` by columns, `x.npvalue().ravel()` by rows", "Expression.vec_value", has_rows,
        torch="tolist"),
    Reading("`if x:`", "whether the value is not 0", "always true", "`if x.item() != 0:`, or `if x is not None:`",
        "if x", always),
    Reading("`x == y`, `x != y`", "element by element", "whether they are the same object",
        "`dy.equal(x, y)`, `dy.not_equal(x, y)`, `x is y`, or `x.item() == 1` for a value", "==",
        is_with_a_value,
        torch="== !="),
    Reading("`np.sum(losses)`, `np.array(losses)` of expressions to train", "an error (they require gradients)",
        "their values, through which nothing is trained",
        "`dy.esum(losses)`, `dy.concatenate(losses)`; `[e.item() for e in losses]` for the values", "np.array", always),
    Reading("`dy.split(x, n)`", "parts of n elements in PyTorch, n parts in NumPy", "parts of n elements",
        "a list of the sizes", "split", is_split_in_sections),
    Reading("`dy.dot_product(A, B)` of matrices", "`np.dot` is the matrix product",
        "the sum of all products, one number",
        "`x @ y` for the matrix product, `dy.sum_elems(dy.cmult(x, y))` for the sum", "dot_product", are_matrices,
        torch="dot"),
    Reading("`dy.pad(X, (a, b))` of a matrix", "pads the last axis in PyTorch, all axes in NumPy", "pads all axes",
        "a pair for each axis, `[(0, 0), (a, b)]`", "pad", is_one_pair, torch="pad"),
    Reading("`dy.kl_divergence(a, b)`", "`F.kl_div(log_q, p)` has the approximation first",
        "the true distribution first, `kl_divergence(log_p, log_q)`", "the names, `log_p=` and `log_q=`",
        "kl_divergence", are_unnamed, torch="kl_div KLDivLoss"),
    Reading("`dy.huber_distance(x, y)`", "quadratic up to 1", "quadratic up to 1.345", "`c=1` or `c=1.345`",
        "huber  huber_distance", has_no_c, torch="huber_loss HuberLoss smooth_l1_loss SmoothL1Loss"),
    Reading("`dy.AdamTrainer(pc)`, `trainer.update()`", "no clipping of gradients",
        "the norm of all gradients is clipped to 5",
        "`trainer.set_clip_threshold(0)` for no clipping, `trainer.set_clip_threshold(5)` for that",
        "Trainer.update  Trainer.update_subset", clips_by_default, torch="optim."),
    Reading("`F.dropout(x, p, training)`", "only in training", "at each call; layers of `dy.nn` only in training",
        "`dy.dropout(x, p)` under `if training:`, or the layer `dy.nn.Dropout(p)`", torch="dropout"),
    Reading("`x.std()`", "divides by n - 1 (PyTorch), by n (NumPy)", "`dy.std_elems(x)` divides by n",
        "`dy.std_elems(x) * (n / (n - 1)) ** 0.5` for n - 1", torch="std var"),
    Reading("`torch.round(x)`", "halves to the even number", "`dy.round(x)` rounds halves up",
        "`dy.round(x)`, where halves do not matter", torch="round"),
    Reading("`torch.argmax(x)`", "a position", "`dy.argmax(x, gradient_mode)` is a vector with a 1 there",
        "`dy.argmax(x)` for the position, as an expression", torch="argmax"),
    Reading("`x.dim()`", "the number of axes", "the shape and the batch size, `((3, 4), 1)`", "`len(x.shape)`",
        torch="dim ndimension"),
    Reading("`torch.tensor(rows)` of a minibatch", "the batch is the first axis",
        "the batch is no axis; in arrays it is the last one",
        "one example at a time (they are batched automatically), or `dy.inputTensor(array, batched=True)` with the "
        "batch last", torch="DataLoader"),
    Reading("`nn.Linear(n, m)` of a matrix, `nn.LSTM`", "an example or a word in each row",
        "a word in each column; `dy.nn.Linear(n, m, pc)` multiplies the first axis", "the transpose, `x.T`",
        torch="Linear MultiheadAttention TransformerEncoder"),
    Reading("images, `nn.Conv2d`", "(channels, rows, columns)", "(rows, columns, channels)",
        "`dy.inputTensor(image.transpose(1, 2, 0))`", torch="Conv2d conv2d max_pool2d MaxPool2d avg_pool2d AvgPool2d"),
    Reading("`weight_decay=d`", "`AdamW` and plain `SGD` take the learning rate times d from each weight in an update; "
        "`Adam` and others add d times the weight to the gradient",
        "`pc.set_weight_decay(d)` takes d, whatever the learning rate",
        "`dy.AdamWTrainer(pc, weight_decay=d)` for `AdamW`, `pc.set_weight_decay(d * rate)` for `SGD`; for `Adam`, add "
        "`0.5 * d * dy.squared_norm(W)` to the loss", torch="weight_decay="),
    Reading("`nn.Embedding`, biases", "values of N(0, 1); biases of a uniform distribution",
        "`add_lookup_parameters` and `add_parameters` start from small uniform numbers (Glorot), biases too",
        "`dy.nn.Embedding(v, n, pc)`, which has N(0, 1) too; else `init=dy.NormalInitializer(0, 1)`, `init=0`",
        torch="Embedding"),
)
# fmt: on


def by_name() -> dict[str, list[Reading]]:
    """The rows that concern each operator, function and method."""
    found: dict[str, list[Reading]] = {}
    for row in READINGS:
        for name in row.names.split("  ") if row.names else ():
            found.setdefault(name, []).append(row)
    return found


def check(rows: list[Reading], use: Use) -> None:
    """Raise if one of the rows applies to a use.

    Raises:
        AmbiguityError: PyTorch or NumPy would go on with other numbers.
    """
    for row in rows:
        if row.differs is not None and row.differs(use):
            raise AmbiguityError(
                f"`{use.name}`: in PyTorch and NumPy: {row.there}; here: {row.here}; write {row.write} (strict mode)"
                + "".join(operands(use))
            )


def operands(use: Use) -> Iterator[str]:
    """A line for each argument with a shape, as in errors of ops."""
    for name, x in use.given.items():
        if shape(x):
            sizes = "{" + ",".join(map(str, shape(x))) + "}"
            yield f"\n    {name}  {sizes}" + (f" x {batch(x)}" if batch(x) > 1 else "")
