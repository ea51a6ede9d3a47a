#include "region.h"

#include <algorithm>
#include <numeric>

namespace hnpu {
namespace {

struct Merged {
  int rank = 0;
  int64_t extent[kRank], stride[kRank], run;
};

// As normalize() in regions.py, after distinct(): declared order, stride 0 dropped.
Merged merge(const Box& box) {
  Merged kept;
  for (int i = 0; i < kRank; i++)
    if (box.extent[i] > 1 && box.stride[i] != 0) {
      kept.extent[kept.rank] = box.extent[i];
      kept.stride[kept.rank++] = box.stride[i];
    }
  kept.run = box.width;
  while (kept.rank && kept.stride[kept.rank - 1] == kept.run) kept.run *= kept.extent[--kept.rank];
  Merged out;
  out.run = kept.run;
  for (int i = 0; i < kept.rank; i++) {
    if (out.rank && out.stride[out.rank - 1] == kept.extent[i] * kept.stride[i]) {
      out.extent[out.rank - 1] *= kept.extent[i];
      out.stride[out.rank - 1] = kept.stride[i];
    } else {
      out.extent[out.rank] = kept.extent[i];
      out.stride[out.rank++] = kept.stride[i];
    }
  }
  return out;
}

int64_t pieces(const Merged& m) {
  int64_t runs = 1;
  for (int i = 0; i < m.rank; i++) runs *= m.extent[i];
  return runs * ((m.run + kBankBytes - 1) / kBankBytes);
}

// Part of an access: the dimensions from `level` on, at `base`.
struct Part {
  const Access* access;
  int level;
  int64_t base;
  int64_t span() const {
    int64_t bytes = access->run;
    for (int i = level; i < access->rank; i++) bytes += (access->extent[i] - 1) * access->stride[i];
    return bytes;
  }
  bool leaf() const { return level == access->rank; }
};

bool meet(Part a, Part b, uint64_t& steps) {
  steps++;
  int64_t a_span = a.span(), b_span = b.span();
  if (a.base >= b.base + b_span || b.base >= a.base + a_span) return false;
  if (a.leaf() && b.leaf()) return true;
  if (a.leaf() || (!b.leaf() && b_span > a_span)) {
    std::swap(a, b);
    std::swap(a_span, b_span);
  }
  int64_t n = a.access->extent[a.level], s = a.access->stride[a.level];
  int64_t child = a_span - (n - 1) * s;
  // Children i with [base + i*s, base + i*s + child) meeting [b.base, b.base + b_span).
  int64_t first = b.base - a.base - child + 1, last = b.base + b_span - 1 - a.base;
  first = first <= 0 ? 0 : (first + s - 1) / s;
  last = std::min(n - 1, last / s);
  for (int64_t i = first; i <= last; i++)
    if (meet({a.access, a.level + 1, a.base + i * s}, b, steps)) return true;
  return false;
}

}  // namespace

Access make_access(uint8_t memory, uint16_t slot, int64_t base, const Box& box, bool write) {
  Access a{};
  a.memory = memory;
  a.slot = slot;
  a.write = write;
  a.base = base;
  a.run = box.width;
  for (int i = 0; i < kRank; i++) {
    int64_t n = box.extent[i], s = box.stride[i];
    if (n <= 1 || s == 0) continue;
    if (s < 0) {
      a.base += s * (n - 1);
      s = -s;
    }
    int at = a.rank++;
    for (; at > 0 && a.stride[at - 1] < s; at--) {
      a.stride[at] = a.stride[at - 1];
      a.extent[at] = a.extent[at - 1];
    }
    a.stride[at] = s;
    a.extent[at] = n;
  }
  while (a.rank && a.stride[a.rank - 1] <= a.run) {
    a.rank--;
    a.run += a.stride[a.rank] * (a.extent[a.rank] - 1);
  }
  a.low = a.base;
  a.high = a.base + a.run;
  for (int i = 0; i < a.rank; i++) a.high += (a.extent[i] - 1) * a.stride[i];
  return a;
}

bool overlaps_itself(const Box& box) {
  int64_t stride[kRank], extent[kRank];
  int rank = 0;
  for (int i = 0; i < kRank; i++) {
    if (box.extent[i] <= 1) continue;
    int64_t s = std::abs(box.stride[i]);
    int at = rank++;
    for (; at > 0 && stride[at - 1] > s; at--) stride[at] = stride[at - 1], extent[at] = extent[at - 1];
    stride[at] = s;
    extent[at] = box.extent[i];
  }
  int64_t span = box.width;
  for (int i = 0; i < rank; i++) {
    if (stride[i] < span) return true;
    span += stride[i] * (extent[i] - 1);
  }
  return false;
}

int64_t granules(const Box& box) { return pieces(merge(box)); }

double bank_cycles(const Box& box, int64_t bytes_per_cycle) {
  int64_t banks = bytes_per_cycle / kBankBytes, usable = banks;
  Merged m = merge(box);
  if (m.rank && m.stride[m.rank - 1] % kBankBytes == 0) {
    int64_t step = std::abs(m.stride[m.rank - 1]) / kBankBytes;
    usable = std::min(banks, banks / std::gcd(banks, step) * ((m.run + kBankBytes - 1) / kBankBytes));
  }
  return static_cast<double>(pieces(m)) / static_cast<double>(usable);
}

bool overlap(const Access& a, const Access& b, uint64_t& steps) {
  if (a.low >= b.high || b.low >= a.high) return false;
  return meet({&a, 0, a.base}, {&b, 0, b.base}, steps);
}

bool same_region(const Box& a, const Box& b) {
  if (a.width != b.width) return false;
  for (int i = 0; i < kRank; i++)
    if (a.extent[i] != b.extent[i] || (a.extent[i] > 1 && a.stride[i] != b.stride[i])) return false;
  return true;
}

}  // namespace hnpu
