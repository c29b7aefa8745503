// accesses.h - what kernels read and write, for the emulated driver.
//
// The compiler calls a function at every access to memory in kernels (it believes that it works for a sanitizer of
// threads).  These functions, in accesses.cpp, know of each number on the device which threads have read and written it
// last in this launch, so a kernel fails as under compute-sanitizer
//  * if it accesses what is no memory of the device: memory that was freed, or is reserved only, or lies beyond the end of
//    an allocation;
//  * if two threads access one number, one of them writes, and nothing says which is first: no __syncthreads(), no
//    __syncwarp(), and they are not both atomic.
// So no table of addresses can be wrong unseen, whichever kernel reads it.
#ifndef EMU_ACCESSES_H
#define EMU_ACCESSES_H

#include <cstddef>
#include <cstdint>

namespace emu {
// An access to four bytes.
struct Access {
  uint32_t launch, block;
  uint16_t thread, barriers, warp_steps;  // how many barriers the block has passed, and its warp; the last bits
  uint8_t atomic, several;  // several: as many have read it, of which this one is the last (OTHER_...)
};
enum { OTHER_LANES = 1, OTHER_WARPS = 2, OTHER_BLOCKS = 4 };

struct Word { Access written, read; };

// Addresses are divided into places of this size; an allocation has places of its own.
const unsigned kPlaceBits = 21;
const size_t kPlace = (size_t)1 << kPlaceBits;
struct Place {
  uintptr_t from, to;  // what is memory of the device; 0, 0: not of the device
  Word* words;         // of the whole place; NULL: none has been accessed
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
