/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as the engine sees it: the functions of the driver and of cuBLAS, loaded at run time, so that no CUDA header
 * is needed; an open device; launches, executed or recorded; and GPU ops, which run an op on a GPU. */
#ifndef DYNET_CY_GPU_H
#define DYNET_CY_GPU_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"
#include "tensor.h"

typedef uint64_t dy_address;    /* CUdeviceptr */

/* DRIVER(exported name, (arguments)): functions of libcuda that return a CUresult. */
#define DY_DRIVER_FUNCTIONS \
    DRIVER(cuCtxSetCurrent, (void *context)) \
    DRIVER(cuGetErrorString, (int error, const char **text)) \
    DRIVER(cuModuleLoadData, (void **module, const void *image)) \
    DRIVER(cuModuleGetFunction, (void **function, void *module, const char *name)) \
    DRIVER(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                            unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)) \
    DRIVER(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    DRIVER(cuDeviceTotalMem_v2, (size_t *bytes, int device)) \
    DRIVER(cuMemGetInfo_v2, (size_t *unused, size_t *total)) \
    DRIVER(cuMemGetAllocationGranularity, (size_t *bytes, const void *properties, int option)) \
    DRIVER(cuMemAddressReserve, (dy_address *p, size_t bytes, size_t alignment, dy_address at, \
                                 unsigned long long flags)) \
    DRIVER(cuMemAddressFree, (dy_address p, size_t bytes)) \
    DRIVER(cuMemCreate, (uint64_t *handle, size_t bytes, const void *properties, unsigned long long flags)) \
    DRIVER(cuMemRelease, (uint64_t handle)) \
    DRIVER(cuMemMap, (dy_address p, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)) \
    DRIVER(cuMemSetAccess, (dy_address p, size_t bytes, const void *access, size_t count)) \
    DRIVER(cuMemUnmap, (dy_address p, size_t bytes)) \
    DRIVER(cuMemHostAlloc, (void **p, size_t bytes, unsigned flags)) \
    DRIVER(cuMemFreeHost, (void *p)) \
    DRIVER(cuMemcpyHtoDAsync_v2, (dy_address to, const void *from, size_t bytes, void *stream)) \
    DRIVER(cuMemcpyDtoHAsync_v2, (void *to, dy_address from, size_t bytes, void *stream)) \
    DRIVER(cuMemsetD32Async, (dy_address p, unsigned value, size_t n, void *stream)) \
    DRIVER(cuStreamCreate, (void **stream, unsigned flags)) \
    DRIVER(cuStreamSynchronize, (void *stream)) \
    DRIVER(cuEventCreate, (void **event, unsigned flags)) \
    DRIVER(cuEventRecord, (void *event, void *stream)) \
    DRIVER(cuEventSynchronize, (void *event)) \
    DRIVER(cuMemAlloc_v2, (dy_address *p, size_t bytes)) \
    DRIVER(cuStreamBeginCapture_v2, (void *stream, int mode)) \
    DRIVER(cuStreamEndCapture, (void *stream, void **graph)) \
    DRIVER(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    DRIVER(cuGraphLaunch, (void *exec, void *stream)) \
    DRIVER(cuGraphExecDestroy, (void *exec)) \
    DRIVER(cuGraphDestroy, (void *graph)) \
    DRIVER(cuFuncGetParamInfo, (void *function, size_t i, size_t *offset, size_t *bytes))

/* BLAS(exported name, (arguments)): functions of libcublas that return a cublasStatus_t. */
#define DY_BLAS_FUNCTIONS \
    BLAS(cublasCreate_v2, (void **handle)) \
    BLAS(cublasSetStream_v2, (void *handle, void *stream)) \
    BLAS(cublasSetWorkspace_v2, (void *handle, void *workspace, size_t bytes)) \
    BLAS(cublasSetMathMode, (void *handle, int mode)) \
    BLAS(cublasGemmEx, (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, \
                        int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c, \
                        int type_c, int ldc, int compute, int algorithm)) \
    BLAS(cublasGemmStridedBatchedEx, (void *handle, int ta, int tb, int m, int n, int k, const void *alpha, \
                                      const void *a, int type_a, int lda, long long stride_a, const void *b, \
                                      int type_b, int ldb, long long stride_b, const void *beta, void *c, int type_c, \
                                      int ldc, long long stride_c, int count, int compute, int algorithm))

/* Of cuBLAS: how products of float32 numbers are computed (exactly; factors rounded to bfloat16; to TF32), the type of
 * float32 numbers, and the algorithm that cuBLAS chooses. */
enum { DY_COMPUTE_FLOAT32 = 68, DY_COMPUTE_BF16 = 75, DY_COMPUTE_TF32 = 77, DY_FLOAT32 = 0, DY_ANY_ALGORITHM = -1 };

typedef struct {
#define DRIVER(name, arguments) int (*name) arguments;
    DY_DRIVER_FUNCTIONS
#undef DRIVER
} dy_driver;

typedef struct {
#define BLAS(name, arguments) int (*name) arguments;
    DY_BLAS_FUNCTIONS
#undef BLAS
} dy_blas;

#define DY_MAX_KERNELS 2048
#define DY_MOST_PARAMETERS 20
#define DY_MOST_PARAMETER_BYTES 4096            /* of all parameters of a kernel */

/* The recorded commands of a device. */
typedef struct {
    uint64_t launches, products, fills, uploads, fetches, uploaded_bytes, fetched_bytes, waits;
    uint64_t replays;           /* launches of CUDA graphs */
    uint64_t replayed;          /* launches, products and fills that were in them */
    uint64_t captures;          /* CUDA graphs that were made */
    uint64_t failed_captures;
} dy_gpu_counts;

/* A sequence of launches, products and fills: for each a dy_record and its data. */
typedef struct {
    char *p;
    size_t bytes, capacity;
    size_t last;                /* where the last record begins */
    uint32_t count;
} dy_records;

typedef struct {
    const dy_driver *driver;
    const dy_blas *blas;
    void *context, *stream, *blas_handle;
    int number;
    uint32_t multiprocessors;
    pthread_mutex_t lock;       /* held while work is put on the stream */
    void *functions[DY_MAX_KERNELS];        /* by number of the kernel; NULL: its module is not loaded */
    int parameters[DY_MAX_KERNELS];
    uint16_t parameter_bytes[DY_MAX_KERNELS][DY_MOST_PARAMETERS];
    const uint32_t *items;      /* the items of the running call on the host; call->items are on the device */
    uint32_t op;                /* number of its op */
    int compute;                /* one of DY_COMPUTE_*, for products from now on; set when the lock is taken */
    int error;                  /* of the driver, once something failed; of cuBLAS: its negative. By dy_gpu_set_error */
    int error_kernel;           /* the kernel whose launch failed, or -1 */
    dy_gpu_counts counts;
    dy_records *records;        /* if not NULL, launches, products and fills are recorded here instead of executed */
    int apart;                  /* products are recorded one by one, not joined */
    char table[DY_MOST_PARAMETER_BYTES];        /* a parameter of the running launch of which only a part was recorded */
    dy_address workspace;       /* of cuBLAS; 0: it could not be allocated */
} dy_gpu;

/* ---- launches ------------------------------------------------------------ */

/* One argument of a kernel. Whole numbers take 8 bytes, of which a kernel reads 4 or 8. */
typedef struct {
    union {
        int64_t i;
        uint64_t u;
        float f;
        const void *p;
    } x;
    const void *by_value;       /* a struct that is passed by value, or NULL */
    size_t bytes;               /* of the struct, if the kernel reads no more than its beginning; 0: all of it */
} dy_slot;

typedef struct {
    const void *p;
    size_t bytes;
} dy_by_value;

static inline dy_by_value dy_value_at(const void *p) { return (dy_by_value){p, 0}; }

/* The first `bytes` bytes of a struct at p, the last parameter of a kernel, which reads no more of it. */
static inline dy_by_value dy_beginning_of(const void *p, size_t bytes) { return (dy_by_value){p, bytes}; }

static inline dy_slot dy_slot_i(int64_t x) { return (dy_slot){.x.i = x}; }
static inline dy_slot dy_slot_u(uint64_t x) { return (dy_slot){.x.u = x}; }
static inline dy_slot dy_slot_f(float x) { return (dy_slot){.x.f = x}; }
static inline dy_slot dy_slot_d(double x) { return (dy_slot){.x.f = (float)x}; }
static inline dy_slot dy_slot_p(const void *x) { return (dy_slot){.x.p = x}; }
static inline dy_slot dy_slot_v(dy_by_value x) { return (dy_slot){.by_value = x.p, .bytes = x.bytes}; }

#define DY_SLOT(v) _Generic((v), float: dy_slot_f, double: dy_slot_d, dy_by_value: dy_slot_v, \
    char: dy_slot_i, signed char: dy_slot_i, short: dy_slot_i, int: dy_slot_i, long: dy_slot_i, \
    long long: dy_slot_i, unsigned char: dy_slot_u, unsigned short: dy_slot_u, unsigned: dy_slot_u, \
    unsigned long: dy_slot_u, unsigned long long: dy_slot_u, default: dy_slot_p)(v)

#define DY_SLOTS_1(a) DY_SLOT(a)
#define DY_SLOTS_2(a, ...) DY_SLOT(a), DY_SLOTS_1(__VA_ARGS__)
#define DY_SLOTS_3(a, ...) DY_SLOT(a), DY_SLOTS_2(__VA_ARGS__)
#define DY_SLOTS_4(a, ...) DY_SLOT(a), DY_SLOTS_3(__VA_ARGS__)
#define DY_SLOTS_5(a, ...) DY_SLOT(a), DY_SLOTS_4(__VA_ARGS__)
#define DY_SLOTS_6(a, ...) DY_SLOT(a), DY_SLOTS_5(__VA_ARGS__)
#define DY_SLOTS_7(a, ...) DY_SLOT(a), DY_SLOTS_6(__VA_ARGS__)
#define DY_SLOTS_8(a, ...) DY_SLOT(a), DY_SLOTS_7(__VA_ARGS__)
#define DY_SLOTS_9(a, ...) DY_SLOT(a), DY_SLOTS_8(__VA_ARGS__)
#define DY_SLOTS_10(a, ...) DY_SLOT(a), DY_SLOTS_9(__VA_ARGS__)
#define DY_SLOTS_11(a, ...) DY_SLOT(a), DY_SLOTS_10(__VA_ARGS__)
#define DY_SLOTS_12(a, ...) DY_SLOT(a), DY_SLOTS_11(__VA_ARGS__)
#define DY_SLOTS_13(a, ...) DY_SLOT(a), DY_SLOTS_12(__VA_ARGS__)
#define DY_SLOTS_14(a, ...) DY_SLOT(a), DY_SLOTS_13(__VA_ARGS__)
#define DY_SLOTS_15(a, ...) DY_SLOT(a), DY_SLOTS_14(__VA_ARGS__)
#define DY_SLOTS_16(a, ...) DY_SLOT(a), DY_SLOTS_15(__VA_ARGS__)
#define DY_SLOTS_17(a, ...) DY_SLOT(a), DY_SLOTS_16(__VA_ARGS__)
#define DY_SLOTS_18(a, ...) DY_SLOT(a), DY_SLOTS_17(__VA_ARGS__)
#define DY_SLOTS_19(a, ...) DY_SLOT(a), DY_SLOTS_18(__VA_ARGS__)
#define DY_SLOTS_20(a, ...) DY_SLOT(a), DY_SLOTS_19(__VA_ARGS__)
#define DY_SLOTS_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, \
                      name, ...) name
#define DY_SLOTS(...) DY_SLOTS_PICK(__VA_ARGS__, DY_SLOTS_20, DY_SLOTS_19, DY_SLOTS_18, DY_SLOTS_17, DY_SLOTS_16, \
    DY_SLOTS_15, DY_SLOTS_14, DY_SLOTS_13, DY_SLOTS_12, DY_SLOTS_11, DY_SLOTS_10, DY_SLOTS_9, DY_SLOTS_8, DY_SLOTS_7, \
    DY_SLOTS_6, DY_SLOTS_5, DY_SLOTS_4, DY_SLOTS_3, DY_SLOTS_2, DY_SLOTS_1)(__VA_ARGS__)

/* Error numbers in addition to those of the driver. DY_FORKED: a GPU is used in a process that was forked from one that
 * had used it. DY_PRODUCT_TOO_LARGE: a size or a stride is no int, which cuBLAS takes. */
enum { DY_NOT_LOADED = 100001, DY_WRONG_PARAMETERS, DY_LOG_FULL, DY_FORKED, DY_PRODUCT_TOO_LARGE,
       DY_WRONG_SHAPES };

/* With the lock held, gpu->error can be read directly; these functions are also called without the lock, to ask whether
 * the device is lost. */
static inline int dy_gpu_error(dy_gpu *gpu) { return __atomic_load_n(&gpu->error, __ATOMIC_ACQUIRE); }
static inline void dy_gpu_set_error(dy_gpu *gpu, int error) { __atomic_store_n(&gpu->error, error, __ATOMIC_RELEASE); }

static inline int dy_gpu_failed(dy_gpu *gpu, int error, int kernel) {
    if (error && !gpu->error) {
        gpu->error_kernel = kernel;
        dy_gpu_set_error(gpu, error);
    }
    return error;
}

/* ---- records ------------------------------------------------------------- */

enum { DY_RECORD_LAUNCH, DY_RECORD_FILL, DY_RECORD_PRODUCT };

/* Records have no uninitialized bytes, so they can be compared byte by byte. */
typedef struct {
    uint32_t kind, bytes;       /* of all of it, a multiple of 8 */
} dy_record;

/* Its parameters follow, each in a multiple of 8 bytes. */
typedef struct {
    dy_record record;
    uint32_t kernel, gx, gy, gz, block, shared, n;
    uint32_t beginning;         /* how many bytes of the last parameter were recorded; 0: all */
} dy_launch;

typedef struct {
    dy_record record;
    uint64_t p, n;
    uint32_t bits, unused;
} dy_fill;

/* count 0: one product. */
typedef struct {
    dy_record record;
    int32_t ta, tb, m, n, k, lda, ldb, ldc, count;
    float alpha, beta;
    int32_t compute;
    const float *a, *b;
    float *c;
    int64_t stride_a, stride_b, stride_c;
} dy_product;

/* Append a record of `bytes` bytes, all 0 except its kind and size; NULL after an error. */
static inline void *dy_add_record(dy_gpu *gpu, uint32_t kind, size_t bytes) {
    dy_records *r = gpu->records;
    dy_record *record;
    if (r->capacity - r->bytes < bytes) {
        size_t capacity = 2 * (r->capacity + bytes) + 4096;
        char *p = (char *)realloc(r->p, capacity);
        if (!p) {
            dy_gpu_failed(gpu, DY_LOG_FULL, -1);
            return NULL;
        }
        r->p = p;
        r->capacity = capacity;
    }
    record = (dy_record *)(r->p + r->bytes);
    memset(record, 0, bytes);
    record->kind = kind;
    record->bytes = (uint32_t)bytes;
    r->last = r->bytes;
    r->bytes += bytes;
    r->count++;
    return record;
}

/* Take the last record away, of which there is one. Another one must follow. */
static inline void dy_drop_record(dy_gpu *gpu) {
    gpu->records->bytes = gpu->records->last;
    gpu->records->count--;
}

static inline size_t dy_whole_words(size_t bytes) { return (bytes + 7) / 8 * 8; }

static inline int dy_record_launch(dy_gpu *gpu, int kernel, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                                   unsigned shared, void *const *parameters, size_t beginning) {
    const uint16_t *bytes = gpu->parameter_bytes[kernel];
    size_t total = sizeof(dy_launch);
    int i, n = gpu->parameters[kernel];
    dy_launch *r;
    char *to;
    for (i = 0; i < n; i++)
        total += dy_whole_words(beginning && i == n - 1 ? beginning : bytes[i]);
    r = (dy_launch *)dy_add_record(gpu, DY_RECORD_LAUNCH, total);
    if (!r)
        return gpu->error;
    r->kernel = (uint32_t)kernel;
    r->gx = gx;
    r->gy = gy;
    r->gz = gz;
    r->block = block;
    r->shared = shared;
    r->n = (uint32_t)n;
    r->beginning = (uint32_t)beginning;
    to = (char *)(r + 1);
    for (i = 0; i < n; i++) {
        memcpy(to, parameters[i], beginning && i == n - 1 ? beginning : bytes[i]);
        to += dy_whole_words(bytes[i]);
    }
    return 0;
}

/* ---- launches, continued --------------------------------------------------- */

/* Any grid works, since kernels stride over what it does not cover; so limit it to what the device can use. */
static inline unsigned dy_blocks(const dy_gpu *gpu, size_t blocks) {
    size_t most = (size_t)gpu->multiprocessors * 16;
    return (unsigned)(blocks == 0 ? 1 : blocks < most ? blocks : most);
}

static inline int dy_launch_now(dy_gpu *gpu, int kernel, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                                unsigned shared, void **parameters, size_t beginning) {
    void **last = &parameters[gpu->parameters[kernel] - 1];
    if (beginning) /* the driver reads all of it */
        *last = memcpy(gpu->table, *last, beginning);
    gpu->counts.launches++;
    return dy_gpu_failed(gpu, gpu->driver->cuLaunchKernel(gpu->functions[kernel], gx, gy, gz, block, 1, 1, shared,
                                                          gpu->stream, parameters, NULL), kernel);
}

/* gz: for kernels that run several calls (launch_sections.h). */
static inline int dy_launch_slots(dy_gpu *gpu, int kernel, unsigned gx, unsigned gy, unsigned gz, unsigned block,
                                  unsigned shared, dy_slot *slots, int n) {
    void *parameters[DY_MOST_PARAMETERS];
    if (gpu->error)
        return gpu->error;
    if (!gpu->functions[kernel])
        return dy_gpu_failed(gpu, DY_NOT_LOADED, kernel);
    if (gpu->parameters[kernel] != n)
        return dy_gpu_failed(gpu, DY_WRONG_PARAMETERS, kernel);
    for (int i = 0; i < n; i++)
        parameters[i] = slots[i].by_value ? (void *)slots[i].by_value : (void *)&slots[i].x;
    if (gpu->records)
        return dy_record_launch(gpu, kernel, gx, gy, gz, block, shared, parameters, slots[n - 1].bytes);
    return dy_launch_now(gpu, kernel, gx, gy, gz, block, shared, parameters, slots[n - 1].bytes);
}

#define DY_LAUNCH(gpu, kernel, gx, gy, block, shared, ...) \
    dy_launch_slots(gpu, kernel, gx, gy, 1, block, shared, (dy_slot[]){DY_SLOTS(__VA_ARGS__)}, \
                    (int)(sizeof((dy_slot[]){DY_SLOTS(__VA_ARGS__)}) / sizeof(dy_slot)))

#define DY_THREADS 256

/* The same, where `n` says how much there is to do: nothing is launched for 0. */
#define DY_LAUNCH_FOR(gpu, kernel, n, gx, gy, block, ...) \
    ((n) == 0 ? (gpu)->error : DY_LAUNCH(gpu, kernel, gx, gy, block, 0, __VA_ARGS__))

/* launch_each: about one thread for each of n elements, in blocks of DY_THREADS. */
#define DY_LAUNCH_EACH(gpu, kernel, n, ...) \
    DY_LAUNCH_FOR(gpu, kernel, n, dy_blocks(gpu, ((size_t)(n) + DY_THREADS - 1) / DY_THREADS), 1, DY_THREADS, __VA_ARGS__)

/* launch_rows: one block for each of n rows, with enough threads for `width` elements, in whole warps. */
static inline unsigned dy_row_threads(size_t width) {
    return width <= 32 ? 32 : width <= 64 ? 64 : width <= 128 ? 128 : 256;
}
#define DY_LAUNCH_ROWS(gpu, kernel, n, width, ...) \
    DY_LAUNCH_FOR(gpu, kernel, n, dy_blocks(gpu, n), 1, dy_row_threads(width), __VA_ARGS__)

/* launch_slices: for each of n rows several blocks along y, as many as `width` needs and the device can run at once. */
static inline unsigned dy_slices(const dy_gpu *gpu, size_t n, size_t width) {
    size_t blocks = (width + 255) / 256, most = (size_t)gpu->multiprocessors * 16 / n;
    blocks = blocks < most ? blocks : most;
    return (unsigned)(blocks == 0 ? 1 : blocks < 65535 ? blocks : 65535);
}
#define DY_LAUNCH_SLICES(gpu, kernel, n, width, ...) \
    DY_LAUNCH_FOR(gpu, kernel, n, dy_blocks(gpu, n), dy_slices(gpu, n, width), dy_row_threads(width), __VA_ARGS__)

static inline int dy_fill_now(dy_gpu *gpu, uint64_t p, unsigned bits, size_t n) {
    gpu->counts.fills++;
    return dy_gpu_failed(gpu, gpu->driver->cuMemsetD32Async((dy_address)p, bits, n, gpu->stream), -1);
}

/* Set n floats at p to x. */
static inline int dy_gpu_fill(dy_gpu *gpu, size_t n, float x, const void *p) {
    uint32_t bits;
    if (gpu->error || n == 0)
        return gpu->error;
    memcpy(&bits, &x, sizeof bits);
    if (gpu->records) {
        dy_fill *r = (dy_fill *)dy_add_record(gpu, DY_RECORD_FILL, sizeof(dy_fill));
        if (r) {
            r->p = (uintptr_t)p;
            r->n = n;
            r->bits = bits;
        }
        return gpu->error;
    }
    return dy_fill_now(gpu, (uintptr_t)p, bits, n);
}

static inline int dy_product_now(dy_gpu *gpu, const dy_product *p) {
    int status;
    gpu->counts.products++;
    if (p->count == 0)
        status = gpu->blas->cublasGemmEx(gpu->blas_handle, p->ta, p->tb, p->m, p->n, p->k, &p->alpha, p->a, DY_FLOAT32,
                                         p->lda, p->b, DY_FLOAT32, p->ldb, &p->beta, p->c, DY_FLOAT32, p->ldc,
                                         p->compute, DY_ANY_ALGORITHM);
    else
        status = gpu->blas->cublasGemmStridedBatchedEx(
            gpu->blas_handle, p->ta, p->tb, p->m, p->n, p->k, &p->alpha, p->a, DY_FLOAT32, p->lda, p->stride_a, p->b,
            DY_FLOAT32, p->ldb, p->stride_b, &p->beta, p->c, DY_FLOAT32, p->ldc, p->stride_c, p->count, p->compute,
            DY_ANY_ALGORITHM);
    return dy_gpu_failed(gpu, -status, -1);
}

/* Whether arrays of n and m floats share some. */
static inline int dy_share(const float *x, size_t n, const float *y, size_t m) { return x < y + m && y < x + n; }

/* Larger products fill a device alone; this many multiplications. */
#define DY_MOST_JOINED ((double)(1 << 26))

/* Make one more product part of a recorded one, as a batch of matrices at constant distances: both have the same sizes,
 * and none reads or writes what the other writes. Two products nearly always can, such as those of the two directions of a
 * recurrent network. But factors that are rounded to TF32 or bfloat16 are multiplied by kernels of cuBLAS 13 that read
 * illegal addresses at such distances on an H100. */
static inline int dy_join_products(dy_product *r, const dy_product *p) {
    size_t size_a = (size_t)p->lda * (size_t)(p->ta ? p->m : p->k), size_b = (size_t)p->ldb * (size_t)(p->tb ? p->k : p->n);
    size_t size_c = (size_t)p->ldc * (size_t)p->n, before = r->count > 1 ? (size_t)r->count : 1;
    int64_t by_a = before > 1 ? r->stride_a : p->a - r->a, by_b = before > 1 ? r->stride_b : p->b - r->b;
    int64_t by_c = before > 1 ? r->stride_c : p->c - r->c;
    if (p->count > 0 || p->ta != r->ta || p->tb != r->tb || p->m != r->m || p->n != r->n || p->k != r->k ||
        p->lda != r->lda || p->ldb != r->ldb || p->ldc != r->ldc || p->alpha != r->alpha || p->beta != r->beta ||
        p->compute != DY_COMPUTE_FLOAT32 || r->compute != DY_COMPUTE_FLOAT32 ||
        (double)p->m * p->n * p->k > DY_MOST_JOINED)
        return 0;
    if (before == 1 && by_a <= 0 && by_b <= 0 && by_c < 0) { /* the later one comes first */
        if (dy_share(p->c, size_c, r->c, size_c) || dy_share(p->c, size_c, r->a, size_a) ||
            dy_share(p->c, size_c, r->b, size_b) || dy_share(r->c, size_c, p->a, size_a) ||
            dy_share(r->c, size_c, p->b, size_b))
            return 0;
        r->a = p->a;
        r->b = p->b;
        r->c = p->c;
        by_a = -by_a;
        by_b = -by_b;
        by_c = -by_c;
    } else {
        size_t all_c = size_c + (before - 1) * (size_t)by_c;
        if (by_a < 0 || by_b < 0 || by_c <= 0 || p->a != r->a + (int64_t)before * by_a ||
            p->b != r->b + (int64_t)before * by_b || p->c != r->c + (int64_t)before * by_c ||
            dy_share(p->c, size_c, r->c, all_c) || dy_share(p->a, size_a, r->c, all_c) ||
            dy_share(p->b, size_b, r->c, all_c) ||
            dy_share(p->c, size_c, r->a, size_a + (before - 1) * (size_t)by_a) ||
            dy_share(p->c, size_c, r->b, size_b + (before - 1) * (size_t)by_b))
            return 0;
    }
    r->count = (int32_t)before + 1;
    r->stride_a = by_a;
    r->stride_b = by_b;
    r->stride_c = by_c;
    return 1;
}

/* `sizes`: the bits of all sizes and strides of columns, which p has as int. */
static inline int dy_multiply(dy_gpu *gpu, size_t sizes, dy_product p) {
    if (sizes >> 31)
        return dy_gpu_failed(gpu, DY_PRODUCT_TOO_LARGE, -1);
    p.compute = gpu->compute;
    if (gpu->records) {
        dy_product *r = (dy_product *)(gpu->records->p + gpu->records->last);
        if (!gpu->apart && gpu->records->count && r->record.kind == DY_RECORD_PRODUCT && dy_join_products(r, &p))
            return gpu->error;
        r = (dy_product *)dy_add_record(gpu, DY_RECORD_PRODUCT, sizeof(dy_product));
        if (r) {
            p.record = r->record;
            *r = p;
        }
        return gpu->error;
    }
    return dy_product_now(gpu, &p);
}
/* It must have no padding, so that records can be compared byte by byte. */
_Static_assert(sizeof(dy_product) == 104, "a product without padding");

/* C = beta C, with beta 0 or 1: a product without terms. */
static inline int dy_gpu_no_terms(dy_gpu *gpu, size_t m, size_t n, float beta, float *c, size_t ldc) {
    size_t columns = ldc == m ? n : 1; /* without gaps */
    for (size_t j = 0; beta == 0 && j < n && !gpu->error; j += columns)
        dy_gpu_fill(gpu, m * columns, 0, c + j * ldc);
    return gpu->error;
}

/* C = alpha op(A) op(B) + beta C as in BLAS, column-major; with beta 0, C is not read. */
static inline int dy_gpu_gemm(dy_gpu *gpu, int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                              size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc) {
    if (gpu->error || m == 0 || n == 0)
        return gpu->error;
    if (k == 0)
        return dy_gpu_no_terms(gpu, m, n, beta, c, ldc);
    return dy_multiply(gpu, m | n | k | lda | ldb | ldc,
                       (dy_product){.ta = ta, .tb = tb, .m = (int)m, .n = (int)n, .k = (int)k, .lda = (int)lda,
                                    .ldb = (int)ldb, .ldc = (int)ldc, .alpha = alpha, .beta = beta, .a = a, .b = b,
                                    .c = c});
}

/* The same for `count` products whose matrices are stride_a, stride_b, stride_c floats apart; a stride may be 0. */
static inline int dy_gpu_gemm_strided(dy_gpu *gpu, int ta, int tb, size_t m, size_t n, size_t k, float alpha,
                                      const float *a, size_t lda, size_t stride_a, const float *b, size_t ldb,
                                      size_t stride_b, float beta, float *c, size_t ldc, size_t stride_c,
                                      size_t count) {
    if (gpu->error || m == 0 || n == 0 || count == 0)
        return gpu->error;
    if (k == 0) {
        for (size_t i = 0; i < count; i++)
            dy_gpu_no_terms(gpu, m, n, beta, c + i * stride_c, ldc);
        return gpu->error;
    }
    return dy_multiply(gpu, m | n | k | lda | ldb | ldc | count,
                       (dy_product){.ta = ta, .tb = tb, .m = (int)m, .n = (int)n, .k = (int)k, .lda = (int)lda,
                                    .ldb = (int)ldb, .ldc = (int)ldc, .count = (int)count, .alpha = alpha,
                                    .beta = beta, .a = a, .b = b, .c = c, .stride_a = (int64_t)stride_a,
                                    .stride_b = (int64_t)stride_b, .stride_c = (int64_t)stride_c});
}

/* Execute the records. */
static inline int dy_play(dy_gpu *gpu, const dy_records *r) {
    for (size_t at = 0; at < r->bytes && !gpu->error;) {
        const dy_record *record = (const dy_record *)(r->p + at);
        if (record->kind == DY_RECORD_LAUNCH) {
            const dy_launch *l = (const dy_launch *)record;
            char *from = (char *)(l + 1);
            void *parameters[DY_MOST_PARAMETERS];
            for (uint32_t i = 0; i < l->n; i++) {
                parameters[i] = from;
                from += dy_whole_words(gpu->parameter_bytes[l->kernel][i]);
            }
            dy_launch_now(gpu, (int)l->kernel, l->gx, l->gy, l->gz, l->block, l->shared, parameters, l->beginning);
        } else if (record->kind == DY_RECORD_FILL) {
            const dy_fill *f = (const dy_fill *)record;
            dy_fill_now(gpu, f->p, f->bits, f->n);
        } else {
            dy_product_now(gpu, (const dy_product *)record);
        }
        at += record->bytes;
    }
    return gpu->error;
}

/* ---- GPU ops: how an op runs on a GPU --------------------------------------- */

/* Pointers of the call point to device memory, except attrs, object and gpu->items. These functions do not wait for the
 * device. They return 0, or an error. */
typedef int (*dy_gpu_forward)(dy_gpu *gpu, const dy_call *c);
typedef int (*dy_gpu_backward)(dy_gpu *gpu, const dy_call *c, uint32_t i);
/* Notes on the host what backward is about to change; c->items are on the device, `items` on the host.  The lock of the
 * parameter is held. */
typedef void (*dy_note)(const dy_call *c, const uint32_t *items);

typedef struct {
    dy_needs *needs;            /* on GPUs; `saved` is that of the CPU unless set.  `factors` launches nothing */
    dy_gpu_forward forward;     /* NULL: the op does not run on GPUs yet */
    dy_gpu_backward backward;
    dy_gpu_forward begin_backward;  /* NULL, or: runs once per call, before `backward` for any of its arguments */
    dy_saved prepared;          /* NULL: none.  Floats in c->work that last from begin_backward to the last `backward` */
    dy_note note;               /* NULL: nothing is noted */
    uint64_t modules;           /* bits: the modules that its kernels are in */
    /* NULL, or: loads kernels of its own, which are in no module, on a device, before its first forward there; returns an
     * exception, a new reference, or NULL. */
    void *(*load)(dy_gpu *gpu, uint32_t op);
    uint64_t devices;           /* bits: the devices that have loaded them */
    uint8_t draws;              /* it draws random numbers: call->seed is then the device address of seed and stream */
    uint8_t step;               /* which step of an LSTM cell it is (DY_SUMS, ...), or 0: see gpu/cells */
    /* Of DY_SUMS: `forward` without argument 0, the bias, and without the activations.  Of ops that add to argument 0:
     * `forward` if y is that argument already. */
    dy_gpu_forward sums;
    uint8_t adds_to_first;
} dy_gpu_op;

/* The steps of an LSTM cell: gates of a sum, state from gates and the state before, output from state and gates. */
enum { DY_SUMS = 1, DY_STATE, DY_OUTPUT };

/* ---- memory ---------------------------------------------------------------- */

/* A mapped part of an arena of the device. */
typedef struct {
    uint64_t handle;
    size_t bytes;
} dy_device_chunk;

#define DY_MOST_CHUNKS 64

/* A reserved range of device addresses that is mapped from its beginning on, in chunks that double. */
typedef struct {
    dy_gpu *gpu;
    dy_address base;
    size_t reserved, mapped;
    size_t gap;                 /* addresses after it that stay unmapped, so that no other memory is adjacent to it */
    uint32_t n_chunks;
    dy_device_chunk chunks[DY_MOST_CHUNKS];
} dy_device_arena;

#endif
