"""Streams with flags removed or moved, and an independent judge of what each deserves."""

import dataclasses

from hetero_tvm.targets.npu import isa, regions
from hetero_tvm.targets.npu.isa_sync import QUEUES


def flags_of(stream):
    """(index, offset, instruction) of every flag."""
    return [(i, at, ins) for i, (at, ins, _, _) in enumerate(stream.decode()) if ins.name.endswith("_flag")]


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
    """``count`` streams: every flag removed once (as far as they reach), then random ones moved anywhere."""
    flags = flags_of(stream)
    order = rng.permutation(len(flags))
    result = [without(stream, flags[i][1], flags[i][2].size) for i in order[: count * 2 // 3]]
    while len(result) < count:
        _, at, ins = flags[int(rng.integers(len(flags)))]
        # Where an instruction begins once the flag is out.
        offsets = [o if o < at else o - ins.size for o, *_ in stream.decode() if o != at]
        result.append(moved(stream, at, ins.size, int(rng.choice(offsets))))
    return result


def judge(stream):
    """What a program deserves, from a graph of happens-before over all of it, closed by reachability.

    Conflicts count among what can execute, also when the rest never does.
    """
    items = [(ins, v, isa.queue_of(ins, v)) for _, ins, _, v in stream.decode()]
    partner = _partners(items)
    before, last = {}, dict.fromkeys(QUEUES)  # before: bit masks of all predecessors
    pending = {q: [i for i, item in enumerate(items) if item[2] == q] for q in QUEUES}
    progress = True
    while progress:
        progress = False
        for queue, todo in pending.items():
            while todo and (todo[0] not in partner or partner[todo[0]] in before):
                i = todo.pop(0)
                before[i] = 0
                for p in (last[queue], partner.get(i)):
                    before[i] |= 0 if p is None else before[p] | 1 << p
                last[queue] = i
                progress = True
    touched = {}
    for i in before:
        for a in items[i][0].accesses(items[i][1]):
            touched.setdefault((a.memory, a.slot), []).append((i, a, a.interval()))
    for accesses in touched.values():
        for x, (i, a, (low, high)) in enumerate(accesses):
            for j, b, (other_low, other_high) in accesses[:x]:
                if not (a.write or b.write) or low >= other_high or other_low >= high:
                    continue
                ordered = items[i][2] == items[j][2] or before[i] >> j & 1 or before[j] >> i & 1
                if not ordered and regions.overlap(a, b):
                    return "data race"
    return "deadlock" if any(pending.values()) else "ok"


def _partners(items):
    """For every wait the set that it pairs with: the i-th of an event with the i-th; None: there is none."""
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
