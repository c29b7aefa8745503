/* Makes the n-th allocation of the engine fail; to be loaded with LD_PRELOAD.
 *
 * It counts calls of malloc, calloc, realloc, posix_memalign, mmap and mremap from the extension modules of dynet_cy, and
 * allocations of Python objects by functions that these modules call, as long as the interpreter runs no other code.
 * Allocations by greenlet, which saves stacks, are not counted: it ends the process if one fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

#define MOST_MODULES 512

typedef struct {
    uintptr_t from, to;
} range;

static range modules[MOST_MODULES], others[MOST_MODULES];
static int n_modules, n_others;
static range interpreter;       /* the function that runs bytecode */
static int counting;            /* only the calling thread is counted, so that counts are reproducible */
static _Thread_local int mine, inside;
static long asked, failing;

static void add_code(const struct dl_phdr_info *info, range *list, int *n) {
    for (int i = 0; i < info->dlpi_phnum && *n < MOST_MODULES; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            list[(*n)++] = (range){from, from + info->dlpi_phdr[i].p_memsz};
        }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (strstr(info->dlpi_name, "/dynet_cy/"))
        add_code(info, modules, &n_modules);
    else if (strstr(info->dlpi_name, "/greenlet/"))
        add_code(info, others, &n_others);
    return 0;
}

static int is_in(const void *p, const range *list, int n) {
    for (int i = 0; i < n; i++)
        if ((uintptr_t)p >= list[i].from && (uintptr_t)p < list[i].to)
            return 1;
    return 0;
}

static int in_engine(const void *p) { return is_in(p, modules, n_modules); }

/* Count an allocation; return whether it must fail. */
static int due(void) { return ++asked == failing; }

static int due_here(const void *caller) { return counting && mine && !inside && in_engine(caller) && due(); }

/* Visits frames, the innermost first.  Stops at greenlet's frames: those after them may be of stacks that were saved. */
static _Unwind_Reason_Code look_at(struct _Unwind_Context *frame, void *found) {
    const void *p = (const void *)_Unwind_GetIP(frame);
    if (in_engine(p))
        *(int *)found = 1;
    int ends = in_engine(p) || is_in(p, &interpreter, 1) || is_in(p, others, n_others);
    return ends ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

static int due_below(void) {
    int found = 0;
    if (!counting || !mine || inside)
        return 0;
    inside = 1;
    _Unwind_Backtrace(look_at, &found);
    inside = 0;
    return found && due();
}

/* ---- the C library ---- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

static void *refused(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t n) { return due_here(__builtin_return_address(0)) ? refused() : __libc_malloc(n); }

void *calloc(size_t n, size_t size) {
    return due_here(__builtin_return_address(0)) ? refused() : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    return due_here(__builtin_return_address(0)) ? refused() : __libc_realloc(p, n);
}

int posix_memalign(void **p, size_t alignment, size_t n) {
    void *q = due_here(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
    if (!q)
        return ENOMEM;
    *p = q;
    return 0;
}

void *mmap(void *p, size_t n, int protection, int flags, int file, off_t at) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "mmap");
    if (due_here(__builtin_return_address(0)))
        return refused(), MAP_FAILED;
    return real(p, n, protection, flags, file, at);
}

void *mremap(void *p, size_t had, size_t n, int flags, ...) {
    static void *(*real)(void *, size_t, size_t, int, ...);
    va_list rest;
    va_start(rest, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (!real)
        real = dlsym(RTLD_NEXT, "mremap");
    if (due_here(__builtin_return_address(0)))
        return refused(), MAP_FAILED;
    return real(p, had, n, flags, to);
}

/* ---- Python: PyMemAllocatorEx, which is the same in all versions ---- */

typedef struct {
    void *ctx;
    void *(*malloc)(void *ctx, size_t n);
    void *(*calloc)(void *ctx, size_t n, size_t size);
    void *(*realloc)(void *ctx, void *p, size_t n);
    void (*free)(void *ctx, void *p);
} allocator;

static allocator below[3];

static void *python_malloc(void *ctx, size_t n) {
    allocator *a = ctx;
    return due_below() ? NULL : a->malloc(a->ctx, n);
}

static void *python_calloc(void *ctx, size_t n, size_t size) {
    allocator *a = ctx;
    return due_below() ? NULL : a->calloc(a->ctx, n, size);
}

static void *python_realloc(void *ctx, void *p, size_t n) {
    allocator *a = ctx;
    return due_below() ? NULL : a->realloc(a->ctx, p, n);
}

static void python_free(void *ctx, void *p) {
    allocator *a = ctx;
    a->free(a->ctx, p);
}

/* ---- functions for tests ---- */

/* To be called once, when all modules are loaded. */
void faults_begin(void) {
    void (*get)(int, allocator *) = (void (*)(int, allocator *))dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
    void (*set)(int, allocator *) = (void (*)(int, allocator *))dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
    void *eval = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
    Dl_info info;
    ElfW(Sym) *symbol = NULL;
    int found = 0;
    n_modules = n_others = 0;
    dl_iterate_phdr(add_module, NULL);
    if (eval && dladdr1(eval, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol)
        interpreter = (range){(uintptr_t)eval, (uintptr_t)eval + symbol->st_size};
    _Unwind_Backtrace(look_at, &found);         /* the first one allocates */
    for (int domain = 1; domain < 3; domain++) { /* PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ */
        get(domain, &below[domain]);
        allocator a = {&below[domain], python_malloc, python_calloc, python_realloc, python_free};
        set(domain, &a);
    }
}

/* Start counting; allocation number n fails, none if n is 0. */
void faults_arm(long n) {
    asked = 0;
    failing = n;
    mine = counting = 1;
}

/* Stop counting; returns how many allocations there were. */
long faults_disarm(void) {
    counting = 0;
    return asked;
}
