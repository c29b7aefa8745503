// accesses.cpp - the functions that the compiler calls at accesses to memory: see accesses.h.
#include "accesses.h"

extern "C" __attribute__((visibility("hidden"))) emu::Now emu_now;
emu::Now emu_now;

namespace {
using emu::Access;

// Whether an access is before the one that happens now, as something that the kernel waited for says.
bool is_before(const Access& a, const Access& now) {
  if (a.block != now.block) return false;
  return a.barriers != now.barriers || a.thread == now.thread || (a.thread / 32 == now.thread / 32 && a.warp_steps != now.warp_steps);
}

bool conflicts(const Access& a, const Access& now) { return !(a.atomic && now.atomic) && !is_before(a, now); }

// Whether some reader conflicts with a write: the last one, or those before it.
bool readers_conflict(const Access& a, const Access& now) {
  if (a.several & emu::OTHER_BLOCKS) return true;
  if (conflicts(a, now)) return true;
  if (a.barriers != now.barriers) return false;
  return a.several & emu::OTHER_WARPS || (a.several & emu::OTHER_LANES && a.warp_steps == now.warp_steps);
}

void note_reader(Access* a, const Access& now) {
  uint8_t several = 0;
  if (a->launch == now.launch) {
    several = a->several & emu::OTHER_BLOCKS;
    if (a->block != now.block) several |= emu::OTHER_BLOCKS;
    else if (a->barriers == now.barriers) {
      several |= a->several & emu::OTHER_WARPS;
      if (a->thread / 32 != now.thread / 32) several |= emu::OTHER_WARPS;
      else if (a->warp_steps == now.warp_steps) several |= (a->several & emu::OTHER_LANES) | (a->thread != now.thread);
    }
  }
  *a = now;
  a->several = several;
}

void access(uintptr_t at, size_t bytes, bool writes) {
  emu::Now& n = emu_now;
  if (!n.places || at >> 47) return;
  emu::Place& place = n.places[at >> emu::kPlaceBits];
  if (!place.to) return;
  const char* does = writes ? "writes" : "reads";
  if (at < place.from || at + bytes > place.to) {
    n.fail("%s %zu bytes at %#zx, which is no memory of the device", does, bytes, (size_t)at);
  }
  emu::Word* words = place.noted();
  if (!words) n.fail("no memory for notes of accesses");
  n.who.warp_steps = (uint16_t)n.warp_steps[n.who.thread / 32];
  const Access& now = n.who;
  const uintptr_t base = at >> emu::kPlaceBits << emu::kPlaceBits;
  for (size_t k = (at - base) / 4; k <= (at - base + bytes - 1) / 4; k++) {
    emu::Word& w = words[k];
    if (!writes && !w.written.launch) n.fail("reads a number at %#zx, where nothing has been written", (size_t)(base + 4 * k));
    const Access* other = nullptr;
    if (w.written.launch == now.launch && conflicts(w.written, now)) other = &w.written;
    else if (writes && w.read.launch == now.launch && readers_conflict(w.read, now)) other = &w.read;
    if (other)
      n.fail("%s a number at %#zx, which thread %u of block %u %s too, and nothing says which is first", does, (size_t)(base + 4 * k),
             other->thread, other->block, other == &w.read ? "reads" : "writes");
    if (writes) w.written = now;
    else if (!now.atomic) note_reader(&w.read, now);  // what is atomic writes too
  }
}
}  // namespace

#define HOOK extern "C" __attribute__((visibility("hidden"))) void
#define HOOKS(n)                                                      \
  HOOK __tsan_read##n(void* p) { access((uintptr_t)p, n, false); }    \
  HOOK __tsan_write##n(void* p) { access((uintptr_t)p, n, true); }    \
  HOOK __tsan_unaligned_read##n(void* p) { access((uintptr_t)p, n, false); } \
  HOOK __tsan_unaligned_write##n(void* p) { access((uintptr_t)p, n, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
// Ranges may cross the end of a place.
static void in_places(uintptr_t at, size_t bytes, bool writes) {
  while (bytes) {
    size_t here = emu::kPlace - at % emu::kPlace;
    if (here > bytes) here = bytes;
    access(at, here, writes);
    at += here;
    bytes -= here;
  }
}
HOOK __tsan_read_range(void* p, size_t n) { in_places((uintptr_t)p, n, false); }
HOOK __tsan_write_range(void* p, size_t n) { in_places((uintptr_t)p, n, true); }
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit(void*) {}
HOOK __tsan_vptr_update(void*, void*) {}
HOOK __tsan_vptr_read(void*) {}
