"""Convolution on channel blocks (NCHW[x]c): a register tile of pixels x filters, no im2col, no copy.

Loop structure::

    X in plain NCHW (a first layer): copied once into planes with zeros around
    parallel over blocks of rows x groups of filter panels:
        for each panel of NR filters (NR = vectors * lanes):
            for each tile of MR pixels (rows x columns of the output) in the block:
                acc[MR][NR] = bias
                for each block of input channels, for each filter tap:
                    for each channel of the block:                                   (unrolled)
                        acc[p][:] += splat(X[pixel p shifted by the tap, channel]) * W[panel, channel, tap, :]
                epilogue on the registers, stored to Y
            the halo of Y in these rows: zeros

``MR * NR / lanes`` accumulators hide the FMA latency; per channel the tile loads ``vectors`` vectors
and MR scalars.  Every pixel of the tile is at a constant distance from the first, for each tap: no
index arithmetic in the loop, and no alignment to lose, as a vector runs over channels.  Zeros around
the planes come with X's halo (its producer wrote them), so there is no border case.  The last rows
and columns are tiles of their own size, so nothing is computed twice or thrown away.  A 1x1
convolution without halos is one long row.

Convolutions may use Winograd's method instead (see ``conv2d_winograd_kernel.py``), and those of
few filters products of whole channels (``conv2d_few_kernel.py``): the method is one of the decisions.

Weights are packed as [panels, channel blocks, taps, block, NR]: a panel is read front to back and
stays in L2 while the pixels of the block pass over it; a deep one is taken in slices
(``depth_slices.py``).  In a convolution with groups a panel is one
block of filters, or several of one group; its weights cover the channel blocks that its groups read, zero
where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.matmul import BIAS, tensors_of
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.base import DesignSpace, Knob, Packer, Point
from hetero_tvm.schedules.cpu.images.blocked import PixelTile
from hetero_tvm.schedules.cpu.images.conv2d_blocked_kernel import BlockedConvKernel
from hetero_tvm.schedules.cpu.images.conv2d_blocked_shape import BlockedShape
from hetero_tvm.schedules.cpu.images.conv2d_few_kernel import (
    FewFiltersKernel,
    few_cycles,
    fits_few,
    pack_few,
)
from hetero_tvm.schedules.cpu.images.conv2d_winograd_kernel import (
    TileGrid,
    WinogradKernel,
    applies,
    blocks_in_l2,
    blocks_of_tiles,
    most_tiles,
    transformed_blocks,
)
from hetero_tvm.schedules.cpu.images.depth_slices import DepthSlices
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Kernel

DIRECT = "direct"
WINOGRAD = {"winograd2": 2, "winograd4": 4}
"""Method -> outputs of a tile per side; :data:`DIRECT` computes the convolution as it is written."""
FEW = "few"
"""Method of few filters, whose products have channels in their lanes (``conv2d_few_kernel.py``)."""
_BLOCKS_OF_LARGE = (224, 448, 896, 1792)
"""Blocks of images so large that what is transformed of fewer blocks leaves L2."""


class BlockedConv2dSpace(DesignSpace):
    """Knobs: method, register tile (rows, columns, filter vectors), blocks of rows, groups of panels.

    For Winograd's method the register tile holds rows * columns tiles, and blocks are of tiles.
    """

    name = "cpu.conv2d_blocked"
    version = 2

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if type(op) not in (Conv2d, Conv3d):
            return "not a convolution"
        if not op.constant_weight:
            return "the weight is not constant"
        x, y, residual = (Layout.parse(t) for t in (op.x_layout, op.y_layout, op.residual_layout))
        if y.block != machine.lanes:
            return f"the result is {op.y_layout}, not in blocks of {machine.lanes} channels"
        if x.block not in (1, machine.lanes):
            return f"the input is {op.x_layout}, neither plain nor in blocks of {machine.lanes} channels"
        if tensors_of(op.epilogue) and residual.block != machine.lanes:
            return f"the residual is {op.residual_layout}, not in blocks of {machine.lanes} channels"
        if x.blocked and not x.covers(op.padding):
            return f"the input is {op.x_layout}, without the padding {op.padding} around it"
        if op.depthwise and op.groups > 1:
            return "depthwise"
        if op.groups > 1 and type(op) is Conv3d:
            return "groups of a volume's channels"
        if op.groups > 1 and (not x.blocked or BlockedShape(op, machine.lanes).group_blocks is None):
            return (
                f"groups of {op.channels // op.groups} channels and {op.filters // op.groups} filters do "
                f"not fit into blocks of {machine.lanes}"
            )
        if min(*op.out_image, op.channels, *op.kernel) < 1:
            return "an extent is zero"
        return None

    def knobs(self, op: Conv2d, machine: CpuModel) -> tuple[Knob, ...]:
        tile, blocks, groups = tile_knobs(BlockedShape(op, machine.lanes), machine)
        more = tuple(b for b in _BLOCKS_OF_LARGE if applies(op) and b <= blocks_in_l2(op, machine))
        blocks = Knob("blocks", (*blocks.choices, *more))
        return Knob("method", methods_of(op, machine)), tile, blocks, groups

    def default(self, op: Conv2d, machine: CpuModel) -> Point:
        shape = BlockedShape(op, machine.lanes)
        return cheapest(self.knobs(op, machine), lambda point: _cost(shape, point, machine))

    def features(self, op: Conv2d, point: Point, machine: CpuModel) -> list[float]:
        shape, tile = BlockedShape(op, machine.lanes), PixelTile.of(point["tile"])
        ideal = op.flops / 2 / machine.lanes / machine.fma_units / machine.threads
        work = point["blocks"] * point["groups"] * op.batch
        sizes = [math.log2(op.channels), math.log2(op.filters), math.log2(shape.height * shape.width)]
        method = [len(shape.taps), WINOGRAD.get(point["method"], 1)]
        registers = [tile.rows, tile.columns, tile.vectors, tile.pixels * tile.vectors]
        pieces = [point["blocks"], point["groups"], work % machine.threads]
        rests = [shape.width % tile.columns, shape.height % tile.rows]
        weights = math.log2(shape.depth * tile.vectors * machine.lanes * 4 / machine.l1)
        return [*sizes, *method, *registers, *pieces, *rests, weights, ideal / _cost(shape, point, machine)]

    def estimate(self, op: Conv2d, point: Point, machine: CpuModel) -> float:
        return _cost(BlockedShape(op, machine.lanes), point, machine)

    def of_all_sizes(self, ops: Sequence[Conv2d], machine: CpuModel) -> Point | None:
        if len({op.image[2:] for op in ops}) == 1:
            return None
        shapes = [BlockedShape(op, machine.lanes) for op in ops]
        methods = methods_of(ops[0], machine)
        groups = sorted({g for g in (1, 2, machine.threads) if g <= shapes[0].filter_blocks})
        knobs = (
            Knob("method", methods),
            Knob("tile", tuple(tiles_of_any_size(shapes[0], machine))),
            Knob("blocks", (1, 2, 4, 8, 14, 28, 56, 112)),
            Knob("groups", tuple(groups)),
        )

        def cost(shape: BlockedShape, point: Point) -> float:
            size, tile = WINOGRAD.get(point["method"]), PixelTile.of(point["tile"])
            if size is not None:
                most = most_tiles(shape.op, size, tile.registers, machine)
                count = TileGrid(shape.op, size).count
                point = {**point, "blocks": blocks_of_tiles(count, point["blocks"], tile.pixels, most)}
            return _cost(shape, point, machine)

        return cheapest(knobs, lambda point: sum(math.log(cost(shape, point)) for shape in shapes))

    def pack(self, op: Conv2d, point: Point, machine: CpuModel) -> dict[int, Packer]:
        shape, vectors = BlockedShape(op, machine.lanes), PixelTile.of(point["tile"]).vectors
        size = WINOGRAD.get(point["method"])
        packers: dict[int, Packer] = {1: lambda w: shape.pack_weight(w, vectors)}
        if point["method"] == FEW:
            packers[1] = lambda w: pack_few(op, w, machine.lanes)
        if size is not None:
            packers[1] = lambda w: TileGrid(op, size).pack_weight(op, w, machine.lanes, vectors)
        return packers | bias_packers(shape, vectors)

    def emit(self, op: Conv2d, point: Point, machine: CpuModel) -> PrimFunc:
        return kernel_of(op, point, machine).emit()


def kernel_of(
    op: Conv2d, point: Point, machine: CpuModel, k: Kernel | None = None, room: Conv2d | None = None
) -> BlockedConvKernel | WinogradKernel:
    """Emitter of a convolution by the method of a point; ``k`` and ``room`` are those of the kernels."""
    size, tile = WINOGRAD.get(point["method"]), PixelTile.of(point["tile"])
    blocks, groups = point["blocks"], point["groups"]
    if point["method"] == FEW:
        return FewFiltersKernel(op, tile, blocks, machine, k, room)
    if size is None:
        return BlockedConvKernel(op, tile, blocks, groups, machine, k, room)
    return WinogradKernel(op, size, tile.registers, blocks, groups, machine, k, room)


def methods_of(op: Conv2d, machine: CpuModel) -> tuple[str, ...]:
    """The methods that compute an operator."""
    few = (FEW,) if fits_few(op, machine) else ()
    return (DIRECT, *(WINOGRAD if applies(op) else ()), *few)


def tile_knobs(shape: BlockedShape, machine: CpuModel) -> tuple[Knob, ...]:
    """Register tile, blocks of rows, groups of panels."""
    groups = sorted({g for g in (1, 2, 4, 8, machine.threads) if g <= shape.filter_blocks})
    blocks = sorted({b for b in (1, 2, 4, 7, 8, 14, 28, 56, 112, machine.threads) if b <= shape.units})
    return (
        Knob("tile", tuple(register_tiles(shape, machine))),
        Knob("blocks", tuple(blocks)),
        Knob("groups", tuple(groups)),
    )


def cheapest(knobs: Sequence[Knob], cost: Callable[[Point], float]) -> Point:
    """The point of least cost among all combinations of choices."""
    names = [knob.name for knob in knobs]
    points = [dict(zip(names, choice, strict=True)) for choice in product(*(knob.choices for knob in knobs))]
    return min(points, key=cost)


def bias_packers(shape: BlockedShape, vectors: int) -> dict[int, Packer]:
    """Layout of the bias, where there is one."""
    return {
        index: lambda bias: shape.pack_bias(bias, vectors)
        for index, operand in enumerate(shape.op.inputs)
        if operand.name == BIAS
    }


def register_tiles(shape: BlockedShape, machine: CpuModel) -> Iterator[tuple[int, int, int]]:
    """Register tiles (rows, columns, vectors) that fit, with columns that divide a row evenly."""
    seen = set()
    for vectors in range(1, min(4, shape.filter_blocks) + 1):
        if vectors > 1 and not shape.shares_blocks(vectors):
            continue
        limit = (machine.registers - 1 - vectors) // vectors  # one register for the splat
        pieces = -(-shape.width // limit)
        for parts in range(pieces, pieces + 3):
            columns = -(-shape.width // parts)
            rows = min(shape.height, limit // columns) if parts == 1 else 1
            for height in {rows, 1}:
                tile = (height, columns, vectors)
                if columns >= 1 and tile not in seen:
                    seen.add(tile)
                    yield tile


def tiles_of_any_size(shape: BlockedShape, machine: CpuModel) -> Iterator[tuple[int, int, int]]:
    """Register tiles of one row for images of any width, whose last pixels are taken in powers of two."""
    for vectors in range(1, min(4, shape.filter_blocks) + 1):
        if vectors == 1 or shape.shares_blocks(vectors):
            limit = (machine.registers - 1 - vectors) // vectors
            for columns in sorted({max(1, limit // step * step) for step in (1, 2, 4)}):
                yield 1, columns, vectors


_MEMORY = 8.0
"""Bytes per cycle that weights come from memory with, all threads together."""


_CROWDED_L2 = 0.4
"""Share of L2's rate that is left beside transforms, or an image on its way through."""


_ASKED_FOR = 0.5
"""Rate of lines that are asked for one by one, by that of streams: L1 waits for few at a time."""

LINE, LINE_CYCLES = 64, 2.0
"""Bytes of a cache line, and cycles that loads wait for a line of pixels from L2: such lines are apart from
one another, so that none is fetched ahead (measured with vectors of 8, where it shows)."""


def _cost(shape: BlockedShape, point: Point, machine: CpuModel) -> float:
    """Cycles of one call."""
    size = WINOGRAD.get(point["method"])
    if point["method"] == FEW:
        return _few_cost(shape, point, machine)
    if size is None:
        return _direct_cost(shape, point, machine)
    return _winograd_cost(shape, size, point, machine)


def _few_cost(shape: BlockedShape, point: Point, machine: CpuModel) -> float:
    """Cycles of products and folding on the busiest thread."""
    blocks, batch = min(point["blocks"], shape.units), shape.op.batch
    share = busiest_share(1, 1, shape.units, blocks, batch, machine)
    tile = PixelTile.of(point["tile"])
    # Weights are loaded once for all pixels of a tile: narrow ones wait for them.  What the method makes no
    # use of (rows, vectors and groups of filters) is not to be chosen among equals.
    unused = (tile.rows > 1) + (tile.vectors > 1) + (point["groups"] > 1)
    cycles = few_cycles(shape, machine) * batch * share * (1.0 + 2.0 / tile.columns + unused)
    return cycles + image_cycles(shape, 1, blocks, machine) + 300.0 * blocks * batch / machine.threads


def _winograd_cost(shape: BlockedShape, size: int, point: Point, machine: CpuModel) -> float:
    """Cycles of the transforms, the products and the traffic of the transformed filters."""
    op, lanes = shape.op, machine.lanes
    chosen, tiles = PixelTile.of(point["tile"]), TileGrid(op, size)
    vectors, most = chosen.vectors, chosen.pixels
    panels = -(-shape.filter_blocks // vectors)
    blocks = min(point["blocks"], tiles.count)
    block = -(-tiles.count // blocks)
    blocks, pieces = -(-tiles.count // block), -(-block // most)
    height = -(-block // pieces)
    lines = height / LINE * 4  # per channel
    per_k = RegisterTile(height, vectors).step_cycles(machine, machine.load_cycles, LINE_CYCLES * lines)
    per_k *= machine.waits_of_rows(height)
    weights = tiles.points * tiles.depth * vectors * lanes * 4  # of one panel
    from_l2 = 0.25 * vectors * lanes / 16
    piece = (per_k + from_l2) * tiles.depth + 20 + 2.0 * height * vectors
    steps = _TRANSFORM[sum(axis.form is not None for axis in tiles.axes)]
    finish, begins = (each * tiles.points * machine.transform_cycles for each in steps)
    groups = min(point["groups"], panels)
    share = busiest_share(panels, groups, blocks, blocks, op.batch, machine)
    products = panels * blocks * op.batch * (pieces * tiles.points * piece + block * vectors * finish)
    # Windows of slices share what all threads have transformed.
    own = transformed_blocks(shape)
    times = own * op.batch if groups == 1 else math.prod(shape.x.shape(op.image)[:2])
    begin = times * tiles.parts * tiles.count * begins
    transformed = tiles.points * tiles.parts * own * lanes * 4  # of one tile
    compute = products * share + begin * (share if groups == 1 else 1 / machine.threads) + 600.0
    sums = 4 * block * tiles.points * vectors * lanes
    spilled = max(0, sums - machine.l2 / 2) / 8 * panels * blocks
    # What is transformed is written once and read for each panel: from L2 while it fits beside the sums.
    kept = transformed * (block if groups == 1 else tiles.count * op.batch) + sums
    beyond = max(0.0, 1.0 - machine.kept_l2 / kept)
    moved = (
        transformed * tiles.count * op.batch * (1 + panels) * (share if groups == 1 else 1 / machine.threads)
    )
    spilled += beyond * moved / machine.far_bytes
    # Every further block of a thread takes the panel through L2 again, beside what it transforms.
    passes = max(0.0, panels * blocks / machine.threads - panels / groups)
    again = passes * weights / (_CROWDED_L2 * machine.l2_bytes)
    fetched = panels * weights / _MEMORY
    rereads = 0 if weights <= machine.l2 / 2 else blocks - 1
    far = machine.far_bytes * machine.threads if panels * weights <= machine.l3 / 2 else _MEMORY
    waits = image_cycles(shape, groups, blocks, machine)
    return max(compute, fetched + rereads * panels * weights / far) + 0.3 * fetched + spilled + again + waits


_TRANSFORM = {1: (3.5, 4.0), 2: (6.0, 7.0)}
"""Cycles per point that transforms along one axis, or both, take: of sums, of pixels."""

_EXPOSED_COPY = 0.5
"""Least share of the time of reads that shows in planes of single channels, of which few products are made:
who has half of the rows reads half of them (3 x 224 x 224, 32 filters: 0.13 ms against 0.15)."""


def busiest_share(panels: int, groups: int, units: int, blocks: int, batch: int, machine: CpuModel) -> float:
    """Part of the work that the busiest thread does: whole panels, whole tiles, whole items."""
    largest = -(-panels // groups) / panels * (-(-units // blocks) / units) / batch
    items = blocks * groups * batch
    return min(1.0, largest * -(-items // machine.threads)) * machine.waiting(items)


def image_cycles(shape: BlockedShape, groups: int, blocks: int, machine: CpuModel) -> float:
    """Cycles that a thread waits for its part of the images, which little is asked for early enough."""
    pieces = blocks * shape.op.batch
    # Who takes over a group of panels reads the image that another thread has, too.
    taken = machine.waiting(1) if groups > 1 else 1.0
    read = shape.read_bytes * shape.op.batch * -(-pieces // machine.threads) / pieces
    exposed = machine.exposed_reads if shape.x.blocked else max(machine.exposed_reads, _EXPOSED_COPY)
    shared = machine.shared_lines(shape.read_bytes * shape.op.batch, pieces)
    return taken * exposed * read / machine.far_bytes + shared


def with_weights(
    compute: float, weight_bytes: float, groups: int, pieces: int, machine: CpuModel, again: float = 0.0
) -> float:
    """Cycles of ``compute`` of them and of the weights' way from beyond L2, which are fetched ahead, when
    ``pieces`` of the images pass over ``groups`` of panels each; ``again`` is what they take later on."""
    part = min(1.0, -(-pieces * groups // machine.threads) / groups)
    return machine.beside_fetches(compute, weight_bytes * part / (_ASKED_FOR * machine.far_bytes) + again)


def share_inside(op: Conv2d) -> float:
    """Share of a dilated filter's taps that read the image, and are multiplied."""
    share = 1.0
    extents = ((op.height, op.out_height), (op.width, op.out_width))
    for axis, (extent, out) in enumerate(extents):
        if op.dilation[axis] > 1:
            places = [
                y * op.strides[axis] + tap * op.dilation[axis] - op.padding[axis]
                for y in range(out)
                for tap in range(op.kernel[axis])
            ]
            share *= sum(0 <= place < extent for place in places) / len(places)
    return share


def plane_cycles(shape: BlockedShape, chosen: PixelTile, tile: Callable[[int, int], float]) -> float:
    """Cycles of all tiles of an image and a panel, of which one of ``height`` x ``width`` takes ``tile``."""
    rows, rest_rows = divmod(shape.height, chosen.rows)
    columns, rest_columns = divmod(shape.width, chosen.columns)
    full = rows * columns * tile(chosen.rows, chosen.columns)
    if rest_rows:
        full += columns * tile(rest_rows, chosen.columns)
    if rest_columns:
        full += rows * tile(chosen.rows, rest_columns)
        if rest_rows:
            full += tile(rest_rows, rest_columns)
    return full


def _direct_cost(shape: BlockedShape, point: Point, machine: CpuModel) -> float:
    """Cycles on the busiest thread: issue of the tiles, waste, balance, cache traffic."""
    chosen, groups = PixelTile.of(point["tile"]), point["groups"]
    rows, columns, vectors = chosen.rows, chosen.columns, chosen.vectors
    op, lanes = shape.op, machine.lanes
    panels = -(-shape.filter_blocks // vectors)

    depth = shape.depth * share_inside(op)
    units = shape.tile_units(rows, columns)
    blocks, groups = min(point["blocks"], units), min(groups, panels)
    block_bytes = shape.read_bytes / blocks
    # A line is fetched once for all taps and for all channels in it.
    lines = min(LINE, 4 * shape.x.block * op.strides[1]) / LINE / shape.x.block / len(shape.taps)

    slices = DepthSlices(shape, vectors, shape.block_tiles(rows, columns, blocks), machine)
    passing = 4 * vectors * lanes / (_CROWDED_L2 * machine.l2_bytes)

    def tile(height: int, width: int) -> float:
        pixels = height * width
        fetch = LINE_CYCLES * lines * pixels if block_bytes > machine.l1 / 2 else 0.0
        per_k = RegisterTile(pixels, vectors).step_cycles(machine, machine.load_cycles, fetch)
        per_k += machine.exposed_lines * fetch
        if slices.count > 1:
            per_k *= machine.waits_of_rows(pixels)
        elif slices.deep:  # beside an image on its way through, at what is left of L2's rate
            per_k = max(per_k, passing)
        # Weights come from L2, once per tile, when the panel is too large for L1.
        elif shape.depth * vectors * lanes * 4 > machine.l1 / 2:
            per_k += 0.15 * vectors * lanes / 16
        return per_k * depth + 30 + 2.5 * pixels * vectors

    work = blocks * groups * op.batch
    share = busiest_share(panels, groups, units, blocks, op.batch, machine)
    weights_bytes = shape.depth * panels * vectors * lanes * 4
    # Each panel passes over the block's input, each block over the group's weights.
    kept = block_bytes + weights_bytes / panels
    beyond = max(0.0, 1.0 - machine.kept_l2 / kept)
    reread = beyond * block_bytes * blocks * (panels - 1) / 12
    # A thread's pieces lie side by side, groups first: who has several blocks comes to all groups each time.
    passed = weights_bytes / (groups if blocks * op.batch == 1 else 1)
    leaves = passed > machine.kept_l2 * machine.kept_weights
    again = weights_bytes * (blocks - 1)
    if machine.rereads_beside:
        again *= leaves
    else:
        reread, again = reread + again / (12 if leaves else machine.l2_passes), 0.0
    total = plane_cycles(shape, chosen, tile) * panels * op.batch + reread * op.batch
    again *= op.batch * share / machine.far_bytes
    compute = with_weights(total * share, weights_bytes, groups, blocks * op.batch, machine, again)
    images = image_cycles(shape, groups, blocks, machine)
    return compute + images + 300.0 * work / machine.threads
