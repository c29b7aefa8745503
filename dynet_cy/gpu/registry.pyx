"""Tables of GPU ops, kernels and their modules; launchers for many ops."""

import importlib

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport axis_of, total_of
from dynet_cy.gpu.driver cimport (
    MAX_KERNELS, MOST_GPUS, MOST_PARAMETERS, check, enter, kernel_names, launch_each, launch_rows, leave, value_at,
)
from dynet_cy.ops.registry cimport ASSIGNS, GPU, MAX_OPS, op_at

from dynet_cy.gpu import compiler
from dynet_cy.gpu.driver import architecture
from dynet_cy.ops.registry import describe as describe_ops


# ==== registry ====================================================================================
#
# The tables of GPU ops, of kernels and of the modules that contain them.
#
# An op and its GPU op have the same number.  Modules are the files `cuda/*.cu`; the
# kernels of one are compiled, and loaded on a device, when an op first needs them.

cdef GpuOp[MAX_OPS] table
memset(table, 0, sizeof(table))
cdef uint64_t[MOST_GPUS] loaded_modules
memset(loaded_modules, 0, sizeof(loaded_modules))

importlib.import_module("dynet_cy.ops.api")     # registers all of them
_op_numbers = {op["name"]: i for i, op in enumerate(describe_ops())}
_modules = []                   # names
_kernels = []                   # (module, name as bytes); `kernel_names` points into the names
_loaded_code = []                  # code that devices have loaded


cdef int module_at(bytes name) except -1:
    """The number of the module of that name."""
    key = name.decode()
    if key not in _modules:
        if len(_modules) == 64:
            raise RuntimeError("more than 64 modules of kernels")
        _modules.append(key)
    return _modules.index(key)


cdef int kernel_at(int module, bytes name) except -1:
    """The number of a kernel of a module."""
    if len(_kernels) == MAX_KERNELS:
        raise RuntimeError(f"more than {MAX_KERNELS} kernels")
    _kernels.append((module, name))
    kernel_names[len(_kernels) - 1] = name
    return len(_kernels) - 1


cdef GpuOp* gpu_op(bytes name, int module, GpuForward forward, GpuBackward backward, int traits=0) except NULL:
    cdef unsigned number = _op_numbers[name.decode()]
    cdef GpuOp* op = &table[number]
    op.needs = &op_at(number).needs[GPU]
    op.saved = op_at(number).saved
    op.factors = op_at(number).factors
    op.assigns = traits & ASSIGNS != 0
    op.forward = forward
    op.backward = backward
    needs_module(op, module)
    return op


cdef GpuOp* gpu_op_named(bytes name) except NULL:
    return &table[<unsigned>_op_numbers[name.decode()]]


cdef void needs_module(GpuOp* op, int module) noexcept:
    op.modules |= <uint64_t>1 << module


cdef unsigned number_of(const GpuOp* op) noexcept nogil:
    return <unsigned>(op - table)


cdef GpuOp* gpu_op_at(unsigned op) noexcept nogil:
    return &table[op]


cdef uint64_t* loaded(Gpu* gpu) noexcept nogil:
    """Bits of the modules that are loaded on a device."""
    return &loaded_modules[gpu.number]


cdef int load(Gpu* gpu, uint64_t modules) except -1:
    """Load the modules with these bits on a device, compiling them where needed."""
    cdef int i
    for i in range(len(_modules)):
        if modules >> i & 1 and not loaded_modules[gpu.number] >> i & 1:
            load_module(gpu, i)
    return 0


cdef int load_module(Gpu* gpu, int number) except -1:
    cdef int k
    code = compiler.cubin(_modules[number], architecture(gpu.number))
    own = [(k, name) for k, (owner, name) in enumerate(_kernels) if owner == number]
    load_code(gpu, code, own, f"cuda/{_modules[number]}.cu")
    loaded_modules[gpu.number] |= <uint64_t>1 << number
    return 0


cdef int load_code(Gpu* gpu, bytes code, list own, str what) except -1:
    cdef void* module = NULL
    cdef int k, error
    cdef bytes name, missing = None
    # From here on no other thread launches or runs Python.  Another thread that compiled the same module may have
    # loaded it first.
    error = enter(gpu)
    for k, _ in own:
        if gpu.functions[k] == NULL:
            break
    else:
        leave(gpu)
        return 0
    if not error:
        error = gpu.driver.cuModuleLoadData(&module, <const void*><const char*>code)
    for k, name in own:
        if not error:
            missing = name
            error = gpu.driver.cuModuleGetFunction(&gpu.functions[k], module, <const char*>missing)
            gpu.parameters[k] = 0 if error else parameters_of(gpu, k)
    leave(gpu)
    if module == NULL:
        return check(gpu, error, f"loading the kernels of {what}")
    _loaded_code.append(code)
    return check(gpu, error, f"{what} has no kernel {missing.decode()}") if error else 0


cdef int parameters_of(Gpu* gpu, int kernel) noexcept:
    """Store the sizes of a kernel's parameters; returns how many it has."""
    cdef size_t offset = 0, size = 0
    cdef int n = 0
    while gpu.driver.cuFuncGetParamInfo(gpu.functions[kernel], n, &offset, &size) == 0:
        if n < MOST_PARAMETERS:
            gpu.parameter_bytes[kernel][n] = <uint16_t>size
        n += 1
    return n


def describe() -> list[dict[str, Any]]:
    """The ops that have a GPU op, as a list of dictionaries with their name and modules.

    `gradient` says whether there is a backward.
    """
    cdef unsigned i
    found = []
    for name, i in _op_numbers.items():
        if table[i].forward != NULL:
            found.append({"name": name, "gradient": table[i].backward != NULL,
                          "modules": [m for k, m in enumerate(_modules) if table[i].modules >> k & 1]})
    return found


def kernels() -> list[tuple[str, str]]:
    """The kernels that launchers use, as a list of (module, name)."""
    return [(_modules[module], name.decode()) for module, name in _kernels if module != NO_MODULE]


# ==== base ========================================================================================
#
# Launchers that many ops need: copies and sums over axes.

BASE = module_at(b"base")
cdef int SCALE = kernel_at(BASE, b"scale_floats")
cdef int SUM = kernel_at(BASE, b"sum_pointers")
cdef int EXPAND = kernel_at(BASE, b"expand")
cdef int EXPAND_LIST = kernel_at(BASE, b"expand_list")
cdef int CONTRACT_LIST = kernel_at(BASE, b"contract_list")
cdef int BY_THREADS = kernel_at(BASE, b"contract_by_threads")
cdef int BY_BLOCKS = kernel_at(BASE, b"contract_by_blocks")


cdef int scaled(Gpu* gpu, size_t n, float a, const float* x, float* y, int acc) noexcept nogil:
    return launch_each(gpu, SCALE, n, n, a, x, y, acc)


cdef int sum_pointers(Gpu* gpu, size_t n, const Pointers* xs, uint32_t count, float a, float* y,
                      int acc) noexcept nogil:
    return launch_each(gpu, SUM, n, n, value_at(xs), count, a, y, acc) if count else 0


cdef int expand(Gpu* gpu, const Axes* axes, float a, const float* x, float* y, int acc) noexcept nogil:
    cdef size_t n = axes_total(axes)
    return launch_each(gpu, EXPAND, n, n, value_at(axes), a, x, y, acc)


cdef int contract(Gpu* gpu, const Axes* kept, const Axes* reduced, float a, const float* x, float* y,
                  int acc) noexcept nogil:
    cdef size_t n = axes_total(kept), terms = axes_total(reduced)
    if by_threads(gpu, n, terms):
        return launch_each(gpu, BY_THREADS, n, n, terms, value_at(kept), value_at(reduced), a, x, y, acc)
    return launch_rows(gpu, BY_BLOCKS, n, terms, n, terms, value_at(kept), value_at(reduced), a, x, y, acc)


cdef int expand_list(Gpu* gpu, size_t batch, const Axes* axes, float a, const void* places, float* y,
                     int acc) noexcept nogil:
    cdef size_t n = axes_total(axes)
    return launch_each(gpu, EXPAND_LIST, batch * n, batch, n, value_at(axes), a, places, y, acc)


cdef int contract_list(Gpu* gpu, size_t batch, size_t stride, const Axes* kept, const Axes* reduced, float a,
                       const float* x, const void* places, int acc) noexcept nogil:
    cdef size_t n = axes_total(kept)
    if n == 0:
        return 0
    return launch_rows(gpu, CONTRACT_LIST, batch, n, batch, n, axes_total(reduced), stride, value_at(kept),
                       value_at(reduced), a, x, places, acc)


cdef int pass_scaled(Gpu* gpu, const Tensor* dy, float a, const Tensor* dx, int acc) noexcept nogil:
    cdef Axes kept, reduced
    if dx.dim.bd == dy.dim.bd:
        return scaled(gpu, total_of(&dy.dim), a, dy.v, dx.v, acc)
    split_axes(&dy.dim, &dy.dim, &dy.dim, &dx.dim, &kept, &reduced)
    return contract(gpu, &kept, &reduced, a, dy.v, dx.v, acc)


cdef Some some_of(const Call* c, uint32_t before, uint32_t first) noexcept nogil:
    cdef Some xs
    cdef uint32_t k
    memset(&xs, 0, sizeof(xs))
    xs.first = first
    xs.count = min(c.n - before - first, <uint32_t>SOME)
    for k in range(xs.count):
        xs.p[k] = c.x[before + first + k].v
        xs.once |= <uint32_t>(c.x[before + first + k].dim.bd == 1) << k
    return xs


cdef Axes axes_of(const Dim* y, const Dim* a, const Dim* b) noexcept nogil:
    cdef Axes all, none
    split_axes(y, a, b, y, &all, &none)
    return all


cdef inline size_t size_along(const Dim* x, uint32_t k, uint32_t batch) noexcept nogil:
    """The size of axis k, or of the batch."""
    return axis_of(x, k) if k < batch else x.bd


cdef void split_axes(const Dim* y, const Dim* a, const Dim* b, const Dim* x, Axes* kept, Axes* reduced) noexcept nogil:
    cdef uint32_t k
    cdef size_t of_a, of_b, size, stride_a = 1, stride_b = 1, stride = 1
    no_axes(kept)
    no_axes(reduced)
    for k in range(y.nd + 1):
        of_a, of_b, size = size_along(a, k, y.nd), size_along(b, k, y.nd), size_along(y, k, y.nd)
        add_axis(reduced if size_along(x, k, y.nd) == 1 else kept, size, 0 if of_a == 1 else stride_a,
                 0 if of_b == 1 else stride_b, stride)
        stride_a *= of_a
        stride_b *= of_b
        stride *= size
