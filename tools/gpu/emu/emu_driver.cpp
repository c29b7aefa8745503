// emu_driver.cpp - a small CUDA driver and cuBLAS that run on the CPU, for tests.
//
// make_driver.py --emulated compiles it, with weak stubs for the rest of cuda.h, into
// libcuda.so.1 (and libcublas.so.13, a link to the same file).  It loads the
// shared objects that nvcc_emu writes, so the whole path of a GPU backend runs:
// context, allocation, copies, module loading, launches, streams, events, graphs.
//
// It detects errors and simulates failures:
//  * EMU_ASYNC (default 1): work on a stream runs only when something waits for
//    it (synchronize, a blocking copy, an event wait, a free).  A host buffer
//    overwritten before its copy has run, or a result read before it was waited
//    for, gives wrong numbers here at once, not now and then on a real device.
//  * EMU_STRICT=1: device memory is not accessible between driver calls, so host
//    code that dereferences a device pointer crashes.
//  * While a stream is captured, calls that could wait or allocate fail and invalidate the capture, and products need
//    a workspace that was set. EMU_NO_CAPTURE=begin, product, end or make makes captures fail at that step.
//    EMU_NO_LAUNCH=name or name,name: launching these kernels fails.
//    emu_graphs() returns the number of executable graphs that exist; launching any other fails.
//  * EMU_DEVICES (default 1) is the number of devices: work on a stream of one device fails if another is
//    current, and with EMU_STRICT=1 it cannot access the memory of another.
//  * EMU_TRACE=FILE: every launch, product and copy is written there, one per line, with its grid or its sizes, when it is
//    issued, also while a stream is captured.
//  * EMU_IDLE=1: kernels and products are not run, and memory starts as 0, to count driver calls at any size.
//  * tables of addresses are checked before kernels read them: see check_tables.h
//  * EMU_ACCESSES=1: what kernels read and write is checked: see accesses.h
//  * device memory starts as NaN and ends at a guard page; copies and memsets
//    outside an allocation fail; launch geometry is checked against the limits.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>
#include <chrono>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "accesses.h"
#include "check_tables.h"

#define API extern "C" __attribute__((visibility("default")))
typedef int CUresult;
typedef uintptr_t CUdeviceptr;
enum { OK = 0, E_INVALID = 1, E_OOM = 2, E_NOT_FOUND = 500, E_NOT_READY = 600, E_BAD_IMAGE = 200, E_LAUNCH = 719 };

namespace {
struct KernelInfo {  // the same as emu::KernelInfo in cuda_emu.h
  const char* name; int nparams; const size_t* sizes; const size_t* offsets;
  int (*launch)(const unsigned[3], const unsigned[3], size_t, void**);
  const char* (*error)();
  void (*check)(emu::Place* places, uint32_t launch);
};
struct Alloc { size_t size, mapped; char* base; size_t guard; int device; };
typedef std::function<int()> Op;
struct Stream {
  std::deque<Op> q;
  bool blocking = true, broken = false;
  std::vector<Op>* capture = nullptr;
  int device = -1;  // -1: any
};
struct Event { Stream* s = nullptr; bool recorded = false, done = true; std::chrono::steady_clock::time_point t; uint64_t gen = 0, done_gen = 0; };
struct Function { const KernelInfo* info; int device; const char* layout; size_t max_dyn = 48 * 1024; };
struct Module { void* dl; std::map<std::string, Function*> f; };
struct Graph { std::vector<Op> ops; };
std::set<Graph*> execs;
bool no_capture(const char* where) { const char* v = getenv("EMU_NO_CAPTURE"); return v && !strcmp(v, where); }

std::map<CUdeviceptr, Alloc> allocs;
std::vector<Stream*> streams;
Stream null_stream;
int sticky = 0;
char sticky_text[600];
enum { MOST_DEVICES = 64 };
int ctx_objects[MOST_DEVICES], ctx_depth = 0, current = 0;  // the current device
bool env_on(const char* n, bool dflt) { const char* v = getenv(n); return v ? atoi(v) != 0 : dflt; }
bool lazy() { static int v = -1; if (v < 0) v = env_on("EMU_ASYNC", true); return v; }
bool idle() { static int v = -1; if (v < 0) v = env_on("EMU_IDLE", false); return v; }
bool strict() { static int v = -1; if (v < 0) v = env_on("EMU_STRICT", false); return v; }
bool checked() { static int v = -1; if (v < 0) v = env_on("EMU_ACCESSES", false); return v; }
FILE* trace() { static FILE* f = getenv("EMU_TRACE") ? fopen(getenv("EMU_TRACE"), "w") : nullptr; return f; }
#define TRACE(...) do { if (trace()) { fprintf(trace(), __VA_ARGS__); fflush(trace()); } } while (0)
int open_depth[MOST_DEVICES];
struct Access {  // the memory of a device is accessible while one of these lives
  int device;
  explicit Access(int d) : device(d < 0 ? current : d) { if (strict() && open_depth[device]++ == 0) set(PROT_READ | PROT_WRITE); }
  ~Access() { if (strict() && --open_depth[device] == 0) set(PROT_NONE); }
  void set(int p) { for (auto& a : allocs) if (a.second.device == device) mprotect(a.second.base, a.second.mapped - a.second.guard, p); }
};
Stream* real(Stream* s) { return (s == nullptr || (uintptr_t)s <= 2) ? &null_stream : s; }
int run(Stream* s, double seconds = 1e9) {
  if (s->q.empty()) return sticky;
  Access a(s->device);  // once for the whole queue: it costs much more than most kernels
  const auto begun = std::chrono::steady_clock::now();
  while (!s->q.empty() && std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() < seconds) {
    Op op = std::move(s->q.front());
    s->q.pop_front();
    int rc = op();
    if (rc && !sticky) sticky = rc;
  }
  return sticky;
}
// While a stream is captured, calls that could wait or allocate are errors, and invalidate the capture.
bool capturing() {
  bool any = false;
  for (auto* s : streams) if (s->capture) any = s->broken = true;
  return any;
}
#define NOT_CAPTURED() do { if (capturing()) return 900; } while (0)
int run_all() { run(&null_stream); for (auto* s : streams) run(s); return sticky; }
int put(Stream* s0, Op op) {
  Stream* s = real(s0);
  if (s->device >= 0 && s->device != current) return 400;
  if (s->capture) { s->capture->push_back(std::move(op)); return OK; }
  if (s == &null_stream) { for (auto* t : streams) if (t->blocking) run(t); }
  else if (s->blocking) run(&null_stream);
  s->q.push_back(std::move(op));
  return lazy() ? sticky : run(s);
}
bool device_range(CUdeviceptr p, size_t n) {
  auto it = allocs.upper_bound(p);
  if (it == allocs.begin()) return false;
  --it;
  CUdeviceptr end = p + n;
  while (p >= it->first && p < it->first + it->second.size) {  // mapped chunks may be adjacent
    if (end <= it->first + it->second.size) return true;
    p = it->first + it->second.size;
    if (++it == allocs.end()) return false;
  }
  return false;
}
// ---- what is memory, for accesses.h
const uintptr_t kNone = 1;  // of the device, but no memory
emu::Place* places() {
  static emu::Place* p = nullptr;
  if (!p) {
    void* at = mmap(nullptr, emu::kPlaces * sizeof(emu::Place), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) { perror("emu_driver: mmap"); abort(); }
    p = (emu::Place*)at;
    p[0] = {kNone, kNone, nullptr};  // NULL, and not far from it
  }
  return p;
}
// Of the n bytes at `base`, which are whole places, those from `from` to `to` are memory now; 0, 0: they are not of the device.
void set_memory(uintptr_t base, size_t n, uintptr_t from, uintptr_t to) {
  for (uintptr_t at = base; at < base + n; at += emu::kPlace) {
    emu::Place& p = places()[at >> emu::kPlaceBits];
    p.forget();
    p = {from, to, nullptr};
  }
}
// The n bytes at `base`, which are whole places, are memory now; those around them are none, as far as a place, unless they are.
void add_memory(uintptr_t base, size_t n) {
  set_memory(base, n, base, base + n);
  for (uintptr_t around : {base - emu::kPlace, base + n})
    if (!places()[around >> emu::kPlaceBits].to) set_memory(around, emu::kPlace, kNone, kNone);
}
// Call f(word) for the notes of n bytes of memory.
template <class F> void each_word(uintptr_t from, size_t n, F f) {
  for (uintptr_t at = from & ~(uintptr_t)3; checked() && at < from + n; at += 4) {
    emu::Word* words = places()[at >> emu::kPlaceBits].noted();
    if (words) f(words[at % emu::kPlace / 4]);
  }
}
// They hold something now, or nothing.
void set_written(uintptr_t from, size_t n, bool is) {
  each_word(from, n, [=](emu::Word& w) { w.written.launch = is ? emu::WRITTEN : 0; });
}
bool is_written(uintptr_t from, size_t n) {
  bool all = true;
  each_word(from, n, [&](emu::Word& w) { all &= w.written.launch != 0; });
  return all;
}
// Addresses for n bytes, which are whole places, and for a place before them and one after them.  None is accessible.
char* reserve(size_t n) {
  n += 2 * emu::kPlace;
  char* b = (char*)mmap(nullptr, n + emu::kPlace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (b == MAP_FAILED) return nullptr;
  size_t before = (emu::kPlace - (size_t)b % emu::kPlace) % emu::kPlace;
  if (before) munmap(b, before);
  munmap(b + before + n, emu::kPlace - before);
  return b + before + emu::kPlace;
}
}  // namespace

// ---- init, device, context ---------------------------------------------------
API CUresult cuInit(unsigned) { return OK; }
API CUresult cuDriverGetVersion(int* v) { *v = 13000; return OK; }
API CUresult cuGetErrorString(int e, const char** s) {
  static char text[700];
  snprintf(text, sizeof text, "emulated driver error %d%s%s", e, sticky_text[0] ? ": " : "", sticky_text);
  *s = text;
  return OK;
}
API CUresult cuGetErrorName(int, const char** s) { *s = "CUDA_EMU_ERROR"; return OK; }
// There are EMU_DEVICES devices, which share the EMU_MEMORY bytes.
static int devices() { const char* n = getenv("EMU_DEVICES"); return n ? atoi(n) : 1; }
API CUresult cuDeviceGetCount(int* n) { *n = devices(); return OK; }
API CUresult cuDeviceGet(int* d, int i) { *d = i; return i < 0 || i >= devices() ? 101 : OK; }
API CUresult cuDeviceGetName(char* s, int n, int) { snprintf(s, n, "CPU emulation"); return OK; }
static size_t memory();
API CUresult cuDeviceTotalMem_v2(size_t* n, int) { *n = memory(); return OK; }
API CUresult cuMemGetInfo_v2(size_t* f, size_t* t);
API CUresult cuDeviceComputeCapability(int* a, int* b, int) { *a = 9; *b = 0; return OK; }
API CUresult cuDeviceGetAttribute(int* v, int a, int) {
  switch (a) {
    case 1: *v = 1024; break;                      // threads per block
    case 2: case 3: *v = 1024; break;
    case 4: *v = 64; break;
    case 5: *v = 2147483647; break;
    case 6: case 7: *v = 65535; break;
    case 8: *v = 49152; break;                     // shared memory per block
    case 10: *v = 32; break;                       // warp
    case 12: *v = 65536; break;                    // registers per block
    case 16: *v = 4; break;                        // multiprocessors
    case 39: *v = 2048; break;
    case 75: *v = 9; break;
    case 76: *v = 0; break;
    case 81: *v = 233472; break;
    case 97: *v = 232448; break;                   // opt-in shared memory per block
    case 102: *v = 1; break;                       // virtual memory management
    default: *v = 0;
  }
  return OK;
}
API CUresult cuDevicePrimaryCtxRetain(void** c, int d) { *c = &ctx_objects[d]; return OK; }
API CUresult cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API CUresult cuCtxCreate_v4(void** c, void*, unsigned, int d) { *c = &ctx_objects[d]; current = d; ctx_depth++; return OK; }
API CUresult cuCtxPushCurrent_v2(void* c) { current = (int*)c - ctx_objects; ctx_depth++; return OK; }
API CUresult cuCtxPopCurrent_v2(void** c) { if (c) *c = &ctx_objects[current]; if (ctx_depth) ctx_depth--; return OK; }
API CUresult cuCtxGetCurrent(void** c) { *c = ctx_depth ? &ctx_objects[current] : nullptr; return OK; }
API CUresult cuCtxSetCurrent(void* c) { if (c) current = (int*)c - ctx_objects; ctx_depth = c != nullptr; return OK; }
API CUresult cuCtxGetDevice(int* d) { *d = current; return ctx_depth ? OK : 201; }
API CUresult cuCtxDetach(void*) { return OK; }
API CUresult cuCtxSynchronize() { NOT_CAPTURED(); return run_all(); }

// ---- memory --------------------------------------------------------------------
API CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) { NOT_CAPTURED();
  if (!n) return E_INVALID;
  size_t body = (n + 255) / 256 * 256, pages = (body + 4095) / 4096 * 4096;
  size_t mapped = (pages + 4096 + emu::kPlace - 1) / emu::kPlace * emu::kPlace;
  char* b = reserve(mapped);
  if (!b || mprotect(b, pages, PROT_READ | PROT_WRITE)) return E_OOM;
  madvise(b, mapped, MADV_HUGEPAGE);
  size_t poison = n < ((size_t)64 << 20) ? pages : 0;  // a large arena stays untouched (zero) until used
  if (poison && !idle()) memset(b, 0xff, poison);
  CUdeviceptr at = (CUdeviceptr)(b + pages - body);  // ends at the guard page, 256-byte aligned as on a device
  allocs[at] = {n, mapped, b, mapped - pages, current};
  add_memory((uintptr_t)b, mapped);
  set_memory((uintptr_t)b, mapped, at, at + n);
  if (strict() && !open_depth[current]) mprotect(b, pages, PROT_NONE);
  *p = at;
  return OK;
}
API CUresult cuMemFree_v2(CUdeviceptr p) { NOT_CAPTURED();
  auto it = allocs.find(p);
  if (it == allocs.end() || !it->second.guard) return E_INVALID;
  run_all();
  // Its addresses are not used again, so that any access is an error.
  const Alloc& a = it->second;
  mmap(a.base, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  set_memory((uintptr_t)a.base, a.mapped, kNone, kNone);
  allocs.erase(it);
  return OK;
}
// Virtual memory: a range of addresses is reserved, and mapped chunk by chunk. Unmapped addresses cannot be accessed.
struct Location { int type, id; };
struct Prop { int type, handle_types; Location location; void* win32; unsigned char flags[8]; };
struct Access1 { Location location; int flags; };
static const size_t kChunk = emu::kPlace;
static size_t created = 0;  // bytes in handles, against EMU_MEMORY
static size_t memory() { const char* m = getenv("EMU_MEMORY"); return m ? strtoull(m, nullptr, 10) : (size_t)8 << 30; }
struct Physical { size_t size; int mapped; bool released; int device; };
struct Reserved { size_t size, used; };  // used: what has been mapped once, from its beginning on
static std::map<CUdeviceptr, Reserved> reserved;
static std::map<CUdeviceptr, Physical*> mapped_at;
static void drop(Physical* h) { if (h->released && !h->mapped) { created -= h->size; delete h; } }
API CUresult cuMemGetAllocationGranularity(size_t* n, const Prop* p, int) { *n = kChunk; return p->location.type == 1 ? OK : E_INVALID; }
API CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr, unsigned long long) {
  if (!n || n % kChunk) return E_INVALID;
  char* b = reserve(n);  // chunks can be huge pages, whose protection changes at once
  if (!b) return E_OOM;
  reserved[*p = (CUdeviceptr)b] = {n, 0};
  return OK;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  auto it = reserved.find(p);
  if (it == reserved.end() || it->second.size != n) return E_INVALID;
  auto m = mapped_at.lower_bound(p);
  if (m != mapped_at.end() && m->first < p + n) return E_INVALID;  // unmap first
  munmap((void*)(p - emu::kPlace), n + 2 * emu::kPlace);
  if (it->second.used) set_memory(p - emu::kPlace, it->second.used + 2 * emu::kPlace, 0, 0);
  reserved.erase(it);
  return OK;
}
API CUresult cuMemCreate(Physical** h, size_t n, const Prop* p, unsigned long long) { NOT_CAPTURED();
  if (!n || n % kChunk || p->type != 1 || p->location.type != 1 || p->location.id < 0 || p->location.id >= devices()) return E_INVALID;
  if (created + n > memory()) return E_OOM;
  created += n;
  *h = new Physical{n, 0, false, p->location.id};
  return OK;
}
API CUresult cuMemGetInfo_v2(size_t* f, size_t* t) { *t = memory(); *f = *t - created; return OK; }
API CUresult cuMemRelease(Physical* h) { h->released = true; drop(h); return OK; }
API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, Physical* h, unsigned long long) { NOT_CAPTURED();
  auto it = reserved.upper_bound(p);
  if (offset || n != h->size || it == reserved.begin()) return E_INVALID;
  --it;
  if (p + n > it->first + it->second.size || device_range(p, 1)) return E_INVALID;
  h->mapped++;
  mapped_at[p] = h;
  allocs[p] = {n, n, (char*)p, 0, h->device};
  add_memory(p, n);
  it->second.used = std::max(it->second.used, p + n - it->first);
  return OK;
}
API CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const Access1* a, size_t count) { NOT_CAPTURED();
  if (!device_range(p, n) || count != 1 || a->flags != 3) return E_INVALID;
  int device = mapped_at[p]->device;
  if (a->location.id != device) return E_INVALID;
  if (mprotect((void*)p, n, PROT_READ | PROT_WRITE)) return E_OOM;
  madvise((void*)p, n, MADV_HUGEPAGE);
  if (!idle()) memset((void*)p, 0xff, n);
  if (strict() && !open_depth[device]) mprotect((void*)p, n, PROT_NONE);
  return OK;
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t n) { NOT_CAPTURED();
  run_all();
  while (n) {
    auto it = mapped_at.find(p);
    if (it == mapped_at.end() || it->second->size > n) return E_INVALID;
    Physical* h = it->second;
    size_t size = h->size;
    // Mapping the range again frees the pages and makes any access an error.
    mmap((void*)p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    set_memory(p, size, kNone, kNone);
    allocs.erase(p);
    mapped_at.erase(it);
    h->mapped--;
    drop(h);
    p += size;
    n -= size;
  }
  return OK;
}
API CUresult cuMemHostAlloc(void** p, size_t n, unsigned) { NOT_CAPTURED(); *p = nullptr; return posix_memalign(p, 4096, n ? n : 1) ? E_OOM : OK; }
API CUresult cuMemAllocHost_v2(void** p, size_t n) { return cuMemHostAlloc(p, n, 0); }
API CUresult cuMemFreeHost(void* p) { NOT_CAPTURED(); run_all(); free(p); return OK; }
#define CHECKED(p, n) do { size_t n_ = (n); if (n_ != 0 && !device_range(p, n_)) return E_INVALID; } while (0)
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void* s, size_t n, Stream* st) {
  CHECKED(d, n);
  TRACE("upload %zu\n", n);
  return put(st, [=] { memcpy((void*)d, s, n); set_written(d, n, true); return OK; });
}
API CUresult cuMemcpyDtoHAsync_v2(void* d, CUdeviceptr s, size_t n, Stream* st) {
  CHECKED(s, n);
  TRACE("fetch %zu\n", n);
  return put(st, [=] { memcpy(d, (void*)s, n); return OK; });
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr s, size_t n, Stream* st) {
  CHECKED(d, n); CHECKED(s, n);
  return put(st, [=] { memmove((void*)d, (void*)s, n); set_written(d, n, is_written(s, n)); return OK; });
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void* s, size_t n) { int r = cuMemcpyHtoDAsync_v2(d, s, n, nullptr); return r ? r : run(&null_stream); }
API CUresult cuMemcpyDtoH_v2(void* d, CUdeviceptr s, size_t n) { int r = cuMemcpyDtoHAsync_v2(d, s, n, nullptr); return r ? r : run(&null_stream); }
API CUresult cuMemcpyDtoD_v2(CUdeviceptr d, CUdeviceptr s, size_t n) { return cuMemcpyDtoDAsync_v2(d, s, n, nullptr); }
API CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, Stream* st) {
  CHECKED(d, n);
  return put(st, [=] { memset((void*)d, v, n); set_written(d, n, v != 0xff); return OK; });
}
API CUresult cuMemsetD32Async(CUdeviceptr d, unsigned v, size_t n, Stream* st) {
  CHECKED(d, 4 * n);
  TRACE("fill %zu\n", n);
  return put(st, [=] { for (size_t i = 0; i < n; i++) ((unsigned*)d)[i] = v; set_written(d, 4 * n, v != 0xffffffffu); return OK; });
}
API CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n) { return cuMemsetD8Async(d, v, n, nullptr); }
API CUresult cuMemsetD32_v2(CUdeviceptr d, unsigned v, size_t n) { return cuMemsetD32Async(d, v, n, nullptr); }

// ---- streams and events ----------------------------------------------------------
API CUresult cuStreamCreate(Stream** s, unsigned flags) { *s = new Stream; (*s)->blocking = !(flags & 1); (*s)->device = current; streams.push_back(*s); return OK; }
API CUresult cuStreamDestroy_v2(Stream* s) {
  run(s);
  for (size_t i = 0; i < streams.size(); i++) if (streams[i] == s) { streams.erase(streams.begin() + i); break; }
  delete s;
  return OK;
}
API CUresult cuStreamSynchronize(Stream* s) {
  s = real(s);
  NOT_CAPTURED();
  if (s == &null_stream) for (auto* t : streams) if (t->blocking) run(t);
  return run(s);
}
API CUresult cuStreamQuery(Stream* s) { NOT_CAPTURED(); s = real(s); if (s->q.empty()) return sticky; run(s, 0.005); return E_NOT_READY; }
API CUresult cuEventCreate(Event** e, unsigned) { *e = new Event; return OK; }
API CUresult cuEventDestroy_v2(Event* e) { run_all(); delete e; return OK; }
API CUresult cuEventRecord(Event* e, Stream* s) {
  e->s = real(s); e->recorded = true;
  uint64_t gen = ++e->gen;
  return put(s, [=] { e->done_gen = gen; e->t = std::chrono::steady_clock::now(); return OK; });
}
API CUresult cuEventSynchronize(Event* e) { NOT_CAPTURED(); return e->recorded ? run(e->s) : OK; }
API CUresult cuEventQuery(Event* e) { NOT_CAPTURED(); if (!e->recorded || e->done_gen == e->gen) return sticky; run(e->s); return E_NOT_READY; }
API CUresult cuStreamWaitEvent(Stream* s, Event* e, unsigned) {
  uint64_t gen = e->gen;
  return put(s, [=] { if (e->recorded && e->done_gen < gen) run(e->s); return OK; });
}
API CUresult cuEventElapsedTime_v2(float* ms, Event* a, Event* b) {
  if (a->done_gen != a->gen || b->done_gen != b->gen) return E_NOT_READY;
  *ms = std::chrono::duration<float, std::milli>(b->t - a->t).count();
  return OK;
}
// ---- graphs ----------------------------------------------------------------------
API CUresult cuStreamBeginCapture_v2(Stream* s, int) {
  s = real(s);
  if (s == &null_stream || s->capture) return 900;
  run(s);
  if (no_capture("begin")) return 801;
  s->capture = new std::vector<Op>;
  s->broken = false;
  return OK;
}
API CUresult cuStreamEndCapture(Stream* s, Graph** g) {
  s = real(s);
  if (!s->capture) return 900;
  if (no_capture("end")) s->broken = true;
  *g = s->broken ? nullptr : new Graph{std::move(*s->capture)};
  delete s->capture;
  s->capture = nullptr;
  return s->broken ? 901 : OK;
}
API CUresult cuGraphInstantiateWithFlags(Graph** x, Graph* g, unsigned long long) {
  if (no_capture("make")) return E_OOM;
  execs.insert(*x = new Graph(*g));
  return OK;
}
API CUresult cuGraphLaunch(Graph* x, Stream* s) {
  if (!execs.count(x)) return E_INVALID;
  for (auto& op : x->ops) { int rc = put(s, op); if (rc) return rc; }
  return OK;
}
API CUresult cuGraphExecDestroy(Graph* x) {  // launches have their own copies
  if (!execs.erase(x)) return E_INVALID;
  delete x;
  return OK;
}
API int emu_graphs() { return (int)execs.size(); }
API CUresult cuGraphDestroy(Graph* g) { delete g; return OK; }

// ---- modules and launches ----------------------------------------------------------
API CUresult cuModuleLoad(Module** m, const char* path) { NOT_CAPTURED();
  void* dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!dl) { snprintf(sticky_text, sizeof sticky_text, "%s", dlerror()); return E_BAD_IMAGE; }
  *m = new Module{dl, {}};
  return OK;
}
API CUresult cuModuleLoadDataEx(Module** m, const void* image, unsigned, void*, void*) {
  const unsigned char* e = (const unsigned char*)image;
  if (memcmp(e, "\177ELF", 4) || e[18] != 62) return E_BAD_IMAGE;  // 62: x86-64; a real cubin has 190
  uint64_t shoff; uint16_t shent, shnum;
  memcpy(&shoff, e + 40, 8); memcpy(&shent, e + 58, 2); memcpy(&shnum, e + 60, 2);
  char path[] = "/tmp/emu_module_XXXXXX";
  int fd = mkstemp(path);
  size_t n = shoff + (size_t)shent * shnum;
  if (fd < 0 || write(fd, image, n) != (ssize_t)n) return E_BAD_IMAGE;
  close(fd);
  int rc = cuModuleLoad(m, path);
  unlink(path);
  return rc;
}
API CUresult cuModuleLoadData(Module** m, const void* image) { return cuModuleLoadDataEx(m, image, 0, nullptr, nullptr); }
API CUresult cuModuleUnload(Module* m) { NOT_CAPTURED(); run_all(); for (auto& f : m->f) delete f.second; dlclose(m->dl); delete m; return OK; }
API CUresult cuModuleGetFunction(Function** f, Module* m, const char* name) {
  Function*& slot = m->f[name];
  if (!slot) {
    auto get = (const KernelInfo* (*)())dlsym(m->dl, (std::string("emu_kernel__") + name).c_str());
    if (!get) { m->f.erase(name); return E_NOT_FOUND; }
    auto layout = (const char*)dlsym(m->dl, "emu_layout");  // of the table of a kernel compiled at run time
    slot = new Function{get(), current, layout ? layout : ""};
  }
  *f = slot;
  return OK;
}
API CUresult cuFuncGetParamInfo(Function* f, size_t i, size_t* offset, size_t* size) {
  if (i >= (size_t)f->info->nparams) return E_INVALID;
  *offset = f->info->offsets[i];
  if (size) *size = f->info->sizes[i];
  return OK;
}
API CUresult cuFuncGetAttribute(int* v, int a, Function* f) { *v = a == 0 ? 1024 : a == 8 ? (int)f->max_dyn : 0; return OK; }
API CUresult cuFuncSetAttribute(Function* f, int a, int v) { if (a == 8) { if (v > 232448) return E_INVALID; f->max_dyn = v; } return OK; }
API CUresult cuFuncSetBlockShape(Function*, int, int, int) { return OK; }  // PyCUDA's Function.__call__ still calls it
API CUresult cuFuncSetSharedSize(Function*, unsigned) { return OK; }
API CUresult cuFuncSetCacheConfig(Function*, int) { return OK; }
API CUresult cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shmem, Stream* s, void** params, void** extra) {
  if (!gx || !gy || !gz || !bx || !by || !bz || gx > 2147483647u || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 ||
      bz > 64 || (uint64_t)bx * by * bz > 1024 || shmem > f->max_dyn) return E_INVALID;
  if (f->device != current) return 400;
  static const std::string no_launch = std::string(",") + (getenv("EMU_NO_LAUNCH") ? getenv("EMU_NO_LAUNCH") : "") + ",";
  if (no_launch.find("," + std::string(f->info->name) + ",") != std::string::npos) return E_INVALID;
  TRACE("%s grid %u %u %u block %u\n", f->info->name, gx, gy, gz, bx);
  if (idle()) return put(s, [] { return OK; });
  const KernelInfo* k = f->info;
  const char* layout = f->layout;
  std::vector<char> buf(k->offsets[k->nparams] + 16);
  if (extra) {  // CU_LAUNCH_PARAM_BUFFER_POINTER 1, _SIZE 2, END 0: PyCUDA launches this way
    char* src = nullptr; size_t size = 0;
    for (void** e = extra; *e; e += 2) { if (*e == (void*)1) src = (char*)e[1]; else if (*e == (void*)2) size = *(size_t*)e[1]; }
    if (size < k->offsets[k->nparams]) return E_INVALID;
    memcpy(buf.data(), src, k->offsets[k->nparams]);
  } else {
    for (int i = 0; i < k->nparams; i++) memcpy(buf.data() + k->offsets[i], params[i], k->sizes[i]);
  }
  return put(s, [=]() mutable {
    std::vector<void*> p(k->nparams + 1);
    for (int i = 0; i < k->nparams; i++) p[i] = buf.data() + k->offsets[i];
    const unsigned g[3] = {gx, gy, gz}, b[3] = {bx, by, bz};
    static uint32_t launches = emu::FIRST_LAUNCH - 1;
    if (++launches < emu::FIRST_LAUNCH) launches = emu::FIRST_LAUNCH;  // it has wrapped around
    k->check(checked() ? places() : nullptr, launches);
    const std::string mistake = tables::mistake_of(k->name, layout, gz, p.data(), device_range);
    if (!mistake.empty() || k->launch(g, b, shmem, p.data())) {
      snprintf(sticky_text, sizeof sticky_text, "%s: %s", k->name, mistake.empty() ? k->error() : mistake.c_str());
      fprintf(stderr, "cuda_emu: %s\n", sticky_text);
      return (int)E_LAUNCH;
    }
    return (int)OK;
  });
}

// ---- cuBLAS: column-major float32 products ---------------------------------------
struct Handle { Stream* s = nullptr; bool workspace = false; };
// Without a workspace, cuBLAS would allocate memory, so a product cannot be captured.
static int product(Handle* h, Op op) {
  if (real(h->s)->capture && (!h->workspace || no_capture("product"))) { real(h->s)->broken = true; return 14; }
  return put(h->s, idle() ? Op([] { return OK; }) : std::move(op));
}
// A factor without its last `bits` bits, rounded to nearest even: 13 for TF32, 16 for bfloat16.
static float rounded(float x, int bits) {
  uint32_t u;
  if (!bits || !std::isfinite(x)) return x;
  memcpy(&u, &x, 4);
  u += (1u << (bits - 1)) - 1 + (u >> bits & 1);
  u &= ~((1u << bits) - 1);
  memcpy(&x, &u, 4);
  return x;
}
static int dropped_bits(int compute) { return compute == 77 ? 13 : compute == 75 ? 16 : compute == 68 ? 0 : -1; }  // CUBLAS_COMPUTE_32F*
// Whether a matrix of a product is no memory, or nothing has been written to some of it.
static bool misread(const char* name, const float* x, int rows, int columns, int ld) {
  const char* what = nullptr;
  if (checked() && !device_range((CUdeviceptr)x, sizeof(float) * tables::matrix(rows, columns, ld))) what = "is no memory of the device";
  for (int j = 0; j < columns && !what; j++)
    if (!is_written((uintptr_t)(x + (size_t)j * ld), sizeof(float) * rows)) what = "has numbers that nothing has written";
  if (what) {
    snprintf(sticky_text, sizeof sticky_text, "a product: %s of %d x %d numbers at %p %s", name, rows, columns, (const void*)x, what);
    fprintf(stderr, "cuda_emu: %s\n", sticky_text);
  }
  return what;
}
static int gemm(int bits, int ta, int tb, int m, int n, int k, float al, const float* A, int lda, const float* B, int ldb, float be, float* C, int ldc) {
  if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return 7;
  if (misread("A", A, ta ? k : m, ta ? m : k, lda) || misread("B", B, tb ? n : k, tb ? k : n, ldb) ||
      (be != 0 && misread("C", C, m, n, ldc)))
    return E_LAUNCH;
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float acc = 0;
      for (int l = 0; l < k; l++) acc += rounded(ta ? A[(size_t)i * lda + l] : A[(size_t)l * lda + i], bits) * rounded(tb ? B[(size_t)l * ldb + j] : B[(size_t)j * ldb + l], bits);
      float* c = C + (size_t)j * ldc + i;
      *c = al * acc + (be == 0 ? 0.f : be * *c);
    }
  for (int j = 0; j < n; j++) set_written((uintptr_t)(C + (size_t)j * ldc), sizeof(float) * m, true);
  return 0;
}
API int cublasCreate_v2(Handle** h) { *h = new Handle; return 0; }
API int cublasDestroy_v2(Handle* h) { delete h; return 0; }
API int cublasSetStream_v2(Handle* h, Stream* s) { h->s = s; h->workspace = false; return 0; }
API int cublasSetMathMode(Handle*, int) { return 0; }
API int cublasSetPointerMode_v2(Handle*, int) { return 0; }
API int cublasSetWorkspace_v2(Handle* h, void* p, size_t n) {
  if (((uintptr_t)p & 255) || (n && !device_range((CUdeviceptr)p, n))) return 7;
  h->workspace = n != 0;
  return 0;
}
API int cublasGetVersion_v2(Handle*, int* v) { *v = 130000; return 0; }
// Factors and results are float32 (type 0), alpha and beta too; any algorithm (-1).
API int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const float* al, const float* A, int type_a, int lda, long long sa,
                                   const float* B, int type_b, int ldb, long long sb, const float* be, float* C, int type_c, int ldc, long long sc,
                                   int cnt, int compute, int algorithm) {
  float a = *al, b = *be;
  TRACE("product %d%d m %d n %d k %d count %d beta %g a %p b %p c %p\n", ta, tb, m, n, k, cnt, b, (const void*)A, (const void*)B, (void*)C);
  int bits = dropped_bits(compute);
  if (type_a || type_b || type_c || bits < 0 || algorithm != -1) return 15;
  return product(h, [=] { int rc = 0; for (int i = 0; i < cnt && !rc; i++) rc = gemm(bits, ta, tb, m, n, k, a, A + i * sa, lda, B + i * sb, ldb, b, C + i * sc, ldc); return rc; });
}
API int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const float* al, const float* A, int type_a, int lda, const float* B, int type_b,
                     int ldb, const float* be, float* C, int type_c, int ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, al, A, type_a, lda, 0, B, type_b, ldb, 0, be, C, type_c, ldc, 0, 1, compute, algorithm);
}
