// check_tables.h - checks of the tables of addresses that kernels read, for the emulated driver.
//
// Kernels of moves, of LSTM cells, of steps of LSTMs, of groups of products, of fused ops and of updates find their numbers by
// tables that the host has made.  Such a table is checked when its kernel is about to run: all that its lines read and write
// is device memory, addresses are those of floats, and no line writes what another one reads or writes, so that the result
// does not depend on which block runs first.  The error says which lines are wrong.  What other kernels read and write,
// and what the threads of one line do to each other, is checked while they run: see accesses.h.
#ifndef EMU_CHECK_TABLES_H
#define EMU_CHECK_TABLES_H

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "dynet_cy/gpu_cells.h"
#include "dynet_cy/gpu_group.h"
#include "dynet_cy/gpu_move.h"
#include "dynet_cy/gpu_update.h"

namespace tables {
struct Range { uintptr_t from, to; size_t line; };

// What the lines of a table read and write.
struct Uses {
  std::vector<Range> reads, writes;
  void read(size_t line, const float* p, size_t n) { if (p && n) reads.push_back({(uintptr_t)p, (uintptr_t)(p + n), line}); }
  void write(size_t line, const float* p, size_t n) { if (n) writes.push_back({(uintptr_t)p, (uintptr_t)(p + n), line}); }
};

// Moves to one destination are a chain, which one thread runs in order: they count as its first one.
inline Uses of_moves(const dy_move* m, size_t count) {
  Uses u;
  for (size_t first = 0; first < count; first++) {
    if (m[first].follower) continue;
    u.write(first, m[first].to, m[first].n);
    for (size_t k = first + 1; k; k = m[k - 1].next) {
      u.read(first, m[k - 1].source, m[k - 1].period ? m[k - 1].period : m[k - 1].n);
      if (m[k - 1].to != m[first].to || m[k - 1].n != m[first].n || m[k - 1].next > count) {
        u.writes.push_back({1, 1, first});  // the chain leads elsewhere
        return u;
      }
    }
  }
  return u;
}

inline size_t matrix(size_t rows, size_t columns, size_t ld) { return rows && columns ? ld * (columns - 1) + rows : 0; }

// Where a product puts what it computes for a cell.
inline const float* column_of(const dy_lstm_cell& x) { return x.bias ? x.gates : nullptr; }
inline const float* column_of(const dy_lstm_cell_back& x) { return x.dy; }

inline Uses of_cells(const dy_lstm_cell* x, size_t count, size_t h) {
  Uses u;
  for (size_t k = 0; k < count; k++) {
    if (x[k].bias) u.write(k, x[k].gates, 4 * h); else u.read(k, x[k].gates, 4 * h);
    u.read(k, x[k].bias, 4 * h);
    u.read(k, x[k].before, h);
    u.write(k, x[k].c, h);
    u.write(k, x[k].y, h);
  }
  return u;
}

inline Uses of_cells_back(const dy_lstm_cell_back* x, size_t count, size_t h) {
  Uses u;
  for (size_t k = 0; k < count; k++) {
    u.read(k, x[k].gates, 4 * h);
    u.read(k, x[k].before, h);
    u.read(k, x[k].c, h);
    u.read(k, x[k].dy, h);
    u.write(k, x[k].dc, h);
    u.write(k, x[k].dgates, 4 * h);
    if (x[k].dbefore) u.write(k, x[k].dbefore, h);
  }
  return u;
}

inline Uses of_products(const dy_group_product* p, size_t count) {
  Uses u;
  for (size_t k = 0; k < count; k++) {
    u.read(k, p[k].a, !p[k].b ? p[k].m : p[k].ta ? matrix(p[k].k, p[k].m, p[k].lda) : matrix(p[k].m, p[k].k, p[k].lda));
    u.read(k, p[k].b, p[k].tb ? matrix(p[k].n, p[k].k, p[k].ldb) : matrix(p[k].k, p[k].n, p[k].ldb));
    u.write(k, p[k].c, matrix(p[k].m, p[k].n, p[k].ldc));
    if (p[k].also) u.write(k, p[k].also, (size_t)p[k].m * p[k].n);
  }
  return u;
}

// The products that are computed together with cells: what they read, as a line of its own, and the columns that they write.
// Cells may read these.
template <class Cell> void add_products(Uses& u, const dy_cell_products* p, const Cell* x, size_t count, size_t h) {
  const bool back = sizeof(Cell) == sizeof(dy_lstm_cell_back);
  for (size_t z = 0; z < p->count; z++) {
    u.read(count, p->a + z * p->stride_a, back ? matrix(p->k, h, p->lda) : matrix(4 * h, p->k, p->lda));
    u.read(count, p->b + z * p->stride_b, matrix(p->k, p->n, p->ldb));
    for (size_t e = p->first[z]; e < p->first[z] + p->n; e++)
      if (e >= count || !column_of(x[e])) u.writes.push_back({1, 1, e});  // no line has this column
      else if (back) u.write(e, column_of(x[e]), h);
  }
}

// Of a fused kernel (cuda/fused.cuh), whose layout nvcc_emu has read from its source.  A line may write several times to one
// place, in the order of its thread.  Low bits of plain addresses stay: they would be mistakes.
inline Uses of_fused(const uint64_t* table, size_t head, size_t width, std::istream& words, size_t count, size_t size) {
  const uint64_t bits = 3, live = 1, kept = 2;
  Uses u;
  char use, where;
  for (size_t word; words >> use >> where >> word;)
    for (size_t k = 0; k < count; k++) {
      const uint64_t x = where == 't' ? table[word] + k * size * sizeof(float) : table[head + k * width + word];
      const float* plain = (const float*)(uintptr_t)x;
      const float* gradient = (const float*)(uintptr_t)(x & ~bits);
      if (use == 'r') u.reads.push_back({(uintptr_t)plain, (uintptr_t)(plain + size), k});
      if (use == 'w') u.write(k, plain, size);
      if (use == 'g' && x & live) u.read(k, gradient, size);
      if ((use == 'k' && x & kept) || (use == 'p' && x)) u.write(k, gradient, size);
    }
  auto order = [](const Range& a, const Range& b) { return std::tie(a.from, a.to, a.line) < std::tie(b.from, b.to, b.line); };
  auto same = [](const Range& a, const Range& b) { return a.from == b.from && a.to == b.to && a.line == b.line; };
  std::sort(u.writes.begin(), u.writes.end(), order);
  u.writes.erase(std::unique(u.writes.begin(), u.writes.end(), same), u.writes.end());
  return u;
}

inline size_t place_in_buffer(const dy_range&) { return 0; }
inline size_t place_in_buffer(const dy_gather_range& x) { return x.to; }

// Of updates (cuda/optim.cu): ranges of planes of numbers.  `planes` says for parameters of a kernel, from number 2 on, whether
// they are a plane that is read (r) or written (w), or a buffer without gaps (R, W; of dy_gather_range), or none of these (-).
template <class Line> Uses of_ranges(const Line* x, size_t count, const char* planes, void** p) {
  Uses u;
  for (size_t i = 0; planes[i]; i++)
    for (size_t k = 0; k < count && planes[i] != '-'; k++) {
      const bool in_buffer = planes[i] == 'R' || planes[i] == 'W';
      const float* plane = *(const float* const*)p[2 + i];
      if (!plane) continue;  // a rule has fewer states
      const float* from = plane + (in_buffer ? place_in_buffer(x[k]) : x[k].at);
      if (planes[i] == 'r' || planes[i] == 'R') u.read(k, from, x[k].n); else u.write(k, from, x[k].n);
    }
  return u;
}

// What is wrong with a table, or "".
template <class IsMapped> std::string mistake(Uses u, IsMapped is_mapped) {
  char text[200];
  for (auto* ranges : {&u.reads, &u.writes})
    for (const Range& r : *ranges)
      if (r.from % sizeof(float) || !is_mapped(r.from, r.to - r.from)) {
        snprintf(text, sizeof text, "line %zu of its table %s %zu floats at %#zx, which is no memory for them", r.line,
                 ranges == &u.reads ? "reads" : "writes", (r.to - r.from) / sizeof(float), (size_t)r.from);
        return text;
      }
  auto by_place = [](const Range& a, const Range& b) { return a.from < b.from; };
  std::sort(u.writes.begin(), u.writes.end(), by_place);
  for (size_t k = 1; k < u.writes.size(); k++)
    if (u.writes[k].from < u.writes[k - 1].to) {
      snprintf(text, sizeof text, "lines %zu and %zu of its table write to the same memory", u.writes[k - 1].line,
               u.writes[k].line);
      return text;
    }
  for (const Range& r : u.reads) {
    auto w = std::upper_bound(u.writes.begin(), u.writes.end(), r, by_place);
    if (w != u.writes.begin()) --w;
    for (; w != u.writes.end() && w->from < r.to; ++w)
      if (w->to > r.from && w->line != r.line) {
        snprintf(text, sizeof text, "line %zu of its table reads what line %zu writes", r.line, w->line);
        return text;
      }
  }
  return "";
}

// The lines of a table that is a parameter of a kernel by value (`few`), or that a parameter points to; NULL: it points to
// no memory for them.
template <class Line, class IsMapped> const Line* lines(bool few, void* parameter, size_t count, IsMapped is_mapped) {
  if (few) return (const Line*)parameter;
  const Line* table = *(const Line* const*)parameter;
  return is_mapped((uintptr_t)table, count * sizeof(Line)) ? table : nullptr;
}

// The same for a launch of a kernel with `gz` layers of blocks, and of a fused kernel with this layout; "" for kernels without such a table.
template <class IsMapped> std::string mistake_of(const char* kernel, const char* layout, unsigned gz, void** p, IsMapped is_mapped) {
  const std::string name = kernel;
  const bool few = name.find("few_") == 0 || name == "move_few";
  const size_t count = name == "move_floats" || name == "move_few" ? *(const unsigned*)p[!few]
                       : name.find("lstm_cell") == 0 || name.find("few_lstm_cells") == 0
                           ? *(const size_t*)p[0] / *(const size_t*)p[1]
                           : gz;
  const char* none = "its table is not in device memory";
  if (name == "move_floats" || name == "move_few") {
    const auto* x = lines<dy_move>(few, p[few], count, is_mapped);
    return x ? mistake(of_moves(x, count), is_mapped) : none;
  }
  if (name == "lstm_cell_forward" || name == "few_lstm_cells_forward") {
    const auto* x = lines<dy_lstm_cell>(few, p[2], count, is_mapped);
    return x ? mistake(of_cells(x, count, *(const size_t*)p[1]), is_mapped) : none;
  }
  if (name == "lstm_cell_backward" || name == "few_lstm_cells_backward") {
    const auto* x = lines<dy_lstm_cell_back>(few, p[2], count, is_mapped);
    return x ? mistake(of_cells_back(x, count, *(const size_t*)p[1]), is_mapped) : none;
  }
  if (name == "lstm_step_forward" || name == "few_lstm_steps_forward") {
    const size_t lines_of = *(const size_t*)p[1], h = *(const size_t*)p[2];
    const auto* x = lines<dy_lstm_cell>(few, p[3], lines_of, is_mapped);
    if (!x) return none;
    Uses u = of_cells(x, lines_of, h);
    add_products(u, (const dy_cell_products*)p[0], x, lines_of, h);
    return mistake(u, is_mapped);
  }
  if (name == "lstm_step_backward" || name == "few_lstm_steps_backward") {
    const size_t lines_of = *(const size_t*)p[1], h = *(const size_t*)p[2];
    const auto* x = lines<dy_lstm_cell_back>(few, p[3], lines_of, is_mapped);
    if (!x) return none;
    Uses u = of_cells_back(x, lines_of, h);
    add_products(u, (const dy_cell_products*)p[0], x, lines_of, h);
    return mistake(u, is_mapped);
  }
  const char* planes = name.find("optim_") == 0 ? "-wwwww" : name == "decay_values" ? "-w" : name == "axpby" ? "--rw"
                       : name == "squares" ? "r" : name == "drop_gradients" ? "w" : nullptr;
  const char* with_buffer = name == "gather_ranges" ? "rW" : name == "scatter_ranges" ? "Rw" : nullptr;
  if (planes || with_buffer) {
    const size_t ranges = *(const unsigned*)p[1];
    if (planes) {
      const auto* x = lines<dy_range>(false, p[0], ranges, is_mapped);
      return x ? mistake(of_ranges(x, ranges, planes, p), is_mapped) : none;
    }
    const auto* x = lines<dy_gather_range>(false, p[0], ranges, is_mapped);
    return x ? mistake(of_ranges(x, ranges, with_buffer, p), is_mapped) : none;
  }
  if (name == "fused" || name == "few_fused") {
    const size_t n = *(const size_t*)p[0], size = *(const size_t*)p[1];
    std::istringstream words(layout);
    size_t head = 0, width = 0;
    if (!(words >> head >> width) || !size || n % size) return "its lines are not those of its source";
    const size_t all = head + width * (n / size);
    if (few && all > DY_GROUP_WORDS) return "its table is too long for a parameter";
    const auto* x = lines<uint64_t>(few, p[2], all, is_mapped);
    return x ? mistake(of_fused(x, head, width, words, n / size, size), is_mapped) : none;
  }
  if (name == "multiply_group") return mistake(of_products((const dy_group_product*)p[0], gz), is_mapped);
  return "";
}
}  // namespace tables

#endif
