// accesses.h - what kernels read and write, for the emulated driver.
//
// The compiler calls a function at every access to memory in kernels (it believes that it works for a sanitizer of
// threads).  These functions, in accesses.cpp, know of each number on the device which threads have read and written it
// last in this launch, so a kernel fails as under compute-sanitizer
//  * if it accesses what is no memory of the device: memory that was freed, or is reserved only, or lies beyond the end of
//    an allocation;
//  * if two threads access one number, one of them writes, and nothing says which is first: no __syncthreads(), no
//    __syncwarp(), and they are not both atomic;
//  * if it reads a number that nothing has written since the memory was mapped, or since it was given back: it has then
//    been filled with ones, as DYNET_CY_POISON=1 does.
// So no table of addresses can be wrong unseen, whichever kernel reads it.
#ifndef EMU_ACCESSES_H
#define EMU_ACCESSES_H

#include <cstddef>
#include <cstdint>
#include <sys/mman.h>

namespace emu {
// An access to four bytes.
struct Access {
  uint32_t launch, block;
  uint16_t thread, barriers, warp_steps;  // how many barriers the block has passed, and its warp; the last bits
  uint8_t atomic, several;  // several: as many have read it, of which this one is the last (OTHER_...)
};
enum { OTHER_LANES = 1, OTHER_WARPS = 2, OTHER_BLOCKS = 4 };

// The number of the launch that has written is 0 if nothing has, and WRITTEN if it was a copy, a product, or the like.
enum { WRITTEN = 1, FIRST_LAUNCH = 2 };
struct Word { Access written, read; };

// Addresses are divided into places of this size; an allocation has places of its own.
const unsigned kPlaceBits = 21;
const size_t kPlace = (size_t)1 << kPlaceBits;
struct Place {
  uintptr_t from, to;  // what is memory of the device; 0, 0: not of the device
  Word* words;         // of the whole place; NULL: none has been accessed
  static const size_t bytes = kPlace / 4 * sizeof(Word);
  Word* noted() {
    if (!words) {
      void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p != MAP_FAILED) words = (Word*)p;
    }
    return words;
  }
  void forget() {
    if (words) munmap(words, bytes);
    words = nullptr;
  }
};
const size_t kPlaces = (size_t)1 << (47 - kPlaceBits);

// What runs now.  One for each module; cuda_emu.h keeps it up to date.
struct Now {
  Place* places;   // NULL: nothing is checked
  Access who;      // all but `several`
  const uint32_t* warp_steps;                                // by warp
  [[noreturn]] void (*fail)(const char* format, ...);
};
}  // namespace emu

#endif
