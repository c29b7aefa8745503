"""The tables of GPU ops, of kernels and of the modules that contain them.

An op and its GPU op have the same number.  Modules are the files `cuda/*.cu`; the
kernels of one are compiled, and loaded on a device, when an op first needs them.
"""

import importlib

from libc.stdint cimport uint16_t, uint64_t
from libc.string cimport memset

from dynet_cy.gpu.driver cimport MAX_KERNELS, MOST_GPUS, MOST_PARAMETERS, check, enter, kernel_names, leave
from dynet_cy.ops.registry cimport GPU, MAX_OPS, op_at

from dynet_cy.gpu import compiler
from dynet_cy.gpu.driver import architecture
from dynet_cy.ops.registry import describe as describe_ops

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


cdef GpuOp* gpu_op(bytes name, int module, GpuForward forward, GpuBackward backward) except NULL:
    cdef unsigned number = _op_numbers[name.decode()]
    cdef GpuOp* op = &table[number]
    op.needs = &op_at(number).needs[GPU]
    op.saved = op_at(number).saved
    op.forward = forward
    op.backward = backward
    needs_module(op, module)
    return op


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
    cdef void* module = NULL
    cdef int k, error
    cdef list own = [(k, name) for k, (owner, name) in enumerate(_kernels) if owner == number]
    cdef bytes code = compiler.cubin(_modules[number], architecture(gpu.number)), missing = None
    # From here on no other thread launches or runs Python.  Another thread that compiled the same module may have
    # loaded it first.
    error = enter(gpu)
    if loaded_modules[gpu.number] >> number & 1:
        leave(gpu)
        return 0
    if not error:
        error = gpu.driver.cuModuleLoadData(&module, <const void*><const char*>code)
    for k, name in own:
        if not error:
            missing = name
            error = gpu.driver.cuModuleGetFunction(&gpu.functions[k], module, <const char*>missing)
            gpu.parameters[k] = 0 if error else parameters_of(gpu, k)
    if not error:
        loaded_modules[gpu.number] |= <uint64_t>1 << number
    leave(gpu)
    if module == NULL:
        return check(gpu, error, f"loading the kernels of cuda/{_modules[number]}.cu")
    _loaded_code.append(code)
    return check(gpu, error, f"cuda/{_modules[number]}.cu has no kernel {missing.decode()}") if error else 0


cdef int parameters_of(Gpu* gpu, int kernel) noexcept:
    """Store the sizes of a kernel's parameters; returns how many it has."""
    cdef size_t offset = 0, size = 0
    cdef int n = 0
    while gpu.driver.cuFuncGetParamInfo(gpu.functions[kernel], n, &offset, &size) == 0:
        if n < MOST_PARAMETERS:
            gpu.parameter_bytes[kernel][n] = <uint16_t>size
        n += 1
    return n


def describe():
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


def kernels():
    """The kernels that launchers use, as a list of (module, name)."""
    return [(_modules[module], name.decode()) for module, name in _kernels]
