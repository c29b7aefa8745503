"""The driver and cuBLAS, found at run time, and the devices that are open.

Every call goes through a pointer that dlsym has found, under the name that the
library exports ("_v2" and so on), so CUDA is not needed to build this module.
PyCUDA retains the primary context of a device, which libraries share.

Environment variables: `DYNET_CY_LIBCUDA` and `DYNET_CY_LIBCUBLAS` name the
libraries to load instead of those of the system.
"""

import importlib.util
import os
import threading

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.dlfcn cimport RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, dlerror, dlopen, dlsym

from dynet_cy.core.engine cimport add_count
from dynet_cy.core.threads cimport LARGE, Interrupts, Number, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.kernels.kernels cimport BFLOAT16, FLOAT32, TF32, chosen_precision
from dynet_cy.ops.index cimport refusal


cdef extern from *:
    # The kernel that caused the last error that leave() has returned in this thread, or -1.
    "static _Thread_local int dy_left_kernel = -1;"
    int left_kernel "dy_left_kernel"


cdef extern from "tables.h" nogil:
    # derived: variables of driver_table, blas_table, driver_names, blas_names
    Driver driver_table "dy_driver_table"
    Blas blas_table "dy_blas_table"
    const char* const driver_names "dy_driver_names"[]
    const char* const blas_names "dy_blas_names"[]
    # end of variables
    # derived: constants of DRIVER_COUNT, BLAS_COUNT
    int DRIVER_COUNT "DY_DRIVER_COUNT"
    int BLAS_COUNT "DY_BLAS_COUNT"
    # end of constants


# Attributes of a device.
cdef enum:
    MULTIPROCESSORS = 16
    VIRTUAL_MEMORY = 102
    MAJOR = 75                      # of the compute capability

# Sizes of the cuBLAS workspace that NVIDIA recommends.
cdef enum:
    WORKSPACE = 4 << 20
    WORKSPACE_FROM_HOPPER = 32 << 20

# cuStreamQuery, and what it returns if the stream is not idle.
ctypedef int (*StreamQuery)(void* stream) noexcept nogil
cdef const char* QUERY = b"cuStreamQuery"
cdef enum:
    NOT_READY = 600

# Errors after which the context cannot be used: faults of kernels, and of the device.
cdef int[11] FATAL = [214, 700, 702, 710, 714, 715, 716, 717, 718, 719, FORKED]

# How cuBLAS computes in each precision.
cdef int[3] COMPUTE
COMPUTE[FLOAT32] = COMPUTE_FLOAT32
COMPUTE[BFLOAT16] = COMPUTE_BF16
COMPUTE[TF32] = COMPUTE_TF32

cdef Gpu* gpus[MOST_GPUS]
cdef bint forked = False
cdef object opening = threading.Lock()      # of one device at a time
cdef void* libcuda = NULL
cdef StreamQuery stream_query = NULL
cdef void* libcublas = NULL


class GpuUnavailable(RuntimeError):
    """A GPU was requested, but there is none, or something that it needs is not installed."""


class GpuError(RuntimeError):
    """The driver, cuBLAS or a kernel reported an error."""


AFTER_FORK: str = (
    "this process was forked from one that had used GPUs, so it cannot use them.  Let it be spawned "
    "(multiprocessing.get_context('spawn')), or fork before anything is asked of a GPU"
)


def _forked():
    """Refuse all use of the driver in this process, which has just been forked."""
    global forked, opening
    cdef int i
    opening = threading.Lock()                          # another thread may have held it, and the locks below
    forked = libcuda != NULL
    for i in range(MOST_GPUS):
        if gpus[i] != NULL:
            pthread_mutex_init(&gpus[i].lock, NULL)
            set_error(gpus[i], FORKED)
            gpus[i].error_kernel = -1


os.register_at_fork(after_in_child=_forked)


cdef void* open_library(list candidates, int flags, str what) except NULL:
    cdef void* lib
    reasons = []
    for name in candidates:
        path = os.fsencode(name)
        lib = dlopen(<const char*>path, flags)
        if lib != NULL:
            return lib
        reasons.append(dlerror().decode("utf-8", "replace"))
    raise GpuUnavailable(f"{what} is needed for GPUs and could not be loaded: " + "; ".join(reasons))


cdef int find_functions(void* lib, const char* const* wanted, int n, void** table, str what) except -1:
    cdef int i
    for i in range(n):
        table[i] = dlsym(lib, wanted[i])
        if table[i] == NULL:
            raise GpuUnavailable(f"{what} is too old: it has no {wanted[i].decode()}")
    return 0


cdef int open_driver() except -1:
    """Load libcuda and PyCUDA, once."""
    global libcuda
    cdef void* lib
    if forked:
        raise GpuUnavailable(AFTER_FORK)
    if libcuda != NULL:
        return 0
    path = os.environ.get("DYNET_CY_LIBCUDA", "libcuda.so.1")
    # Load it before PyCUDA does, which then gets the same library: the loader compares the names inside libraries.
    lib = open_library([path], RTLD_NOW | RTLD_GLOBAL, "NVIDIA's driver (libcuda.so.1)")
    try:
        import pycuda.driver
    except ImportError as e:
        raise GpuUnavailable(f"PyCUDA is needed for GPUs: pip install 'dynet_cy[cuda]' ({e})") from None
    find_functions(lib, &QUERY, 1, <void**>&stream_query, "NVIDIA's driver")
    find_functions(lib, driver_names, DRIVER_COUNT, <void**>&driver_table, "NVIDIA's driver")
    try:
        pycuda.driver.init()
    except pycuda.driver.Error as e:
        raise GpuUnavailable(f"there is no GPU that can be used: {e}") from None
    libcuda = lib
    return 0


def cublas_candidates() -> list[str]:
    """The places where cuBLAS is searched: its wheel, the loader's path, the usual folder of the toolkit."""
    setting = os.environ.get("DYNET_CY_LIBCUBLAS")
    if setting:
        return [setting]
    found = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec and spec.submodule_search_locations else []):
        found += [os.path.join(root, "cu13", "lib", "libcublas.so.13"),
                  os.path.join(root, "cublas", "lib", "libcublas.so.12")]
    return [x for x in found if os.path.exists(x)] + [
        "libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13"]


cdef int open_blas() except -1:
    global libcublas
    cdef void* lib
    if libcublas == NULL:
        lib = open_library(cublas_candidates(), RTLD_NOW | RTLD_LOCAL, "cuBLAS")
        find_functions(lib, blas_names, BLAS_COUNT, <void**>&blas_table, "cuBLAS")
        libcublas = lib
    return 0


def device_count() -> int:
    """The number of GPUs that the driver reports.

    Raises:
        GpuUnavailable: there is no driver, or no PyCUDA.
    """
    open_driver()
    import pycuda.driver
    return pycuda.driver.Device.count()


def open_device(int number):
    """Open a device, if it is not open.

    Raises:
        GpuUnavailable: there is no device with that number, or it cannot be used.
        GpuError: it has failed before.
    """
    gpu_at(number)


def architecture(int number) -> str:
    """The architecture of an open device, such as "sm_90"."""
    gpu_at(number)
    import pycuda.driver
    return "sm_%d%d" % pycuda.driver.Device(number).compute_capability()


def device_name(int number) -> str:
    """The driver's name for the device."""
    gpu_at(number)
    import pycuda.driver
    return pycuda.driver.Device(number).name()


def memory_info(int number) -> tuple[int, int]:
    """Bytes of device memory: free, and in total."""
    cdef size_t unused = 0, total = 0
    cdef Gpu* gpu = gpu_at(number)
    cdef int error
    enter(gpu)
    error = gpu.driver.cuMemGetInfo_v2(&unused, &total)
    leave(gpu)
    check(gpu, error, "memory_info")
    return unused, total


cdef Gpu* gpu_at(int number) except NULL:
    cdef int error
    if not 0 <= number < MOST_GPUS:
        raise GpuUnavailable(f"GPU:{number}: devices are numbered from 0 to {MOST_GPUS - 1}")
    if gpus[number] == NULL:
        with opening:
            if gpus[number] == NULL:
                gpus[number] = new_gpu(number)
    error = error_of(gpus[number])
    if is_fatal(error):                         # such errors are never reset
        raise_of_kernel(gpus[number], error, gpus[number].error_kernel)
    return gpus[number]


cdef Gpu* opened_gpu(int number) noexcept nogil:
    return gpus[number]


cdef Gpu* new_gpu(int number) except NULL:
    cdef Gpu* gpu
    n = device_count()
    if number >= n:
        raise GpuUnavailable(f"GPU:{number}: the driver shows {n} device{'' if n == 1 else 's'}")
    open_blas()
    gpu = <Gpu*>calloc(1, sizeof(Gpu))
    if gpu == NULL:
        raise MemoryError(f"the record of GPU:{number}")
    try:
        open_gpu(gpu, number)
    except BaseException:
        free(gpu)
        raise
    return gpu


cdef int open_gpu(Gpu* gpu, int number) except -1:
    cdef int value = 0
    cdef size_t size
    import pycuda.driver
    device = pycuda.driver.Device(number)
    context = device.retain_primary_context()
    gpu.driver = &driver_table
    gpu.blas = &blas_table
    gpu.number = number
    gpu.error_kernel = -1
    gpu.context = <void*><uintptr_t>context.handle
    pthread_mutex_init(&gpu.lock, NULL)
    check(gpu, gpu.driver.cuCtxSetCurrent(gpu.context), "opening the device")
    check(gpu, gpu.driver.cuDeviceGetAttribute(&value, VIRTUAL_MEMORY, number), "opening the device")
    if not value:
        raise GpuUnavailable(f"GPU:{number} ({device.name()}) has no virtual memory management")
    check(gpu, gpu.driver.cuDeviceGetAttribute(&value, MULTIPROCESSORS, number), "opening the device")
    gpu.multiprocessors = value
    check(gpu, gpu.driver.cuStreamCreate(&gpu.stream, 1), "opening the device")     # not the default stream
    check_blas(gpu, gpu.blas.cublasCreate_v2(&gpu.blas_handle))
    check_blas(gpu, gpu.blas.cublasSetStream_v2(gpu.blas_handle, gpu.stream))
    check_blas(gpu, gpu.blas.cublasSetMathMode(gpu.blas_handle, 0))     # each product as it is asked for
    # If it is given a workspace, cuBLAS allocates nothing, so that products can be captured.
    check(gpu, gpu.driver.cuDeviceGetAttribute(&value, MAJOR, number), "opening the device")
    size = WORKSPACE_FROM_HOPPER if value >= 9 else WORKSPACE
    if gpu.driver.cuMemAlloc_v2(&gpu.workspace, size):
        gpu.workspace = 0
    else:
        check_blas(gpu, gpu.blas.cublasSetWorkspace_v2(gpu.blas_handle, <void*><uintptr_t>gpu.workspace, size))
    register_counts(gpu)
    # The context is never released: graphs may be closed while the interpreter shuts down.
    Py_INCREF(context)
    return 0


cdef int register_counts(Gpu* gpu) except -1:
    cdef const Number* counts = <const Number*>&gpu.counts
    cdef int i
    for i, name in enumerate(("launches", "products", "fills", "uploads", "fetches", "uploaded_bytes", "fetched_bytes",
                              "waits", "replays", "replayed", "captures", "failed_captures")):  # as in gpu.h
        add_count(f"gpu.{gpu.number}.{name}", &counts[i])
    return 0


cdef int check_blas(Gpu* gpu, int status) except -1:
    if status:
        raise GpuError(f"GPU:{gpu.number}: cuBLAS returned status {status}")
    return 0


_TEXTS = {
    NOT_LOADED: "its module is not loaded",
    WRONG_PARAMETERS: "it takes another number of parameters",
    LOG_FULL: "out of memory of the host for what is to be launched",
    WRONG_SHAPES:
        "it computes each element of the result by an expression, but an argument does not have that shape",
    FORKED: AFTER_FORK,
    PRODUCT_TOO_LARGE:
        "a size of a matrix product, or the stride of its columns, is above 2147483647 (2^31 - 1), the limit of cuBLAS",
}


cdef str text_of(Gpu* gpu, int error):
    cdef const char* text = NULL
    if error < 0:
        return f"cuBLAS returned status {-error}"
    if error in _TEXTS:
        return _TEXTS[error]
    gpu.driver.cuGetErrorString(error, &text)
    return f"{text.decode('utf-8', 'replace') if text != NULL else 'unknown error'} (error {error})"


cdef int check(Gpu* gpu, int error, str what) except -1:
    if error:
        raise GpuError(f"GPU:{gpu.number}: {what}: {text_of(gpu, error)}")
    return 0


cdef bint is_fatal(int error) noexcept nogil:
    cdef int i
    if error:
        for i in range(11):
            if FATAL[i] == error:
                return True
    return False


cdef int raise_error(Gpu* gpu, int error) except -1:
    return raise_of_kernel(gpu, error, left_kernel)


cdef int raise_of_kernel(Gpu* gpu, int error, int kernel) except -1:
    where = f"kernel {kernel_names[kernel].decode()}: " if kernel >= 0 else ""
    if is_fatal(error) and error != FORKED:
        raise GpuError(f"GPU:{gpu.number}: {where}{text_of(gpu, error)}.  The device cannot be used any more by this "
                       "process; start it anew")
    raise GpuError(f"GPU:{gpu.number}: {where}{text_of(gpu, error)}")


cdef int enter(Gpu* gpu) noexcept nogil:
    pthread_mutex_lock(&gpu.lock)
    gpu.compute = COMPUTE[chosen_precision]
    if not gpu.error:
        failed(gpu, gpu.driver.cuCtxSetCurrent(gpu.context), -1)
    return gpu.error


cdef int leave(Gpu* gpu) noexcept nogil:
    global left_kernel
    cdef int error = gpu.error
    left_kernel = gpu.error_kernel if error else -1
    if not is_fatal(error):                     # reset it, so that another thread does not take it for its own
        set_error(gpu, 0)
    pthread_mutex_unlock(&gpu.lock)
    return error


cdef int leave_or_raise(Gpu* gpu) except -1 nogil:
    cdef int error = leave(gpu)
    if error:
        with gil:
            raise_error(gpu, error)
    return 0


cdef int fetch_bytes(Gpu* gpu, void* host_ptr, Address device_ptr, size_t n) noexcept nogil:
    """Start copying bytes from the device; they have arrived when the stream has been waited for."""
    gpu.counts.fetches += 1
    gpu.counts.fetched_bytes += n
    return failed(gpu, gpu.driver.cuMemcpyDtoHAsync_v2(host_ptr, device_ptr, n, gpu.stream), -1)


cdef int wait(Gpu* gpu) noexcept nogil:
    """Wait until the stream is idle."""
    gpu.counts.waits += 1
    return failed(gpu, gpu.driver.cuStreamSynchronize(gpu.stream), -1)


cdef int fetch_now(Gpu* gpu, void* host_ptr, const void* device_ptr, size_t n) except -1:
    with nogil:
        if not enter(gpu):
            fetch_bytes(gpu, host_ptr, <Address><uintptr_t>device_ptr, n)
            wait(gpu)
        leave_or_raise(gpu)
    return 0


cdef int wait_for(Gpu* gpu) except -1:
    cdef Interrupts s
    begin_interrupts(&s)
    with nogil:
        wait_with(gpu, &s)
    return raise_interrupt(&s)


cdef void wait_with(Gpu* gpu, Interrupts* s) noexcept nogil:
    cdef bint busy = True
    while busy:
        busy = enter(gpu) == 0 and stream_query(gpu.stream) == NOT_READY
        leave(gpu)
        if busy and interrupted(s, LARGE):
            break


def synchronize(int number):
    """Wait until a device has finished all work.

    Raises:
        GpuError: something has failed on the device.
    """
    cdef Gpu* gpu = gpu_at(number)
    with nogil:
        enter(gpu)
        wait(gpu)
        leave_or_raise(gpu)


# ---- indices out of range, found by kernels --------------------------------------------------
#
# An op does not wait for its kernels, so the error comes after the next wait.  The record is page-locked memory of the
# host that kernels write only then, so that asking for it costs nothing.

cdef extern from "dynet_cy/gpu_refused.h" nogil:
    # derived: structs of Refused = dy_refused_index
    ctypedef struct Refused "dy_refused_index":
        unsigned any
        uint32_t function
        uint32_t b
        uint32_t n
        uint64_t k
        double v
    # end of structs

cdef Refused* records[MOST_GPUS]
memset(records, 0, sizeof(records))


cdef void* refused_of(Gpu* gpu) noexcept nogil:
    cdef void* p = NULL
    cdef int error
    if records[gpu.number] == NULL and not gpu.error:
        error = gpu.driver.cuMemHostAlloc(&p, sizeof(Refused), 0)
        if error:
            failed(gpu, error, -1)
            return NULL
        memset(p, 0, sizeof(Refused))
        records[gpu.number] = <Refused*>p
    return records[gpu.number]


cdef int check_refused(Gpu* gpu) except -1:
    cdef Refused* x = records[gpu.number]
    if x == NULL or not x.any:
        return 0
    error = refusal(x.function, x.b, x.k, x.v, x.n)
    x.any = 0
    raise error
