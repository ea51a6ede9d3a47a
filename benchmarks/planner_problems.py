"""Made-up planning problems for the benchmarks and tests of the memory planner, fixed by their seed."""

from __future__ import annotations

import random

from hetero_tvm.memory.greedy import first_fit
from hetero_tvm.memory.problem import Buffer, Problem

KIB = 1024


def greedy_by_size(problem: Problem) -> int:
    """Peak, in bytes, of first fit by falling size: the baseline of TensorFlow Lite's planner."""
    live = [b for b in problem.buffers if b.size > 0 and b.upper > b.lower]
    order = sorted(range(len(live)), key=lambda i: (-live[i].size, live[i].lower))
    return first_fit(live, [b.alignment or 1 for b in live], order)[1]


def training(count: int = 20_000, seed: int = 0) -> Problem:
    """``count`` buffers (at least 20) of one step of training a network of residual blocks.

    Forward: each block saves activations until its backward step, keeps a residual branch over
    the whole block and uses temporaries.  Backward: gradients of activations with short lives,
    gradients of weights that live until the optimiser at the end.  States of the optimiser live
    through the step.  Sizes are those of tensors: powers of two times small factors, a few odd.
    """
    rng = random.Random(seed)
    blocks = max(1, count // 20)
    widths = [rng.choice((1, 2, 3, 4, 6, 8)) * 2 ** rng.randint(2, 7) * KIB for _ in range(1 + blocks // 12)]
    buffers: list[Buffer] = []

    def add(lower: int, upper: int, size: int) -> None:
        if rng.random() < 0.1:  # masks, statistics, ragged shapes
            size = max(1, int(size * rng.uniform(0.01, 0.9)))
        buffers.append(Buffer(f"b{len(buffers)}", lower, upper, size))

    steps = 8  # per block and direction
    end = 2 * blocks * steps + blocks
    for block in range(blocks):
        width = widths[block // 12]
        forward, backward = block * steps, (2 * blocks - 1 - block) * steps
        add(forward, forward + steps + 1, width)  # the residual branch
        for _ in range(4):  # saved for the backward step that reads it
            step = rng.randrange(steps)
            add(forward + step, backward + steps - step, width * rng.choice((1, 1, 2, 4)))
        for _ in range(6):  # temporaries of the forward step
            step = rng.randrange(steps)
            add(forward + step, forward + step + rng.randint(1, 3), width * rng.choice((1, 2, 4, 8)))
        for _ in range(5):  # gradients of activations
            step = rng.randrange(steps)
            add(backward + step, backward + step + rng.randint(1, 4), width * rng.choice((1, 2, 4)))
        for _ in range(2):  # gradients of weights
            add(
                backward + rng.randrange(steps), end - rng.randint(0, blocks), width * rng.choice((1, 3)) // 2
            )
        add(0, end, width // 2)  # a state of the optimiser
        add(end - blocks + block, end - blocks + block + 1, width)  # its temporary
    while len(buffers) < count:  # workspaces here and there
        lower = rng.randrange(end - 1)
        add(lower, lower + 1, rng.choice(widths) * rng.randint(1, 12))
    return Problem(buffers[:count])


def perfect(
    count: int, seed: int = 0, *, capacity: int = 1 << 20, width: int = 1 << 20, waste: float = 0.1
) -> Problem:
    """A problem that has a plan within ``capacity``, with little room to spare.

    A rectangle of time by memory is cut in ``count`` pieces, at random places, now across time
    and now across memory; then a share ``waste`` of the pieces lose a bit of their life or size.
    """
    rng = random.Random(seed)
    grain = max(1, min(capacity, width) // 1024)
    pieces = [(0, width, 0, capacity)]
    while len(pieces) < count:
        weights = [(upper - lower) / width * (top - base) / capacity for lower, upper, base, top in pieces]
        index = rng.choices(range(len(pieces)), weights)[0]
        lower, upper, base, top = pieces[index]
        long, tall = (upper - lower) / width, (top - base) / capacity
        across_time = rng.random() < long / (long + tall)
        low, high = (lower, upper) if across_time else (base, top)
        if high - low < 2 * grain:
            continue
        cut = low + rng.randint(1, (high - low) // grain - 1) * grain
        if across_time:
            pieces[index : index + 1] = [(lower, cut, base, top), (cut, upper, base, top)]
        else:
            pieces[index : index + 1] = [(lower, upper, base, cut), (lower, upper, cut, top)]
    rng.shuffle(pieces)
    buffers = []
    for number, (lower, upper, base, top) in enumerate(pieces):
        size = top - base
        if rng.random() < waste:
            if rng.random() < 0.5 and upper - lower >= 2 * grain:
                upper -= grain * rng.randint(1, (upper - lower) // grain - 1)
            elif size >= 2 * grain:
                size -= grain * rng.randint(1, size // grain - 1)
        buffers.append(Buffer(f"p{number}", lower, upper, size))
    return Problem(buffers)


def scattered(count: int, seed: int = 0, *, span: int | None = None, largest: int = 4096) -> Problem:
    """``count`` buffers with independent random lives and sizes."""
    rng = random.Random(seed)
    span = span or max(2, count)
    buffers = []
    for number in range(count):
        lower = rng.randrange(span)
        life = min(span - lower, 1 + int(rng.expovariate(12 / span)))
        buffers.append(Buffer(f"r{number}", lower, lower + life, rng.randint(1, largest)))
    return Problem(buffers)
