// Puts instructions of NPU kernels in one stream: addresses filled in, flags between the queues.
//
// Compiler only: no exported library contains this.  See targets/npu/regions/sync.py for what it does and why
// the flags suffice.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kQueues = 5;
constexpr int64_t kConstant = -1;  // key of bytes that are only read

using Clock = std::array<int32_t, kQueues>;

// Layouts shared with sync.py.
struct Access {
  int32_t location, write;
  int64_t low, high;
  int64_t pitch, run;  // runs of so many bytes every `pitch` from `low` on; a pitch of 0: all bytes
};
struct Patch {
  int32_t location;  // below 0: the slot of parameter ~location goes there, else a location's address
  int16_t at, width;
  int64_t offset;
};
struct Location {
  int64_t key, shift;
  int64_t wrap;  // byte `wrap` is byte 0 again; 0: it is not

  int64_t At(int64_t byte) const {
    byte += shift;
    return wrap && byte >= wrap ? byte - wrap : byte;
  }
};
struct Flag {
  int32_t source, target, after, before;
};

struct Live {
  int64_t low, high, pitch, run;
  int32_t queue, number, write;
};

int64_t Modulo(int64_t a, int64_t p) { return (a % p + p) % p; }

// Runs of two accesses under a common pitch, where there is one: what is shorter than it is one run.
struct Runs {
  int64_t pitch = 0, a, b, from_a_to_b;
  template <class A, class B>
  Runs(const A& x, const B& y) {
    int64_t p = x.pitch ? x.pitch : y.pitch;
    a = x.pitch ? x.run : x.high - x.low;
    b = y.pitch ? y.run : y.high - y.low;
    if (p == 0 || (x.pitch && y.pitch && x.pitch != y.pitch) || a > p || b > p) return;
    pitch = p;
    from_a_to_b = Modulo(y.low - x.low, p);
  }
};

// Whether they may share a byte.
template <class A, class B>
bool Meet(const A& x, const B& y) {
  if (x.low >= y.high || y.low >= x.high) return false;
  Runs runs(x, y);
  return runs.pitch == 0 || runs.from_a_to_b < runs.a || runs.pitch - runs.from_a_to_b < runs.b;
}

// Whether all bytes of `y` are certainly among those of `x`.
template <class A, class B>
bool Covers(const A& x, const B& y) {
  if (y.low < x.low || x.high < y.high) return false;
  if (x.pitch == 0) return true;
  Runs runs(x, y);
  return runs.pitch != 0 && runs.from_a_to_b + runs.b <= runs.a;
}

class Stream {
 public:
  // Instructions `first` to `last` of a kernel.
  void Add(int64_t first, int64_t last, const uint8_t* code, const int64_t* code_at, const uint8_t* queue,
           const int64_t* access_at, const Access* accesses, const int64_t* patch_at, const Patch* patches,
           const Location* locations, const int32_t* slots, uint16_t tag) {
    for (int64_t n = first; n < last; ++n) {
      Order(queue[n], accesses + access_at[n], accesses + access_at[n + 1], locations);
      size_t begin = code_.size();
      begins_.push_back(begin);
      code_.insert(code_.end(), code + code_at[n], code + code_at[n + 1]);
      std::memcpy(&code_[begin + 2], &tag, 2);
      for (const Patch* p = patches + patch_at[n]; p < patches + patch_at[n + 1]; ++p) {
        int64_t value = p->location < 0 ? slots[~p->location] : locations[p->location].At(p->offset);
        std::memcpy(&code_[begin + p->at], &value, p->width);  // little-endian, as the stream is
      }
    }
  }

  // Instructions of every queue so far.
  void Mark(int32_t* counts) const {
    for (int q = 0; q < kQueues; ++q) counts[q] = static_cast<int32_t>(index_[q].size());
  }

  // The next instruction of `target` waits for the instruction of `source` with that number (from 1 on).
  void After(int target, int source, int32_t number) {
    Clock needed{};
    needed[source] = number;
    if (number > clock_[target][source]) Wait(target, needed);
  }

  // One interval per queue and kind remains of those between `low` and `high` from before a mark.
  void Merge(int64_t key, int64_t low, int64_t high, const int32_t* mark) {
    std::vector<Live>& live = live_[key];
    Live united[2 * kQueues];
    bool any[2 * kQueues] = {};
    size_t kept = 0;
    for (const Live& a : live) {
      if (a.low < low || a.high > high || a.number > mark[a.queue]) {
        live[kept++] = a;
        continue;
      }
      int at = 2 * a.queue + a.write;
      if (!any[at]) {
        united[at] = a;
        any[at] = true;
        continue;
      }
      united[at].pitch = 0;
      united[at].low = std::min(united[at].low, a.low);
      united[at].high = std::max(united[at].high, a.high);
      united[at].number = std::max(united[at].number, a.number);
    }
    live.resize(kept);
    for (int at = 0; at < 2 * kQueues; ++at) {
      if (any[at]) live.push_back(united[at]);
    }
  }

  // Bytes of the stream with flags of `size` bytes each; `table`: the wait and set flags by (kind, source,
  // target).  Without `out`, only their number.
  int64_t Code(const uint8_t* set, const uint8_t* wait, int64_t size, uint8_t* out) const {
    if (out == nullptr) return code_.size() + 2 * flags_.size() * size;
    size_t count = begins_.size();
    std::vector<int32_t> first_after(count + 1), first_before(count + 1);
    std::vector<int32_t> after = Sorted(&Flag::after, &first_after);
    std::vector<int32_t> before = Sorted(&Flag::before, &first_before);
    uint8_t* start = out;
    auto put = [&](const uint8_t* from, size_t bytes) {
      std::memcpy(out, from, bytes);
      out += bytes;
    };
    for (size_t n = 0; n < count; ++n) {
      for (int32_t i = first_before[n]; i < first_before[n + 1]; ++i) put(wait + Pair(before[i]) * size, size);
      put(&code_[begins_[n]], (n + 1 < count ? begins_[n + 1] : code_.size()) - begins_[n]);
      for (int32_t i = first_after[n]; i < first_after[n + 1]; ++i) put(set + Pair(after[i]) * size, size);
    }
    return out - start;
  }

  const std::vector<Flag>& flags() const { return flags_; }

 private:
  // Flags that the next instruction needs, and what later ones must know of it.
  void Order(int queue, const Access* begin, const Access* end, const Location* locations) {
    Clock& clock = clock_[queue];
    Clock needed{};
    bool any = false;
    for (const Access* a = begin; a < end; ++a) {
      const Location& location = locations[a->location];
      if (location.key == kConstant) continue;
      Access moved = Moved(*a, location);
      for (const Live& b : live_[location.key]) {
        if (b.queue != queue && Meet(moved, b) && (a->write || b.write) &&
            b.number > clock[b.queue] && b.number > needed[b.queue]) {
          needed[b.queue] = b.number;
          any = true;
        }
      }
    }
    if (any) Wait(queue, needed);
    int32_t number = static_cast<int32_t>(index_[queue].size()) + 1;
    index_[queue].push_back(static_cast<int32_t>(begins_.size()));
    known_[queue].push_back(clock);
    for (const Access* a = begin; a < end; ++a) {
      const Location& location = locations[a->location];
      if (location.key == kConstant) continue;
      Access moved = Moved(*a, location);
      std::vector<Live>& live = live_[location.key];
      // Whatever conflicts with an access that this one covers conflicts with this one too, and this one is
      // ordered behind it.
      bool write = a->write;
      live.erase(std::remove_if(live.begin(), live.end(),
                                [&](const Live& b) {
                                  return Covers(moved, b) && (write || (!b.write && b.queue == queue));
                                }),
                 live.end());
      live.push_back({moved.low, moved.high, moved.pitch, moved.run, queue, number, a->write});
    }
  }

  static Access Moved(Access a, const Location& location) {
    int64_t low = location.At(a.low);
    a.high += low - a.low;
    a.low = low;
    return a;
  }

  // Flags for what `queue` must know, without those that follow from the others.
  void Wait(int queue, const Clock& needed) {
    Clock& clock = clock_[queue];
    int order[kQueues], count = 0;
    for (int q = 0; q < kQueues; ++q) {
      if (needed[q]) order[count++] = q;
    }
    auto index = [&](int q) { return index_[q][needed[q] - 1]; };
    std::sort(order, order + count, [&](int a, int b) { return index(a) > index(b); });
    for (int i = 0; i < count; ++i) {
      int source = order[i];
      int32_t number = needed[source];
      if (number <= clock[source]) continue;
      flags_.push_back({source, queue, index(source), static_cast<int32_t>(begins_.size())});
      const Clock& known = known_[source][number - 1];
      for (int q = 0; q < kQueues; ++q) clock[q] = std::max(clock[q], known[q]);
      clock[source] = number;
    }
  }

  int64_t Pair(int32_t flag) const { return flags_[flag].source * kQueues + flags_[flag].target; }

  // Indices of the flags by instruction; `first`: where those of each instruction begin.
  std::vector<int32_t> Sorted(int32_t Flag::*by, std::vector<int32_t>* first) const {
    for (const Flag& f : flags_) ++(*first)[f.*by + 1];
    for (size_t n = 1; n < first->size(); ++n) (*first)[n] += (*first)[n - 1];
    std::vector<int32_t> next(*first), sorted(flags_.size());
    for (size_t i = 0; i < flags_.size(); ++i) sorted[next[flags_[i].*by]++] = static_cast<int32_t>(i);
    return sorted;
  }

  std::vector<uint8_t> code_;
  std::vector<size_t> begins_;
  std::array<Clock, kQueues> clock_{};                  // of every queue: completed of each other one
  std::array<std::vector<int32_t>, kQueues> index_;     // in the stream, of a queue's i-th instruction
  std::array<std::vector<Clock>, kQueues> known_;       // clock of a queue when its i-th one starts
  std::unordered_map<int64_t, std::vector<Live>> live_; // accesses that later ones may conflict with
  std::vector<Flag> flags_;
};

}  // namespace

extern "C" {

Stream* npu_sync_new() { return new (std::nothrow) Stream; }

void npu_sync_delete(Stream* stream) { delete stream; }

// 0, or 1 when memory is used up.
int npu_sync_add(Stream* stream, int64_t first, int64_t last, const uint8_t* code, const int64_t* code_at,
                 const uint8_t* queue, const int64_t* access_at, const Access* accesses,
                 const int64_t* patch_at, const Patch* patches, const Location* locations, const int32_t* slots,
                 uint16_t tag) {
  try {
    stream->Add(first, last, code, code_at, queue, access_at, accesses, patch_at, patches, locations, slots, tag);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void npu_sync_mark(const Stream* stream, int32_t* counts) { stream->Mark(counts); }

void npu_sync_after(Stream* stream, int target, int source, int32_t number) {
  stream->After(target, source, number);
}

void npu_sync_merge(Stream* stream, int64_t key, int64_t low, int64_t high, const int32_t* mark) {
  stream->Merge(key, low, high, mark);
}

// The number of flags; with `out`, they are written there.
int64_t npu_sync_flags(const Stream* stream, Flag* out) {
  if (out != nullptr) std::copy(stream->flags().begin(), stream->flags().end(), out);
  return static_cast<int64_t>(stream->flags().size());
}

// Bytes of the code; with `out`, it is written there.
int64_t npu_sync_code(const Stream* stream, const uint8_t* set, const uint8_t* wait, int64_t size,
                      uint8_t* out) {
  return stream->Code(set, wait, size, out);
}

}
