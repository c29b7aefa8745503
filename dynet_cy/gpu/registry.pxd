"""The tables of GPU ops, of kernels and of the modules that contain them."""

from libc.stdint cimport uint64_t

from dynet_cy.gpu.driver cimport Gpu, GpuBackward, GpuForward, GpuOp

# The GPU op for the op of that name.  Module number `module`, from `module_at`, contains its kernels.  The caller sets
# its other fields.
cdef GpuOp* gpu_op(bytes name, int module, GpuForward forward, GpuBackward backward) except NULL
cdef void needs_module(GpuOp* op, int module) noexcept      # a further module of kernels
# The number of the op, which indexes tables and is passed in gpu.op.
cdef unsigned number_of(const GpuOp* op) noexcept nogil
cdef GpuOp* gpu_op_at(unsigned op) noexcept nogil
cdef int module_at(bytes name) except -1
cdef int kernel_at(int module, bytes name) except -1
cdef int load(Gpu* gpu, uint64_t modules) except -1
cdef uint64_t* loaded(Gpu* gpu) noexcept nogil
