"""The kernels of one group of convolutions that is computed by strips (see :mod:`strips`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.npu.fetch import Fetch, FetchSpace
from hetero_tvm.targets.npu.regions.region import Value
from hetero_tvm.targets.npu.regions.residency import Step

_FETCH = FetchSpace()

Rows = tuple[int, int]
"""First row, and one past the last."""


@dataclass(frozen=True)
class Group:
    """Convolutions in order, and the images around them."""

    steps: list[Step]
    sources: list[Value]
    """Images that they read and do not make."""
    strided: dict[Value, tuple[Value, tuple[int, int]]]
    """Sources that are every n-th row and m-th pixel of an image: that image, and (n, m)."""

    @staticmethod
    def of(steps: list[Step]) -> Group:
        """Group of consecutive steps; 1x1 convolutions with strides read only the pixels that they use."""
        made = {step.result for step in steps}
        sources = list(dict.fromkeys(v for s in steps for v in s.operands if v is not None and v not in made))
        strided: dict[Value, tuple[Value, tuple[int, int]]] = {}
        for n, source in enumerate(sources):
            readers = [s for s in steps if source in s.operands]
            strides = readers[0].op.strides
            alike = (
                s.op.kernel == (1, 1) and s.op.strides == strides and not any(s.op.padding) for s in readers
            )
            if strides == (1, 1) or not all(alike) or any(source in s.operands[1:] for s in readers):
                continue
            op = readers[0].op
            sources[n] = few = Value((1, op.channels, op.out_height, op.out_width))
            strided[few] = source, strides
            steps = [_reading(s, few) if s in readers else s for s in steps]
        return Group(steps, sources, strided)

    @property
    def values(self) -> list[Value]:
        """Sources, then results in order."""
        return [*self.sources, *(step.result for step in self.steps)]

    def bytes(self) -> int:
        """Bytes of L1 that whole images take at the worst step."""
        worst = 0
        for n, step in enumerate(self.steps):
            later = {v for s in self.steps[n:] for v in s.operands if v is not None}
            made = {*self.sources, *(s.result for s in self.steps[:n])}
            alive = (later & made) | {step.result}
            worst = max(worst, sum(_row_bytes(v) * v.shape[2] for v in alive))
        return worst


def _reading(step: Step, image: Value) -> Step:
    """The 1x1 convolution ``step`` on an image of only the pixels that it uses."""
    op = replace(step.op, height=image.shape[2], width=image.shape[3], strides=(1, 1))
    return replace(step, op=op, operands=[image, *step.operands[1:]], recorded=None)


@dataclass
class Strips:
    """Kernels and copies of a group in order."""

    weights: list[Step]
    """Copies of the first kernel's weights and bias."""
    images: list[Step]
    """Copies of the image rows that it reads."""
    first: Step
    rest: list[Step]
    input_bytes: int
    """Bytes of L1 for the source rows that one strip reads."""

    def steps(self) -> list[Step]:
        """Steps of all members, in order."""
        return [*self.weights, *self.images, self.first, *self.rest]


@dataclass
class _Ranges:
    """Rows of one value, strip by strip."""

    made: list[Rows]
    """Rows that each strip adds."""
    needed: list[Rows]
    """Rows that each strip's readers need."""


def fetch(step: Step, op: Fetch, source: Value | None, result: Value) -> Step:
    """Copy step that brings ``source`` to L1 for ``step``."""
    wanted, layout = _FETCH.layouts(op)
    return Step(_FETCH, op, None, [source], wanted, result, layout, f"{step.name} input", [None])


def strips_of(group: Group, high: int, machine: NpuMachine) -> Strips | None:
    """Strips with ``high`` rows of the last result each; None when a window reaches beyond one strip."""
    ranges = _ranges(group, high)
    return None if ranges is None else _Builder(group, ranges, machine).run()


def _bias(step: Step) -> int | None:
    """Index of the operand that is the step's only bias, a constant; None: it has no such operand."""
    steps = [s for s in step.op.epilogue if s in (BIAS, RESIDUAL)]
    index = 2 + steps.index(BIAS) if steps.count(BIAS) == 1 else None
    return index if index is not None and step.arrays[index] is not None else None


def _row_bytes(value: Value) -> int:
    return 2 * value.shape[1] * value.shape[3]


def _under(op: Any, out: Rows) -> Rows:
    """Rows of X under rows of Y."""
    reach = (op.kernel[0] - 1) * op.dilation[0] + 1
    low = max(0, out[0] * op.strides[0] - op.padding[0])
    return low, min(op.height, (out[1] - 1) * op.strides[0] - op.padding[0] + reach)


def _reads(step: Step) -> Iterator[tuple[Value, bool]]:
    """Images that a convolution reads, and whether each is its X (not its residual)."""
    for n, value in enumerate(step.operands):
        if value is not None:
            yield value, n == 0


def _ranges(group: Group, high: int) -> dict[Value, _Ranges] | None:
    """Rows of every value, from the strips of the last result backwards; None when a window reaches beyond
    one strip."""
    values = group.values
    total = values[-1].shape[2]
    count = -(-total // high)
    made = {values[-1]: [(i * high, min(total, (i + 1) * high)) for i in range(count)]}
    found = {values[-1]: _Ranges(made[values[-1]], made[values[-1]])}
    for value in reversed(values[:-1]):
        is_source = value in group.sources
        needed: list[Rows] = []
        for i in range(count):
            rows = [
                _under(step.op, found[step.result].made[i]) if is_x else found[step.result].made[i]
                for step in group.steps
                for read, is_x in _reads(step)
                if read is value
            ]
            if not rows:
                return None
            needed.append((min(r[0] for r in rows), max(r[1] for r in rows)))
        own: list[Rows] = []
        done = 0
        for i, (_, end) in enumerate(needed):
            end = max(end, done) if i + 1 < count or is_source else value.shape[2]
            own.append((done, end))
            done = end
        if not is_source and any(a >= z for a, z in own):
            return None
        if any(needed[i][0] < own[i - 1][0] for i in range(1, count)):
            return None
        needed = [(low, max(low, z)) for (low, _), (_, z) in zip(needed, own, strict=True)]
        found[value] = _Ranges(own, needed)
    return found


class _Builder:
    """Builder of the steps of one group."""

    def __init__(self, group: Group, ranges: dict[Value, _Ranges], machine: NpuMachine):
        self.group, self.ranges, self.final = group, ranges, group.values[-1]
        self.machine = machine
        self.count = len(ranges[self.final].made)
        self.segments = {
            v: [Value((1, v.shape[1], z - a, v.shape[3]), resident=True) for a, z in ranges[v].needed]
            for v in group.values[:-1]
        }
        self.weights = {step.result: Value((self._elements(step),), resident=True) for step in group.steps}
        self.biases = {
            step.result: Value((step.op.filters,), resident=True, in_ub=True)
            for step in group.steps
            if _bias(step) is not None
        }
        self.leaders: dict[Value, Step] = {}

    def run(self) -> Strips:
        group, count = self.group, self.count
        leader = min(1, count - 1)
        kernels = {leader: [self._strip(step, leader) for step in group.steps]}
        self.leaders = {step.result: strip for step, strip in zip(group.steps, kernels[leader], strict=True)}
        for i in range(count):
            if i != leader:
                kernels[i] = [self._strip(step, i) for step in group.steps]
        fresh = [[s for s in group.sources if self._first_reader(s) == n] for n in range(len(group.steps))]

        def images(n: int) -> list[Step]:
            """Copies of the source rows that step ``n`` of the first strip is the first to read."""
            return [part for source in fresh[n] for part in self._input(source, 0)]

        rest: list[Step] = []
        ahead = self._ahead()
        for i in range(count):
            more = i + 1 < count
            # Piece by piece: the small loads of the kernels would wait behind the whole.
            rest += self._inputs(i + 1, 0, ahead) if more and i else []
            for n, step in enumerate(kernels[i][1:], start=1):
                if more and n == ahead:
                    rest += [*(self._inputs(1) if i == 0 else []), kernels[i + 1][0]]
                if i == 0:  # Weights in the order in which they are needed.
                    rest += [*self._weights_of(group.steps[n]), *images(n)]
                rest.append(step)
                rest += self._inputs(i + 1, n, ahead) if more and i and n < ahead else []
        size = sum(max(_row_bytes(part) * part.shape[2] for part in self.segments[s]) for s in group.sources)
        return Strips(self._weights_of(group.steps[0]), images(0), kernels[0][0], rest, size)

    def _ahead(self) -> int:
        """Index of the kernel of a strip before which the next strip's first kernel runs: the last one, whose
        results queue up for DRAM; or the last one whose window slides over the result of the kernel right
        before, which would have to be finished first."""
        steps = self.group.steps
        sliding = (
            n
            for n in range(2, len(steps))
            if steps[n].op.kernel[0] > 1 and steps[n].operands[0] is steps[n - 1].result
        )
        return max(sliding, default=len(steps) - 1)

    def _elements(self, step: Step) -> int:
        return step.space.weight_elements(step.op, self.machine)

    def _first_reader(self, source: Value) -> int:
        return next(n for n, step in enumerate(self.group.steps) if source in step.operands)

    def _inputs(self, i: int, piece: int = 0, pieces: int = 1) -> list[Step]:
        """Copies of one of several pieces of the source rows that strip ``i`` reads."""
        return [part for s in self.group.sources for part in self._input(s, i, piece, pieces)]

    def _input(self, source: Value, i: int, piece: int = 0, pieces: int = 1) -> list[Step]:
        first, last = self.ranges[source].needed[i]
        low, end = (first + (last - first) * n // pieces for n in (piece, piece + 1))
        if low == end:
            return []
        image, (sy, sx) = self.group.strided.get(source, (source, (1, 1)))
        high = (end - low - 1) * sy + 1
        part = image.part((1, image.shape[1], high, image.shape[3]), low * sy * _row_bytes(image))
        target = _part(self.segments[source][i], (first, last), (low, end))
        op = Fetch(high, image.shape[3], image.shape[1], (sy, sx))
        return [fetch(self.group.steps[self._first_reader(source)], op, part, target)]

    def _weights_of(self, step: Step) -> list[Step]:
        """Copies for all strips: the bias to the unified buffer, the weights to L1."""
        copies = []
        if step.result in self.biases:
            vector = Fetch(1, 1, step.op.filters, vector=True)
            copies.append(fetch(step, vector, None, self.biases[step.result]))
            copies[0].arrays = [step.arrays[_bias(step)]]
        copies.append(fetch(step, Fetch(1, 1, self._elements(step)), None, self.weights[step.result]))
        copies[-1].packed_for = self.leaders[step.result]
        return copies

    def _strip(self, step: Step, i: int) -> Step:
        """The convolution ``step`` on the rows of strip ``i``."""
        ranges, segments = self.ranges, self.segments
        op, out = step.op, ranges[step.result].made[i]
        rows = _under(op, out)
        first = out[0] * op.strides[0] - op.padding[0]
        reach = (op.kernel[0] - 1) * op.dilation[0] + 1
        last = (out[1] - 1) * op.strides[0] - op.padding[0] + reach
        padding = (rows[0] - first, op.padding[1], last - rows[1], op.padding[3])
        operands: list[Value | None] = []
        for n, value in enumerate(step.operands):
            if value is None:
                held = {1: self.weights[step.result], _bias(step): self.biases.get(step.result)}
                operands.append(held.get(n))
            else:
                operands.append(_part(segments[value][i], ranges[value].needed[i], rows if n == 0 else out))
        result, copy, copied = step.result, None, 0
        if result is self.final:
            image = (1, result.shape[1], out[1] - out[0], result.shape[3])
            target = result.part(image, out[0] * _row_bytes(result))
        else:
            target = _part(segments[result][i], ranges[result].needed[i], out)
            if i + 1 < self.count:
                low = ranges[result].needed[i + 1][0]
                copied = max(0, out[1] - low)
                if copied:
                    copy = _part(segments[result][i + 1], ranges[result].needed[i + 1], (low, out[1]))
        return replace(
            step,
            op=replace(op, height=rows[1] - rows[0], padding=padding),
            operands=operands,
            result=target,
            copy=copy,
            copied=copied * result.shape[3],
            leader=self.leaders.get(result),
        )


def _part(segment: Value, has: Rows, rows: Rows) -> Value:
    """View of some rows of a segment that holds the rows ``has``."""
    if has == rows:
        return segment
    image = (1, segment.shape[1], rows[1] - rows[0], segment.shape[3])
    return segment.part(image, (rows[0] - has[0]) * _row_bytes(segment))
