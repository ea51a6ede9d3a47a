"""Streams with flags removed or moved, and an independent judge of what each deserves."""

import dataclasses
import functools

from hetero_tvm.targets.npu.isa.overlap import overlap
from hetero_tvm.targets.npu.isa.synchronization import QUEUES


def flags_of(stream):
    """(offset, instruction) of every flag."""
    return [(at, ins) for at, ins, _, _ in stream.decode() if ins.name.endswith("_flag")]


def without(stream, at, size):
    """The stream without the instruction at offset ``at``."""
    return dataclasses.replace(
        stream, code=stream.code[:at] + stream.code[at + size :], instructions=stream.instructions - 1
    )


def moved(stream, at, size, to):
    """The stream with the instruction at ``at`` moved to offset ``to`` of the rest."""
    flag = stream.code[at : at + size]
    rest = stream.code[:at] + stream.code[at + size :]
    return dataclasses.replace(stream, code=rest[:to] + flag + rest[to:])


def mutants(stream, rng, count):
    """``count`` streams: in two thirds a flag is missing (another one in each, as far as they reach), in
    the others one stands anywhere else.
    """
    flags = flags_of(stream)
    starts = [at for at, *_ in stream.decode()]
    order = rng.permutation(len(flags))
    result = [without(stream, flags[i][0], flags[i][1].size) for i in order[: count * 2 // 3]]
    while len(result) < count:
        at, ins = flags[int(rng.integers(len(flags)))]
        # Where an instruction begins once the flag is out.
        offsets = [o if o < at else o - ins.size for o in starts if o != at]
        result.append(moved(stream, at, ins.size, int(rng.choice(offsets))))
    return result


class Judge:
    """Verdict that ``stream`` and its mutants deserve: "ok", "data race" or "deadlock".

    Happens-before is a graph over all instructions, closed by reachability; a race is a pair of conflicting
    accesses that no path joins.  Which pairs conflict is the same in all mutants: only flags and barriers
    differ.  Conflicts count among what can execute, also when the rest never does.
    """

    def __init__(self, stream):
        self._conflicts = []
        """Pairs of numbers among the instructions that touch bytes."""
        touched, number = {}, 0
        for _, ins, _, values in stream.decode():
            if _orders(ins):
                continue
            queue = queue_of(ins, values)
            for access in ins.accesses(values):
                earlier = touched.setdefault((access.memory, access.slot), [])
                low, high = access.interval()
                for other, other_queue, before, (first, end) in earlier:
                    apart = other_queue == queue or low >= end or first >= high
                    if (access.write or before.write) and not apart and _overlap(before, access):
                        self._conflicts.append((other, number))
                earlier.append((number, queue, access, (low, high)))
            number += 1

    def verdict(self, mutant):
        items = []
        for _, ins, _, values in mutant.decode():
            queue = queue_of(ins, values)
            items.append((ins, values, QUEUES if queue is None else (queue,)))
        before, complete = _before(items)
        data = [i for i, item in enumerate(items) if not _orders(item[0])]
        for a, b in self._conflicts:
            i, j = data[a], data[b]
            if i in before and j in before and not (before[j] >> i & 1 or before[i] >> j & 1):
                return "data race"
        return "ok" if complete else "deadlock"


def queue_of(instruction, values):
    """The queue in which an instruction executes; None for a barrier: in all."""
    if instruction.queue in ("source", "target"):
        return values[instruction.queue]
    return None if instruction.queue == "all" else instruction.queue


def _orders(instruction):
    return instruction.name == "barrier" or instruction.name.endswith("_flag")


_overlap = functools.lru_cache(None)(overlap)


def _before(items):
    """Bit mask of all that happen before it, by number of every instruction that can execute; and whether
    that is all of them."""
    partner = _partners(items)
    before, last = {}, dict.fromkeys(QUEUES)
    pending = {q: [i for i, item in enumerate(items) if q in item[2]][::-1] for q in QUEUES}
    progress = True
    while progress:
        progress = False
        for todo in pending.values():
            while todo and (todo[-1] not in partner or partner[todo[-1]] in before):
                i = todo[-1]
                queues = items[i][2]  # a barrier stands in all
                if any(not pending[q] or pending[q][-1] != i for q in queues):
                    break
                before[i] = 0
                for p in (*(last[q] for q in queues), partner.get(i)):
                    before[i] |= 0 if p is None else before[p] | 1 << p
                for q in queues:
                    last[q] = pending[q].pop()
                progress = True
    return before, not any(pending.values())


def _partners(items):
    """Set that every wait pairs with: the i-th of an event with the i-th; None: there is none."""
    sets, result, count = {}, {}, {}
    for i, (ins, v, _) in enumerate(items):
        if ins.name == "set_flag":
            sets.setdefault((v["source"], v["target"], v["event"]), []).append(i)
    for i, (ins, v, _) in enumerate(items):
        if ins.name == "wait_flag":
            key = (v["source"], v["target"], v["event"])
            n = count[key] = count.get(key, -1) + 1
            result[i] = sets[key][n] if n < len(sets.get(key, ())) else None
    return result
