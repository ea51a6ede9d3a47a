// Discrete events on five queues.
//
// Every queue has a sequencer, which issues one instruction at a time, and instructions in flight,
// which complete in order.  The sequencers of move, matrix and vector wait for the instruction before;
// those of the DMA engines run ahead, up to the descriptors that may be under way, so that the latency
// of one transfer passes behind the data of another.  At most one instruction per queue works at a
// time; the work of all queues shares DRAM and the banks of L1 and UB: when the sum of what they ask
// for is more than there is, all that use the resource slow down alike.
#include "engine.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "fault.h"

namespace hnpu {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kDone = 1e-7;  // cycles of work that are rounding error
enum Resource { kDramPort, kL1Port, kUbPort, kResources };

struct Flight {
  uint32_t step;
  bool flag;
  double ready;             // when its data phase may begin
  double complete = kNever;
};

struct QueueState {
  std::vector<uint32_t> steps;
  size_t next = 0;
  enum { idle, issuing, waiting, barrier } sequencer = idle;
  double issue_until = 0;
  std::deque<Flight> flights;
  size_t worked = 0;        // flights from the front whose work is done
  uint32_t outstanding = 0; // flights that are not flags
  bool active = false;      // flights[worked] is at work
  double remaining = 0, start = 0, rate = 1;
  double demand[kResources] = {};
  int bottleneck = HNPU_STALL_PORT;
  hnpu_queue_counters traced{};  // its counters at the last trace entry
  bool finished() const { return next == steps.size() && flights.empty(); }
};

class Engine {
 public:
  Engine(const Program& program, Machine& machine, bool trace, Result& result)
      : program_(program), machine_(machine), spec_(machine.spec), trace_(trace), result_(result) {
    events_.resize(size_t{HNPU_QUEUES} * HNPU_QUEUES * spec_.events);
    for (size_t i = 0; i < program.steps.size(); i++) {
      int queue = program.steps[i].queue;
      for (int q = 0; q < HNPU_QUEUES; q++)
        if (queue == q || queue == kQueueAll) queues_[q].steps.push_back(static_cast<uint32_t>(i));
    }
  }

  void run() {
    for (;;) {
      settle();
      if (all([](const QueueState& q) { return q.finished(); })) break;
      share();
      double next = next_event();
      if (next == kNever) fail(HNPU_ERROR_DRIVER, "the simulator is stuck: check_order let a deadlock pass");
      pass(next);
    }
    result_.counters.cycles = now_;
    result_.counters.energy_joule += 1e-12 * spec_.energy.static_per_cycle * now_;
  }

 private:
  template <class F>
  bool all(F f) const {
    return std::all_of(queues_, queues_ + HNPU_QUEUES, f);
  }

  // Everything that takes no time.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int q = 0; q < HNPU_QUEUES; q++) moved |= work(q) || retire(q) || sequence(q);
      if (all([](const QueueState& q) { return q.sequencer == QueueState::barrier; })) {
        release_barrier();
        moved = true;
      }
    }
  }

  // Begins and ends the data phases of a queue.
  bool work(int index) {
    QueueState& q = queues_[index];
    if (q.active && q.remaining <= kDone) {
      Flight& f = q.flights[q.worked++];
      q.active = false;
      f.complete = now_ + (writes_dram(f.step) ? spec_.dram_latency : 0);
      if (trace_) add_trace(index, f.step, q.start);
      return true;
    }
    if (q.active || q.worked == q.flights.size()) return false;
    Flight& f = q.flights[q.worked];
    if (f.flag) {
      f.complete = now_;
      q.worked++;
      return true;
    }
    if (f.ready > now_) return false;
    const Cost& cost = program_.steps[f.step].cost;
    double cycles = cost.cycles(spec_), whole = cycles > 0 ? cycles : 1;
    q.demand[kDramPort] = static_cast<double>(cost.dram) / spec_.dram_bytes_per_cycle / whole;
    q.demand[kL1Port] = cost.l1 / whole;
    q.demand[kUbPort] = cost.ub / whole;
    q.remaining = cycles;
    q.start = now_;
    q.active = true;
    return true;
  }

  bool retire(int index) {
    QueueState& q = queues_[index];
    if (q.worked == 0 || q.flights.front().complete > now_) return false;
    const Flight& f = q.flights.front();
    if (f.flag)
      event(SetFlag(code(f.step)))++;
    else
      q.outstanding--;
    q.flights.pop_front();
    q.worked--;
    return true;
  }

  bool sequence(int index) {
    QueueState& q = queues_[index];
    switch (q.sequencer) {
      case QueueState::barrier: return false;
      case QueueState::waiting: return take_flag(q);
      case QueueState::issuing:
        if (q.issue_until > now_) return false;
        issue(index);
        return true;
      case QueueState::idle: break;
    }
    if (q.next == q.steps.size()) return false;
    const uint8_t* c = code(q.steps[q.next]);
    bool runs_ahead = index == HNPU_DMA_IN || index == HNPU_DMA_OUT;
    if (c[0] == Barrier::kOpcode || !runs_ahead) {
      if (!q.flights.empty()) return false;
    } else if (c[0] != SetFlag::kOpcode && c[0] != WaitFlag::kOpcode && q.outstanding >= spec_.dma_outstanding) {
      return false;
    }
    if (c[0] == Gather::kOpcode && indices_under_way(q, c)) return false;
    q.sequencer = QueueState::issuing;
    q.issue_until = now_ + spec_.issue_cycles;
    return true;
  }

  // Whether a transfer of the same queue still brings the indices of a gather, which has no addresses before.
  bool indices_under_way(const QueueState& q, const uint8_t* gather) const {
    Access wanted[kMostAccesses], found[kMostAccesses];
    accesses(gather, wanted);
    uint64_t steps = 0;
    for (const Flight& f : q.flights) {
      if (f.flag) continue;
      const Access& written = found[accesses(code(f.step), found) - 1];
      if (written.memory == wanted[0].memory && overlap(written, wanted[0], steps)) return true;
    }
    return false;
  }

  void issue(int index) {
    QueueState& q = queues_[index];
    uint32_t step = q.steps[q.next];
    const uint8_t* c = code(step);
    result_.counters.queue[index].instructions++;
    if (c[0] == WaitFlag::kOpcode) {
      q.sequencer = QueueState::waiting;
    } else if (c[0] == Barrier::kOpcode) {
      q.sequencer = QueueState::barrier;
    } else {
      q.sequencer = QueueState::idle;
      q.next++;
      if (c[0] == SetFlag::kOpcode) {
        q.flights.push_back({step, true, now_});
      } else {
        begin(step);
        q.flights.push_back({step, false, now_ + (reads_dram(step) ? spec_.dram_latency : 0)});
        q.outstanding++;
      }
    }
  }

  // Computes an instruction.  In order of issue, which no happens-before contradicts.
  void begin(uint32_t step) {
    const uint8_t* c = code(step);
    Access found[kMostAccesses];
    int n = accesses(c, found);
    try {
      for (int i = 0; i < n; i++)
        if (!found[i].write) machine_.track(found[i]);
      if (machine_.numbers) execute(c, machine_);
      for (int i = 0; i < n; i++)
        if (found[i].write) machine_.track(found[i]);
    } catch (const Fault& f) {
      fail(f.status, program_.name(step), ": ", f.what());
    }
    count(step);
  }

  void count(uint32_t step) {
    const Cost& cost = program_.steps[step].cost;
    hnpu_counters& total = result_.counters;
    (reads_dram(step) ? total.dram_read_bytes : total.dram_write_bytes) += cost.dram;
    total.macs += cost.macs;
    total.vector_elements += cost.elements;
    total.energy_joule += cost.joule;
    if (code(step)[0] == Mmad::kOpcode) total.matrix_block_cycles += cost.unit;
  }

  bool take_flag(QueueState& q) {
    uint32_t& sets = event(WaitFlag(code(q.steps[q.next])));
    if (sets == 0) return false;
    sets--;
    q.next++;
    q.sequencer = QueueState::idle;
    return true;
  }

  void release_barrier() {
    for (QueueState& q : queues_) {
      q.next++;
      q.sequencer = QueueState::idle;
    }
  }

  // How fast each working instruction goes until the next event.
  void share() {
    double asked[kResources] = {};
    for (const QueueState& q : queues_)
      if (q.active)
        for (int r = 0; r < kResources; r++) asked[r] += q.demand[r];
    for (QueueState& q : queues_) {
      if (!q.active) continue;
      double slowest = 1;
      for (int r = 0; r < kResources; r++)
        if (q.demand[r] > 0 && asked[r] > slowest) {
          slowest = asked[r];
          q.bottleneck = r == kDramPort ? HNPU_STALL_DRAM : HNPU_STALL_PORT;
        }
      q.rate = 1 / slowest;
    }
  }

  double next_event() const {
    double next = kNever;
    for (const QueueState& q : queues_) {
      if (q.sequencer == QueueState::issuing) next = std::min(next, q.issue_until);
      if (q.active) next = std::min(next, now_ + q.remaining / q.rate);
      if (!q.active && q.worked < q.flights.size()) next = std::min(next, q.flights[q.worked].ready);
      if (q.worked) next = std::min(next, q.flights.front().complete);
    }
    return next;
  }

  void pass(double until) {
    double time = until - now_;
    for (int i = 0; i < HNPU_QUEUES; i++) {
      QueueState& q = queues_[i];
      hnpu_queue_counters& c = result_.counters.queue[i];
      if (q.active) {
        bool done = now_ + q.remaining / q.rate <= until;
        q.remaining = done ? 0 : q.remaining - time * q.rate;
        c.busy += time * q.rate;
        c.stall[q.bottleneck] += time * (1 - q.rate);
      } else if (q.sequencer == QueueState::issuing) {
        c.issue += time;
      } else if (!q.flights.empty()) {
        c.stall[HNPU_STALL_LATENCY] += time;
      } else if (q.sequencer == QueueState::waiting) {
        c.stall[HNPU_STALL_FLAG] += time;
      } else if (q.sequencer == QueueState::barrier) {
        c.stall[HNPU_STALL_BARRIER] += time;
      } else {
        c.idle += time;
      }
    }
    now_ = until;
  }

  void add_trace(int queue, uint32_t step, double start) {
    const uint8_t* c = code(step);
    const Cost& cost = program_.steps[step].cost;
    hnpu_trace_entry entry{step, tag_of(c), c[0], static_cast<uint8_t>(queue), start, now_, cost.dram};
    const hnpu_queue_counters& now = result_.counters.queue[queue];
    hnpu_queue_counters& last = queues_[queue].traced;
    entry.issue = static_cast<float>(now.issue - last.issue);
    for (int i = 0; i < HNPU_STALLS; i++) entry.stall[i] = static_cast<float>(now.stall[i] - last.stall[i]);
    entry.joule = static_cast<float>(cost.joule);
    last = now;
    result_.trace.push_back(entry);
  }

  template <class Flag>
  uint32_t& event(const Flag& f) {
    size_t pair = static_cast<size_t>(f.source) * HNPU_QUEUES + static_cast<size_t>(f.target);
    return events_[pair * spec_.events + f.event];
  }
  const uint8_t* code(uint32_t step) const { return program_.steps[step].code; }
  bool reads_dram(uint32_t step) const { return program_.steps[step].queue == HNPU_DMA_IN; }
  bool writes_dram(uint32_t step) const {
    return program_.steps[step].queue == HNPU_DMA_OUT && program_.steps[step].cost.dram > 0;
  }

  const Program& program_;
  Machine& machine_;
  const Spec& spec_;
  bool trace_;
  Result& result_;
  QueueState queues_[HNPU_QUEUES];
  std::vector<uint32_t> events_;
  double now_ = 0;
};

}  // namespace

void run_program(const Program& program, Machine& machine, bool trace, Result& result) {
  Engine(program, machine, trace, result).run();
}

}  // namespace hnpu
