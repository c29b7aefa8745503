"""Fused kernels for several elementwise ops, compiled at run time when they pay off.

A kernel is found by its signature: the ops of one instance, and which arguments are results of others.  Sizes,
addresses and constants are not part of it, so the cells of a program have one or two signatures, whatever their sizes
are.  Compiling takes a second or more, so it begins when a signature would have saved some launches (64), and there
are no more than a number of kernels in a process (64).  Whatever has no kernel runs one op after another.  Code is
cached on disk like that of all kernels.
"""

from cpython.ref cimport Py_INCREF
from libc.string cimport memcmp, memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.threads cimport Number
from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.gpu.registry cimport NO_MODULE, kernel_at, load_code
from dynet_cy.ops.elementwise cimport BINARY, UNARY
from dynet_cy.ops.registry cimport Op, reads, reads_result

from dynet_cy.gpu.compiler import text_cubin
from dynet_cy.gpu.driver import architecture
from dynet_cy.gpu.fused_source import FusedNode, source_of

cdef enum:
    MOST_KERNELS = 256

cdef Number most_kernels = 64       # signatures that are compiled; 0: those that have been are not used either
cdef Number least_saved = 64        # launches that a kernel would have saved when it is compiled
add_tunable("gpu.fused.most_kernels", &most_kernels, MOST_KERNELS)
add_tunable("gpu.fused.least_saved", &least_saved)

cdef Fused[MOST_KERNELS] kernels
cdef uint32_t n_kernels = 0
cdef pthread_mutex_t lock               # of both
pthread_mutex_init(&lock, NULL)

cdef Number failures = 0
_errors = []


cdef bint may_fuse() noexcept nogil:
    return most_kernels != 0 and failures == 0


cdef inline bint serves(const Signature* x, const Signature* wanted) noexcept nogil:
    return (x.backward == wanted.backward and x.n_words == wanted.n_words and x.grads & wanted.grads == wanted.grads
            and memcmp(x.words, wanted.words, wanted.n_words * sizeof(uint32_t)) == 0)


cdef Fused* find(const Signature* wanted, uint32_t saves) noexcept nogil:
    """Find the kernel for a signature that has been compiled, or is to be compiled now; NULL: there is none."""
    global n_kernels
    cdef Fused* x = NULL
    cdef uint32_t i
    for i in range(n_kernels if most_kernels else 0):
        if serves(&kernels[i].signature, wanted):
            if kernels[i].kernel >= 0:
                return &kernels[i]
            if kernels[i].signature.grads == wanted.grads:
                x = &kernels[i]
    if failures:
        return NULL
    if x == NULL:
        if n_kernels >= most_kernels:
            return NULL
        x = &kernels[n_kernels]
        n_kernels += 1
        memset(x, 0, sizeof(Fused))
        x.signature = wanted[0]
        x.kernel = x.few = -1
    x.saved += saves
    return x if x.saved >= <uint64_t>least_saved else NULL


cdef int fused_kernel(Pass* s, const Signature* signature, uint32_t saves, const Fused** found) noexcept nogil:
    cdef Gpu* gpu = s.d.gpu
    cdef uint64_t device = <uint64_t>1 << gpu.number
    cdef Fused* x
    cdef bint ready
    found[0] = NULL
    pthread_mutex_lock(&lock)
    x = find(signature, saves)
    ready = x != NULL and x.devices & device
    pthread_mutex_unlock(&lock)
    if x == NULL:
        return 0
    if not ready:
        s.walk.failure.raised = make(gpu, x)
        if s.walk.failure.raised != NULL:
            return -1
    if x.kernel >= 0:
        found[0] = x
    return 0


cdef void* make(Gpu* gpu, Fused* x) noexcept with gil:
    """Compile and load a kernel; returns the exception of a signal handler, owned, or NULL."""
    global failures
    cdef int kernel = x.kernel, few = x.few
    cdef bint failed = False
    try:
        code = text_cubin(source(&x.signature), "of several elementwise ops", architecture(gpu.number))
        if kernel < 0:
            kernel = kernel_at(NO_MODULE, b"fused")
            few = kernel_at(NO_MODULE, b"few_fused")
        load_code(gpu, code, [(kernel, b"fused"), (few, b"few_fused")], "several elementwise ops")
    except Exception as e:                      # no compiler, for example: the ops run one after another
        failed = True
        failures += 1
        _errors.append(str(e))
    except BaseException as e:
        Py_INCREF(e)
        return <void*>e
    pthread_mutex_lock(&lock)
    if not failed:
        x.kernel = kernel
        x.few = few
    x.devices |= 0 if failed else <uint64_t>1 << gpu.number
    pthread_mutex_unlock(&lock)
    return NULL


cdef str source(const Signature* x):
    cdef uint32_t k = 0, i, kind, row
    cdef const Op* op
    nodes, kinds = [], {UNARY_ROW: "unary", BINARY_ROW: "binary", COPY: "copy", SUM: "sum"}
    while k < x.n_words:
        kind = x.words[k] & 0xFF
        row = x.words[k] >> 8 & 0xFFFF
        name = b""
        op = NULL
        if kind == UNARY_ROW:
            op = UNARY[row]
        elif kind == BINARY_ROW:
            op = BINARY[row]
        args = tuple([None if x.words[k + 1 + i] == <uint32_t>OUTSIDE else x.words[k + 1 + i]
                      for i in range(x.words[k] >> 24)])
        read = [op != NULL and reads(op, i) for i in range(len(args))]
        if op != NULL:
            name = op.name
        nodes.append(FusedNode(kinds[kind], name.decode(), args, tuple(read), op != NULL and reads_result(op)))
        k += 1 + len(args)
    grads = [i for i in range(len(nodes)) if x.grads >> i & 1]
    return source_of(nodes, grads if x.backward else None)


def describe() -> list[dict[str, Any]]:
    """The signatures that this process has met, as a list of dictionaries.

    Each has the source of its kernel (`source`), whether it has been compiled (`compiled`), and the launches that it
    has saved or would have (`saved`).
    """
    cdef uint32_t i
    return [{"source": source(&kernels[i].signature), "compiled": kernels[i].kernel >= 0,
             "saved": kernels[i].saved} for i in range(n_kernels)]


def errors() -> list[str]:
    """Why a kernel could not be compiled or loaded.

    After such an error no others are tried, and elementwise ops run one after another, until `forget_errors`.
    """
    return list(_errors)


def forget_errors() -> None:
    """Try to compile kernels again."""
    global failures
    failures = 0
    _errors.clear()
