"""User-defined ops.

A definition has an entry in the registry, like every op.  The functions of that entry are those of this module, which
take the GIL and call the program's functions with arrays.  The attributes of a node give its definition and parameters.
The gradients of all arguments are computed at once, before locks are taken (`prepare`), and added without the GIL.
On devices a definition runs as kernels, if it has a CUDA source (gpu/custom).
"""

import inspect
import struct

import numpy as np

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport DY_ATTRS, Attr, Call, Dim, Tensor, total_of
from dynet_cy.core.threads cimport FE_DFL_ENV, Unlocked, acquire_lock, fegetenv, fenv_t, fesetenv, release_lock
from dynet_cy.graph.table cimport current_graph
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply
from dynet_cy.graph.structs cimport Extra, Graph, no_extra
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.bridge cimport array_of, copy_floats, dim_from_shape, floats_in, shape_of
from dynet_cy.ops.registry cimport Op, Shapes, register_nameless, same_dim

from dynet_cy.ops.cuda_source import source_of
from dynet_cy.ops.registry import DimensionError, describe


cdef extern from *:
    # The exception of the last call in this thread.
    "static _Thread_local void *dy_raised_here = NULL;"
    void* raised_here "dy_raised_here"

# Never freed: nodes refer to definitions by number, and their registry entries point to their names.
cdef list definitions = []
cdef Unlocked definitions_lock      # also guards their parameters
# Never freed: the kernels in CUDA of all ops that have some, and what is called with each of them.
cdef list all_kernels = []
cdef Served served_on_devices = NULL


cdef str ANY_NUMBER = "kernels in CUDA take a fixed number of arguments, but the op takes any number"


cdef class _Kernels:
    """See custom.pxd."""


cdef class _Definition:
    """A user-defined op, which is called like the functions of other ops."""

    def __call__(self, *xs, **parameters):
        if self.n_arguments >= 0 and len(xs) != self.n_arguments:
            raise TypeError(f"{self.name} takes {self.n_arguments} expressions ({self.c_args.decode()}), not {len(xs)}")
        if not xs:
            raise TypeError(f"{self.name} takes at least one expression")
        for i, x in enumerate(xs):
            if not isinstance(x, Expression):
                raise TypeError(
                    f"{self.name}: argument {self.argument(i)} must be an Expression, not {type(x).__name__}")
        cdef Extra extra = no_extra()
        extra.attrs[DEFINITION].u = self.number
        extra.attrs[PARAMETERS].u = self.number_of(parameters)
        if self.kernels is not None:
            self.set_numbers(extra.attrs[PARAMETERS].u, &extra.attrs[<int>NUMBERS])
        return apply(self.op, xs, &extra)

    cdef object argument(self, uint32_t i):
        """The name of an expression that it takes; `xs[2]` of those of `*xs`."""
        cdef list names = self.c_args.decode().split()
        if i < <uint32_t>len(names) and not names[i].endswith("..."):
            return names[i]
        return f"{names[-1][:-3]}[{i - len(names) + 1}]"

    cdef uint32_t number_of(self, dict keywords) except? 0xFFFFFFFF:
        """The index of a set of keyword arguments; nodes with equal ones run together."""
        if not keywords:
            return 0
        # 1, 1.0 and True are equal, but functions may take them differently.
        key = tuple([(name, type(keywords[name]), keywords[name]) for name in sorted(keywords)])
        try:
            found = self.numbers.get(key)
        except TypeError:
            raise TypeError(f"{self.name}: values given by keyword must be hashable, not {keywords!r:.200}") from None
        if found is None:
            self.check_keywords(keywords)
            acquire_lock(&definitions_lock)
            try:
                found = self.numbers.setdefault(key, len(self.parameters))
                if found == len(self.parameters):
                    self.parameters.append(dict(keywords))
            finally:
                release_lock(&definitions_lock)
        return found

    cdef int set_numbers(self, uint32_t number, Attr* to) except -1:
        """Let a node point to the numbers that kernels get for a set of keyword arguments, which are never freed."""
        cdef const char* p
        cdef bytes packed = self.packed.get(number)
        if packed is None:
            values = {**self.defaults, **self.parameters[number]}
            for name, value in values.items():
                if not isinstance(value, (int, float, np.number, np.bool_)):
                    raise TypeError(f"{self.name}: kernels in CUDA get {name} as a number, which "
                                    + ("is not given" if value is inspect.Parameter.empty else f"{value!r:.80} is not"))
            packed = self.packed.setdefault(number, struct.pack(f"{len(values)}d", *values.values()))
        p = packed
        memcpy(to, &p, sizeof(p))
        return 0

    cdef int check_keywords(self, dict keywords) except -1:
        for what, function in (("forward", self.forward), ("backward", self.backward), ("shape", self.shape)):
            taken = keywords_of(function) if function is not None else None
            for name in keywords:
                if taken is not None and name not in taken:
                    raise TypeError(f"{self.name}: {what} takes no argument {name} by keyword")
        return 0

    def __repr__(self):
        return f"<custom op {self.name}({self.c_args.decode()})>"


cdef inline _Definition definition_of(uint32_t number):
    return <_Definition>definitions[number]


def _positional(function, str name, str what):
    """Names of the positional arguments of a function that have no default; "xs..." if it takes any number."""
    if isinstance(function, np.ufunc):
        return [f"x{i}" for i in range(function.nin)]
    try:
        params = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise TypeError(f"custom_op {name}: {what} must be a function with a signature, not "
                        f"{function!r:.80}") from None
    found = [p.name for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return found + [p.name + "..." for p in params if p.kind == p.VAR_POSITIONAL]


cdef object keywords_of(function):
    """Names of a function's keyword arguments; None if it accepts any."""
    if isinstance(function, np.ufunc):
        return set()
    params = inspect.signature(function).parameters.values()
    if any(p.kind == p.VAR_KEYWORD for p in params):
        return None
    return {p.name for p in params if p.kind == p.KEYWORD_ONLY}


cdef dict defaults_of(function):
    """The keyword-only arguments of a function, in order, with their defaults."""
    if isinstance(function, np.ufunc):
        return {}
    params = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in params if p.kind == p.KEYWORD_ONLY}


cdef object shape_given(_Definition d, list shapes, dict parameters):
    """The result of the program's function, which must not change the graph, to which a node is being added."""
    cdef Graph* g = current_graph()
    cdef uint64_t version = g.version
    cdef uint32_t n_nodes = g.n_nodes
    try:
        return d.shape(*shapes, **parameters)
    finally:
        if g.version != version or g.n_nodes != n_nodes:
            raise RuntimeError(f"{d.name}: the graph changed while shape ran, which must only compute a shape")


cdef int custom_dim(const Shapes* s, Dim* y) except -1:
    cdef _Definition d = definition_of(s.attrs[DEFINITION].u)
    if d.shape is None:
        same_dim(s, y)
    else:
        ask_for_shape(d, s, y)
    if d.kernels is not None and d.kernels.source.elementwise:
        check_repeats(d, s, y)
    return 0


cdef int ask_for_shape(_Definition d, const Shapes* s, Dim* y) except -1:
    cdef uint32_t bd = y.bd
    cdef uint32_t i
    shapes = [shape_of(s.x[i]) for i in range(s.n)]
    try:
        found = shape_given(d, shapes, <dict>d.parameters[s.attrs[PARAMETERS].u])
        sizes = found if isinstance(found, (tuple, list)) else (found,)
        if not all(hasattr(n, "__index__") for n in sizes):
            raise TypeError(f"{d.name}: shape returned {found!r:.80}, expected a tuple of whole numbers")
        dim_from_shape(tuple(sizes), y, "what shape returns")
    except DimensionError:
        raise
    except ValueError as error:                 # a DimensionError also lists the arguments
        raise DimensionError(str(error)) from None
    y.bd = bd
    return 0


cdef int check_repeats(_Definition d, const Shapes* s, const Dim* y) except -1:
    """Raise unless all arguments, with axes of length 1 repeated as in NumPy, have the shape of the result."""
    cdef uint32_t i
    for i in range(s.n):
        if not repeats(s.x[i], y):
            raise DimensionError(f"an expression in CUDA computes each element of the result {shape_of(y)}, but "
                                 f"argument {d.argument(i)} has shape {shape_of(s.x[i])}")
    return 0


# ---- calls of the program's functions -------------------------------------------------

cdef object array_at(const Tensor* x):
    """A copy of a tensor as an array whose last axis is the batch."""
    return array_of(x.v, (*shape_of(&x.dim), x.dim.bd))


cdef int write(result, _Definition d, str what, const Dim* dim, uint32_t bd, float* out) except -1:
    """Copy the result of a function, which must have that shape and batch size, to `out`."""
    cdef tuple expected = (*shape_of(dim), bd)
    array = floats_in(result, d.name, what, 8)
    if array.shape != expected:
        raise DimensionError(f"{d.name}: {what} has shape {array.shape}, expected {expected}; the last axis is the "
                             "batch")
    return copy_floats(array, out, total_of(dim) // dim.bd * bd)


cdef int run_forward(const Call* c) except -1:
    cdef _Definition d = definition_of(c.attrs[DEFINITION].u)
    cdef uint32_t i
    xs = [array_at(&c.x[i]) for i in range(c.n)]
    y = d.forward(*xs, **<dict>d.parameters[c.attrs[PARAMETERS].u])
    return write(y, d, "what forward returns", &c.y.dim, c.y.dim.bd, c.y.v)


cdef int run_backward(const Call* c) except -1:
    """The gradients of all arguments, one after the other, into c.work."""
    cdef _Definition d = definition_of(c.attrs[DEFINITION].u)
    cdef float* out = c.work
    cdef const Tensor* x
    cdef uint32_t i
    if d.backward is None:
        raise RuntimeError(f"{d.name}: there is no gradient without backward: pass backward= to custom_op")
    xs = [array_at(&c.x[i]) for i in range(c.n)]
    found = d.backward(array_at(&c.dy), array_at(&c.y), *xs, **<dict>d.parameters[c.attrs[PARAMETERS].u])
    if not isinstance(found, (tuple, list)):
        found = (found,)
    if len(found) != c.n:
        raise ValueError(f"{d.name}: backward returned {len(found)} gradient{'s' if len(found) != 1 else ''}, expected "
                         f"{c.n}, one for each argument")
    for i in range(c.n):
        x = &c.x[i]
        gradient = found[i]
        what = f"the gradient of argument {d.argument(i)} that backward returns"
        if gradient is None:
            memset(out, 0, total_of(&x.dim) * sizeof(float))
        else:
            # The gradient of an argument without a batch is the sum over the batch elements.
            if x.dim.bd == 1 < c.y.dim.bd and np.shape(gradient) == (*shape_of(&x.dim), c.y.dim.bd):
                gradient = np.sum(gradient, axis=-1, keepdims=True, dtype=np.float64)
            write(gradient, d, what, &x.dim, x.dim.bd, out)
        out += total_of(&x.dim)
    return 0


cdef void guarded(const Call* c, bint back) noexcept with gil:
    """Run a function in the default floating-point environment, and keep the exception that it raises."""
    global raised_here
    cdef fenv_t engine
    raised_here = NULL
    fegetenv(&engine)
    fesetenv(FE_DFL_ENV)
    try:
        if back:
            run_backward(c)
        else:
            run_forward(c)
    except BaseException as error:
        Py_INCREF(error)
        raised_here = <void*>error
    fesetenv(&engine)


cdef void custom_forward(const Call* c) noexcept nogil:
    guarded(c, False)


cdef void custom_prepare(const Call* c) noexcept nogil:
    guarded(c, True)


cdef void custom_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef const float* from_here = c.work
    cdef uint32_t k
    for k in range(i):
        from_here += total_of(&c.x[k].dim)
    K.add(total_of(&c.dx.dim), from_here, c.dx.v)


cdef size_t custom_prepared(const Call* c) noexcept nogil:
    cdef size_t n = 0
    cdef uint32_t k
    for k in range(c.n):
        n += total_of(&c.x[k].dim)
    return n


cdef void* custom_raised() noexcept nogil:
    global raised_here
    cdef void* error = raised_here
    raised_here = NULL
    return error


cdef int serve_on_devices(Served function) except -1:
    global served_on_devices
    served_on_devices = function
    for kernels in all_kernels:
        function(kernels)
    return 0


cdef int add_kernels(_Kernels kernels, Op* op) except -1:
    """Let an op run on devices, as far as they are in use, and when they are."""
    kernels.op = op
    all_kernels.append(kernels)
    return served_on_devices(kernels) if served_on_devices != NULL else 0


cdef int add_cuda(Op* op, cuda, numbers) except -1:
    cdef _Kernels kernels = _Kernels.__new__(_Kernels)
    cdef uint32_t i
    arguments = op.args.decode().split()
    types = [str(number).split() for number in numbers]
    if len(types) > DY_ATTRS or not all(len(x) == 2 and x[0] in ("float", "int") for x in types):
        raise ValueError(f"{op.name.decode()}: numbers must be at most {DY_ATTRS} attributes, such as 'float alpha' "
                         f"and 'int axis', not {numbers!r:.200}")
    if any(x.endswith("...") for x in arguments):
        raise TypeError(f"{op.name.decode()}: {ANY_NUMBER}")
    kernels.source = source_of(op.name.decode(), arguments, [name for _, name in types], cuda)
    kernels.n_numbers = <uint32_t>len(types)
    for i in range(kernels.n_numbers):
        kernels.integers |= <uint32_t>(types[i][0] == "int") << i
    return add_kernels(kernels, op)


cdef bint is_custom(const Op* op) noexcept nogil:
    return op.forward == custom_forward


def custom_op(str name, forward: Callable[..., Any], backward: Callable[..., Any] | None = None,
              shape: Callable[..., Any] | None = None, *,
              cuda: str | Mapping[str, str] | None = None) -> Callable[..., Expression]:
    """A new op, made from functions of NumPy arrays, and of kernels in CUDA for GPUs.

    One call computes all nodes of a batch: **the last axis of every array is the batch**. Its length is 1 if all
    elements share the argument, such as a parameter. The functions see copies, and run with the GIL, on the CPU. The
    functions must depend only on their arguments. If they raise an exception, it reaches the program, and no gradient
    changes.

    Define an op once, not at each call: definitions are never freed, nor is any set of keyword values. Pass what
    differs from call to call as an expression.

    Args:
        name: for messages, profiles and drawings.
        forward: ``forward(*xs)`` returns the values. The positional arguments of the function are those of the op. So
            are its keyword-only arguments, whose values must be hashable; nodes with equal values run together, and
            `backward` and `shape` get them too.
        backward: ``backward(dy, y, *xs)`` returns a tuple with the gradient of each argument, in the argument's shape,
            or None for zeros; with one argument, the gradient alone will do. The gradient of an argument without a
            batch may have the batch of y and is then summed over it. Without `backward`, a gradient is an error.
        shape: ``shape(*shapes)`` returns the shape of a result, without the batch, as a tuple; a ValueError that it
            raises becomes a DimensionError. It must not change the graph. Default: the shape of the first argument.
        cuda: how the op runs on GPUs; without it, a GPU is an error. A dictionary computes each element by an
            expression in CUDA, of the arguments by name: ``"y"`` is the result, ``"dx"`` the gradient of an argument
            ``x``, which may also use y and dy, and is zero if it is missing. Axes of length 1 are repeated as in NumPy.
            A text has kernels ``forward(*xs, y)`` and ``backward(dy, y, *xs, *dxs)`` of arrays ``In`` and ``Out``.
            Keyword arguments must be numbers, which kernels get at the end. The source is compiled when the op first
            runs on a device; GpuError reports what is wrong in it.

    Returns:
        A function of expressions, whose result is an Expression.

    Raises:
        TypeError: one of them is not a function, or does not take these arguments; `cuda` is neither a text nor a
            dictionary, or the op takes any number of arguments.
        ValueError: the name is empty, or that of an op of the library; `cuda` names nothing that the op computes.

    Example:
        >>> fourth = dy.custom_op(
        ...     "fourth",
        ...     lambda x: x**4,
        ...     lambda dy, y, x: 4 * x**3 * dy,
        ...     cuda={"y": "x * x * x * x", "dx": "4 * x * x * x * dy"},
        ... )
        >>> x = dy.inputVector([1, 2, 3])
        >>> y = fourth(x)
        >>> y.npvalue()
        array([ 1., 16., 81.])
        >>> dy.sum_elems(y).backward(full=True)
        >>> x.gradient()
        array([  4.,  32., 108.])
    """
    cdef _Definition d = _Definition.__new__(_Definition)
    if not name:
        raise ValueError("custom_op: name must not be empty")
    for what, function in (("forward", forward), ("backward", backward), ("shape", shape)):
        if not callable(function) and (function is not None or what == "forward"):
            raise TypeError(f"custom_op {name}: {what} must be a function, not {type(function).__name__}")
    if any([op["name"] == name for op in describe()]):
        raise ValueError(f"custom_op: {name!r} is an op of the library")
    arguments = _positional(forward, name, "forward")
    if not arguments:
        raise TypeError(f"custom_op {name}: forward must take at least one argument")
    many = arguments[-1].endswith("...")
    if backward is not None:
        check_arguments(backward, name, "backward", 2 + len(arguments) - many, "(dy, y, " + ", ".join(arguments) + ")")
    if shape is not None:
        check_arguments(shape, name, "shape", len(arguments) - many, "the shapes of " + ", ".join(arguments))
    if cuda is not None:
        if many or keywords_of(forward) is None:
            raise TypeError(f"custom_op {name}: {ANY_NUMBER}")
        d.defaults = defaults_of(forward)
        d.packed = {}
        d.kernels = _Kernels.__new__(_Kernels)
        d.kernels.source = source_of(f"custom_op {name}", arguments, list(d.defaults), cuda)
        d.kernels.n_numbers = <uint32_t>len(d.defaults)
        d.kernels.packed = True
    d.name = name
    d.c_name = name.encode()
    d.c_args = " ".join(arguments).encode()
    d.forward = forward
    d.backward = backward
    d.shape = shape
    d.n_arguments = -1 if many else len(arguments)
    d.parameters = [{}]
    d.numbers = {}
    acquire_lock(&definitions_lock)
    try:
        d.number = len(definitions)
        d.op = register_nameless(d.c_name, d.c_args, custom_dim, custom_forward, custom_backward)
        d.op.prepare = custom_prepare
        d.op.prepared = custom_prepared
        d.op.raised = custom_raised
        definitions.append(d)
        if d.kernels is not None:
            add_kernels(d.kernels, d.op)
    finally:
        release_lock(&definitions_lock)
    return d


cdef int check_arguments(function, str name, str what, int n, str wanted) except -1:
    """Raise unless a function takes n positional arguments."""
    found = _positional(function, name, what)
    many = bool(found) and found[-1].endswith("...")
    if len(found) - many > n or (len(found) < n and not many):
        raise TypeError(f"custom_op {name}: {what} must take {wanted}")
    return 0


cdef int check_headers(size_t op, size_t call, size_t extra) except -1:
    if op != sizeof(Op) or call != sizeof(Call) or extra != sizeof(Extra):
        raise ImportError("this module was compiled for another version of dynet_cy: build it again")
    return 0
