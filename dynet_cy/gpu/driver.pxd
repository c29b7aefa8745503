"""The driver and cuBLAS, found at run time, and the devices that are open."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from dynet_cy.core.threads cimport Interrupts
from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport Call
from dynet_cy.ops.registry cimport FactorsOf, IsLaid, Needs, Same, Saved, Spread, Work


cdef extern from "dynet_cy/gpu.h" nogil:
    # derived: types of Address
    ctypedef uint64_t Address "dy_address"
    # end of types
    # derived: constants of MAX_KERNELS, NOT_LOADED, WRONG_PARAMETERS, MOST_PARAMETERS, LOG_FULL, WRONG_SHAPES, FORKED,
    #     PRODUCT_TOO_LARGE, MOST_CHUNKS, THREADS, COMPUTE_FLOAT32, COMPUTE_BF16, COMPUTE_TF32, SUMS, STATE, OUTPUT
    int MAX_KERNELS "DY_MAX_KERNELS"
    int NOT_LOADED "DY_NOT_LOADED"
    int WRONG_PARAMETERS "DY_WRONG_PARAMETERS"
    int MOST_PARAMETERS "DY_MOST_PARAMETERS"
    int LOG_FULL "DY_LOG_FULL"
    int WRONG_SHAPES "DY_WRONG_SHAPES"
    int FORKED "DY_FORKED"
    int PRODUCT_TOO_LARGE "DY_PRODUCT_TOO_LARGE"
    int MOST_CHUNKS "DY_MOST_CHUNKS"
    int THREADS "DY_THREADS"
    int COMPUTE_FLOAT32 "DY_COMPUTE_FLOAT32"
    int COMPUTE_BF16 "DY_COMPUTE_BF16"
    int COMPUTE_TF32 "DY_COMPUTE_TF32"
    int SUMS "DY_SUMS"
    int STATE "DY_STATE"
    int OUTPUT "DY_OUTPUT"
    # end of constants

    # derived: structs of Driver, Blas
    ctypedef struct Driver "dy_driver":
        int (*cuCtxSetCurrent)(void* context) noexcept nogil
        int (*cuGetErrorString)(int error, const char** text) noexcept nogil
        int (*cuModuleLoadData)(void** module, const void* image) noexcept nogil
        int (*cuModuleGetFunction)(void** function, void* module, const char* name) noexcept nogil
        int (*cuLaunchKernel)(
            void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
            unsigned shared, void* stream, void** parameters, void** extra) noexcept nogil
        int (*cuDeviceGetAttribute)(int* value, int attribute, int device) noexcept nogil
        int (*cuDeviceTotalMem_v2)(size_t* bytes, int device) noexcept nogil
        int (*cuMemGetInfo_v2)(size_t* unused, size_t* total) noexcept nogil
        int (*cuMemGetAllocationGranularity)(size_t* bytes, const void* properties, int option) noexcept nogil
        int (*cuMemAddressReserve)(
            Address* p, size_t bytes, size_t alignment, Address at, unsigned long long flags) noexcept nogil
        int (*cuMemAddressFree)(Address p, size_t bytes) noexcept nogil
        int (*cuMemCreate)(
            uint64_t* handle, size_t bytes, const void* properties, unsigned long long flags) noexcept nogil
        int (*cuMemRelease)(uint64_t handle) noexcept nogil
        int (*cuMemMap)(
            Address p, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) noexcept nogil
        int (*cuMemSetAccess)(Address p, size_t bytes, const void* access, size_t count) noexcept nogil
        int (*cuMemUnmap)(Address p, size_t bytes) noexcept nogil
        int (*cuMemHostAlloc)(void** p, size_t bytes, unsigned flags) noexcept nogil
        int (*cuMemFreeHost)(void* p) noexcept nogil
        int (*cuMemcpyHtoDAsync_v2)(Address to, const void* begin, size_t bytes, void* stream) noexcept nogil
        int (*cuMemcpyDtoHAsync_v2)(void* to, Address begin, size_t bytes, void* stream) noexcept nogil
        int (*cuMemsetD32Async)(Address p, unsigned value, size_t n, void* stream) noexcept nogil
        int (*cuStreamCreate)(void** stream, unsigned flags) noexcept nogil
        int (*cuStreamSynchronize)(void* stream) noexcept nogil
        int (*cuEventCreate)(void** event, unsigned flags) noexcept nogil
        int (*cuEventRecord)(void* event, void* stream) noexcept nogil
        int (*cuEventSynchronize)(void* event) noexcept nogil
        int (*cuMemAlloc_v2)(Address* p, size_t bytes) noexcept nogil
        int (*cuStreamBeginCapture_v2)(void* stream, int mode) noexcept nogil
        int (*cuStreamEndCapture)(void* stream, void** graph) noexcept nogil
        int (*cuGraphInstantiateWithFlags)(void** exec, void* graph, unsigned long long flags) noexcept nogil
        int (*cuGraphLaunch)(void* exec, void* stream) noexcept nogil
        int (*cuGraphExecDestroy)(void* exec) noexcept nogil
        int (*cuGraphDestroy)(void* graph) noexcept nogil
        int (*cuFuncGetParamInfo)(void* function, size_t i, size_t* offset, size_t* bytes) noexcept nogil

    ctypedef struct Blas "dy_blas":
        int (*cublasCreate_v2)(void** handle) noexcept nogil
        int (*cublasSetStream_v2)(void* handle, void* stream) noexcept nogil
        int (*cublasSetWorkspace_v2)(void* handle, void* workspace, size_t bytes) noexcept nogil
        int (*cublasSetMathMode)(void* handle, int mode) noexcept nogil
        int (*cublasGemmEx)(
            void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
            const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute,
            int algorithm) noexcept nogil
        int (*cublasGemmStridedBatchedEx)(
            void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
            long long stride_a, const void* b, int type_b, int ldb, long long stride_b, const void* beta, void* c,
            int type_c, int ldc, long long stride_c, int count, int compute, int algorithm) noexcept nogil
    # end of structs
    # derived: structs of Counts = dy_gpu_counts, Gpu
    ctypedef struct Counts "dy_gpu_counts":
        uint64_t launches
        uint64_t products
        uint64_t fills
        uint64_t uploads
        uint64_t fetches
        uint64_t uploaded_bytes
        uint64_t fetched_bytes
        uint64_t waits
        uint64_t replays
        uint64_t replayed
        uint64_t captures
        uint64_t failed_captures

    ctypedef struct Gpu "dy_gpu":
        const Driver* driver
        const Blas* blas
        void* context
        void* stream
        void* blas_handle
        int number
        uint32_t multiprocessors
        pthread_mutex_t lock
        void* functions[2048]
        int parameters[2048]
        uint16_t parameter_bytes[2048][20]
        const uint32_t* items
        uint32_t op
        int compute
        int error
        int error_kernel
        Counts counts
        Records* records
        int apart
        char table[4096]
        Address workspace
    # end of structs

    # Launches, products and fills that are listed.
    # derived: structs of Records
    ctypedef struct Records "dy_records":
        char* p
        size_t bytes
        size_t capacity
        size_t last
        uint32_t count
    # end of structs
    # derived: structs of ByValue
    ctypedef struct ByValue "dy_by_value":
        const void* p
        size_t bytes
    # end of structs

    # For launchers.  The arguments of the kernel follow: pointers, numbers, value_at(a struct).  In the kernel, an
    # integer may have 4 or 8 bytes, a float has 4.
    # derived: functions of value_at
    ByValue value_at "dy_value_at"(const void* p)
    # end of functions
    # Only so many bytes, which are all that the kernel reads, of its last parameter.
    # derived: functions of beginning_of
    ByValue beginning_of "dy_beginning_of"(const void* p, size_t bytes)
    # end of functions
    int launch "DY_LAUNCH"(Gpu* gpu, int kernel, unsigned grid_x, unsigned grid_y, unsigned block, unsigned shared, ...)
    int launch_each "DY_LAUNCH_EACH"(Gpu* gpu, int kernel, size_t n, ...)
    int launch_rows "DY_LAUNCH_ROWS"(Gpu* gpu, int kernel, size_t n, size_t width, ...)
    int launch_slices "DY_LAUNCH_SLICES"(Gpu* gpu, int kernel, size_t n, size_t width, ...)
    # derived: functions of blocks, fill = dy_gpu_fill, gemm = dy_gpu_gemm, gemm_strided = dy_gpu_gemm_strided, play,
    #     failed = dy_gpu_failed, error_of = dy_gpu_error, set_error = dy_gpu_set_error
    unsigned blocks "dy_blocks"(const Gpu* gpu, size_t blocks)
    int fill "dy_gpu_fill"(Gpu* gpu, size_t n, float x, const void* p)
    int gemm "dy_gpu_gemm"(
        Gpu* gpu, int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
        const float* b, size_t ldb, float beta, float* c, size_t ldc)
    int gemm_strided "dy_gpu_gemm_strided"(
        Gpu* gpu, int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
        size_t stride_a, const float* b, size_t ldb, size_t stride_b, float beta, float* c, size_t ldc,
        size_t stride_c, size_t count)
    int play "dy_play"(Gpu* gpu, const Records* r)
    int failed "dy_gpu_failed"(Gpu* gpu, int error, int kernel)
    int error_of "dy_gpu_error"(Gpu* gpu)
    void set_error "dy_gpu_set_error"(Gpu* gpu, int error)
    # end of functions

    # derived: types of GpuForward, GpuBackward, Note
    ctypedef int (*GpuForward "dy_gpu_forward")(Gpu* gpu, const Call* c) noexcept nogil
    ctypedef int (*GpuBackward "dy_gpu_backward")(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil
    ctypedef void (*Note "dy_note")(const Call* c, const uint32_t* items) noexcept nogil
    # end of types
    # derived: structs of GpuOp = dy_gpu_op with saved work factors spread same laid assigns lists of needs,
    #     Chunk = dy_device_chunk, DeviceArena
    ctypedef struct GpuOp "dy_gpu_op":
        Needs* needs
        GpuForward forward
        GpuBackward backward
        GpuForward begin_backward
        Saved prepared
        Note note
        uint64_t modules
        void* (*load)(Gpu* gpu, uint32_t op) noexcept nogil
        uint64_t devices
        uint8_t draws
        uint8_t step
        GpuForward sums
        uint8_t adds_to_first
        Saved saved "needs->saved"
        Work work "needs->work"
        FactorsOf factors "needs->factors"
        Spread spread "needs->spread"
        Same same "needs->same"
        IsLaid laid "needs->laid"
        uint8_t assigns "needs->assigns"
        uint8_t lists "needs->lists"

    ctypedef struct Chunk "dy_device_chunk":
        uint64_t handle
        size_t bytes

    ctypedef struct DeviceArena "dy_device_arena":
        Gpu* gpu
        Address base
        size_t reserved
        size_t mapped
        size_t gap
        uint32_t n_chunks
        Chunk chunks[64]
    # end of structs


# For `launch`: blocks in a row of the grid, with a thread for each of n elements; rows of the grid, one for each of n.
cdef inline unsigned across(const Gpu* gpu, size_t n) noexcept nogil:
    return blocks(gpu, (n + THREADS - 1) // THREADS)


cdef inline unsigned planes(size_t n) noexcept nogil:
    return <unsigned>min(n, <size_t>65535)


cdef enum:
    MOST_GPUS = 64

cdef const char* kernel_names[2048]             # by number, for messages; filled by the registry
cdef Gpu* gpu_at(int number) except NULL        # opens the device at the first call
cdef Gpu* opened_gpu(int number) noexcept nogil         # one that is open already
cdef int check(Gpu* gpu, int error, str what) except -1
cdef int raise_error(Gpu* gpu, int error) except -1     # raise an error that leave() has returned
cdef int enter(Gpu* gpu) noexcept nogil         # lock the device, and make its context current
cdef int leave(Gpu* gpu) noexcept nogil         # unlock; returns the error since enter(), for this thread to raise
cdef int leave_or_raise(Gpu* gpu) except -1 nogil       # unlock, and raise that error
cdef int fetch_bytes(Gpu* gpu, void* host_ptr, Address device_ptr, size_t n) noexcept nogil  # done when wait() returns
cdef int wait(Gpu* gpu) noexcept nogil
cdef int fetch_now(Gpu* gpu, void* host_ptr, const void* device_ptr, size_t n) except -1    # enters, copies and waits
# Wait until the stream is idle, without the lock.  Signal handlers run meanwhile, and their exceptions propagate.
cdef int wait_for(Gpu* gpu) except -1
# The same, but an exception of a handler is kept in `s`, and ends the wait.
cdef void wait_with(Gpu* gpu, Interrupts* s) noexcept nogil
# Where kernels note an index that they refuse; NULL after an error.
cdef void* refused_of(Gpu* gpu) noexcept nogil
# Raise an IndexError if an index was refused.  To be called after each wait for the device.
cdef int check_refused(Gpu* gpu) except -1
