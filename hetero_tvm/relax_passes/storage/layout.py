"""Images in channel blocks (NCHW[x]c) from convolution to convolution, with the fewest conversions.

Convolutions of the target want blocks (``x`` is its vector length).  Everything else that can work on
blocks goes with its neighbours: each connected region of such operators takes the layout that converts
the fewer bytes, counting its border to convolutions, to the rest of the graph, and to the model's
inputs and results.  A convolution reads plain NCHW directly (a first layer is not converted), and an
image of one pixel is the same in both layouts.  A convolution with plain neighbours only stays plain, and so
do those that blocks slow down by more than conversions cost (``plain_islands.py``).

A convolution's padding becomes zeros around its input, written by whoever makes it: no copy.

Conversions that are left are kernels of their own (:class:`hetero_tvm.ops.pool2d.Relayout`); the report
lists each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, GlobalVar, Var, relax
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report
from hetero_tvm.relax_passes.storage.concatenation import JoinParts
from hetero_tvm.relax_passes.storage.image_nodes import (
    NO_HALO,
    ConcatNode,
    ConvNode,
    Image,
    ImageNode,
    NormNode,
    PoolNode,
    node_of,
)
from hetero_tvm.relax_passes.storage.plain_islands import LayoutCosts, plain_islands
from hetero_tvm.relax_passes.storage.rows_of_blocks import RowsOfBlocks


class BlockImages(GraphPass):
    """Lay images out in blocks of ``block`` channels.

    Parameters
    ----------
    block : channels in a block, the target's vector length.
    serves : whether the target has a kernel for a fused operator (in its blocked form).
    halos : whether a convolution's padding becomes zeros around its input; else the kernel minds the border.
    pays : whether a convolution in its second form, with its images converted for it alone, takes less time
        than in its first, plain form.
    costs : cycles by which convolutions stay plain among blocks; None where none does.
    """

    name = "blocked_images"

    def __init__(
        self,
        block: int,
        serves: Claims,
        halos: bool = True,
        pays: Callable[[Conv2d, Conv2d], bool] = lambda plain, blocked: False,
        costs: LayoutCosts | None = None,
    ):
        self.block, self.serves, self.halos, self.pays, self.costs = block, serves, halos, pays, costs

    def run(self, graph: Graph, report: Report) -> None:
        module = graph.functions()
        nodes = {}
        for var in graph.bindings():
            node = node_of(graph, var, self.block, module)
            if node is not None and self._wanted(node):
                nodes[var] = node
        blocked = self._choose(graph, nodes)
        if blocked:
            _Rewriting(graph, blocked, self.block, self.halos).run()
            if RowsOfBlocks.name not in graph.disabled:
                RowsOfBlocks(self.serves).run(graph, report)
            report.conversions.extend(_conversions(graph))

    def _wanted(self, node: ImageNode) -> bool:
        """Whether the target has a kernel for a node's form on blocks; any has one for those of Relax."""
        y = Layout(self.block)
        if isinstance(node, NormNode):
            return self.serves(node.blocked_op(y, y))
        if not isinstance(node, ConvNode):
            return True
        x = Layout(self.block, node.op.padding if self.halos else NO_HALO)
        return self.serves(node.blocked_op(x, y, y))

    def _choose(self, graph: Graph, nodes: dict[Var, ImageNode]) -> dict[Var, ImageNode]:
        """The nodes that work on blocks."""
        for var in self._islands(graph, nodes):
            nodes.pop(var)
        blocked = {var: node for var, node in nodes.items() if node.gains}
        for region in _regions({var: node for var, node in nodes.items() if not node.gains}):
            inside = {node.var for node in region}
            read = {x for node in region for x in node.images} - inside
            written = {var for var in inside if set(graph.users(var)) - inside}
            as_blocks = sum(self._bytes(x) for x in read if x not in blocked)
            as_plain = sum(self._bytes(x) for x in read if x in blocked)
            for var in written:
                outside = set(graph.users(var)) - inside
                as_blocks += self._bytes(var) * any(user not in blocked for user in outside)
                as_plain += self._bytes(var) * any(user in blocked for user in outside)
            if as_blocks < as_plain:
                blocked.update({node.var: node for node in region})
        return {var: node for var, node in blocked.items() if not self._alone(graph, node, blocked)}

    def _islands(self, graph: Graph, nodes: dict[Var, ImageNode]) -> set[Var]:
        """Convolutions that stay plain whatever their neighbours do."""
        if self.costs is None:
            return set()
        forms = {
            var: (node.op, self._blocked_form(node))
            for var, node in nodes.items()
            if isinstance(node, ConvNode) and not node.op.depthwise and self.serves(node.op)
        }
        return plain_islands(
            graph, nodes, forms, lambda node, n: _stays_plain(node, n, self.block, self.halos), self.costs
        )

    def _blocked_form(self, node: ConvNode) -> Conv2d:
        halo = node.op.padding if self.halos else NO_HALO
        x = Layout() if _stays_plain(node, 0, self.block, self.halos) else Layout(self.block, halo)
        return node.blocked_op(x, Layout(self.block), Layout(self.block))

    def _alone(self, graph: Graph, node: ImageNode, blocked: dict[Var, ImageNode]) -> bool:
        """Whether it is a convolution among plain neighbours, which would be converted for itself only."""
        if not isinstance(node, ConvNode) or not self.serves(node.op):
            return False
        if any(x in blocked for x in (*node.images, *graph.users(node.var))):
            return False
        return not self.pays(node.op, self._blocked_form(node))

    def _bytes(self, var: Var) -> int:
        """Bytes that a conversion moves."""
        shape = shape_of(var)
        return 0 if _same_in_both(shape, self.block) else 4 * int(np.prod(shape))


def _stays_plain(node: ImageNode, index: int, block: int, halos: bool) -> bool:
    """Whether a plain operand is read as it is.  Where a convolution's input is copied anyway, to put zeros
    around it, one with whole blocks of channels is copied to blocks."""
    return node.reads_plain(index) and (not halos or shape_of(node.images[index])[1] < block)


def _same_in_both(image: tuple[int, ...], block: int) -> bool:
    return image[2:] == (1, 1) and image[1] % block == 0


def _regions(nodes: dict[Var, ImageNode]) -> list[list[ImageNode]]:
    """Connected components: nodes that read one another."""
    root = {var: var for var in nodes}

    def find(var: Var) -> Var:
        while root[var] is not var:
            var = root[var]
        return var

    for var, node in nodes.items():
        for x in node.images:
            if x in nodes:
                root[find(x)] = find(var)
    regions: dict[Var, list[ImageNode]] = {}
    for var, node in nodes.items():
        regions.setdefault(find(var), []).append(node)
    return list(regions.values())


def _widest(*halos: tuple[int, ...]) -> tuple[int, ...]:
    """The least halo that holds all of them."""
    return tuple(map(max, *halos))


class _Rewriting:
    """Puts the chosen nodes on blocks; everybody else keeps reading the plain variables."""

    def __init__(self, graph: Graph, blocked: dict[Var, ImageNode], block: int, halos: bool):
        self.graph, self.blocked, self.block, self.with_halos = graph, blocked, block, halos
        self.halos: dict[Var, tuple[int, ...]] = {}
        self.joins = JoinParts.name not in graph.disabled
        if halos:
            self._want_halos()
            if self.joins and self._surround_wholes():
                self._want_halos()
        self.images: dict[Var, Image] = {}
        self.functions: dict[FusedOp, GlobalVar] = {}

    def run(self) -> None:
        for var in self.graph.bindings():
            if var in self.blocked:
                self._rewrite(var, self.blocked[var])

    def _want_halos(self) -> None:
        """Give each image the zeros that its readers want around it."""
        for var in reversed(self.graph.bindings()):
            node = self.blocked.get(var)
            for index, x in enumerate(node.images if node else ()):
                passed = node.passed_halo(self._halo(var)) if self.joins else NO_HALO
                self.halos[x] = _widest(self._halo(x), node.halo(index), passed)

    def _surround_wholes(self) -> bool:
        """Put the zeros around the parts of concatenations around the whole as well, where the parts may be
        written into it then and those who read it read what lies between zeros; whether any was."""
        before = dict(self.halos)
        for var in self.graph.bindings():
            node = self.blocked.get(var)
            if isinstance(node, ConcatNode) and shape_of(var)[0] == 1 and self._read_between_zeros(var):
                self.halos[var] = _widest(self._halo(var), *map(self._halo, node.images))
        return self.halos != before

    def _read_between_zeros(self, var: Var) -> bool:
        """Whether all that reads an image takes any zeros around it without a copy."""
        for user in self.graph.users(var):
            reader = self.blocked.get(user)
            if isinstance(reader, ConcatNode):
                if not self._read_between_zeros(user):
                    return False
            elif reader is not None:
                if not isinstance(reader, ConvNode | PoolNode) or not reader.images[0].same_as(var):
                    return False
        return True

    def _halo(self, var: Var) -> tuple[int, ...]:
        return self.halos.get(var, NO_HALO)

    def _rewrite(self, var: Var, node: ImageNode) -> None:
        graph = self.graph

        def bind(value: Expr) -> Var:
            return graph.insert_before(var, value, var.name + "#part", [var])

        images = [self._operand(node, index, var) for index in range(len(node.images))]
        layout = self._layout(var)
        value = node.emit(images, layout, self._call, bind)
        made = graph.insert_before(var, value, var.name + "#blocked", [var])
        self.images[var] = Image(made, layout)
        graph.replace(var, self._converted(made, shape_of(var), layout, Layout()))

    def _layout(self, var: Var) -> Layout:
        return Layout(self.block, self._halo(var))

    def _operand(self, node: ImageNode, index: int, reader: Var) -> Image:
        x = node.images[index]
        if x in self.images:
            return self.images[x]
        if _stays_plain(node, index, self.block, self.with_halos):
            return Image(x, Layout())
        layout = self._layout(x)
        source = x if isinstance(x, relax.Var) else reader  # a constant has no name
        made = self.graph.insert_before(
            reader, self._converted(x, shape_of(x), Layout(), layout), source.name + "#blocked", [source]
        )
        self.images[x] = Image(made, layout)
        return self.images[x]

    def _converted(self, var: Var, image: tuple[int, ...], x: Layout, y: Layout) -> Expr:
        if _same_in_both(image, self.block) and not any((*x.halo, *y.halo)):
            return relax.op.reshape(var, y.shape(image))
        return self._call(Relayout(*image, str(x), str(y)), [var])

    def _call(self, op: FusedOp, operands: Sequence[Expr]) -> Call:
        if op not in self.functions:
            self.functions[op] = self.graph.add_function(op.workload(), op.label)
        out = relax.TensorType(op.output.shape, op.output.dtype)
        return relax.call_tir(self.functions[op], list(operands), out_ty=out)


def _conversions(graph: Graph) -> list[dict[str, str]]:
    """Conversions that are left, with their reasons; each gets a name of its own."""
    module, found = graph.functions(), []

    def what(var: Expr) -> str:
        if not isinstance(var, relax.Var):
            return "a constant"
        op = contract(module, graph.value(var))
        name = op.kind if op is not None else graph.op_name(var) or "an input"
        return f"{name} at {graph.node(var)}" if name != "an input" else f"input {var.name}"

    for var in graph.bindings():
        op = contract(module, graph.value(var))
        if not isinstance(op, Relayout):
            continue
        operand = graph.value(var).args[1].fields[0]
        if Layout.parse(op.y_layout).blocked and not op.to_rows:
            reason = f"{what(operand)} gives {op.x_layout}"
        else:
            readers = ["the model's result" if u is None else what(u) for u in graph.users(var)]
            reason = f"{', '.join(dict.fromkeys(readers))} takes {op.y_layout}"
        node = graph.node(var)
        found.append({"node": node, "from": op.x_layout, "to": op.y_layout, "reason": reason})
        transposes = op.to_rows or op.from_rows  # a step of the model is in it
        graph.rename(var, f"{node}#{op.y_layout}", graph.sources(var) if transposes else ())
    return found
