"""Masks and numbers that decide about sizes and are constants: a program says them by symbols all the same.

PyTorch exports ``x[:, self.mask]`` with as many elements as a run finds, and ``self.count.item()`` as a
number that a run reads, also where both are buffers that nothing changes.  Here they are computed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch.load import quiet

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


def with_fixed_values(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with positions in place of constant masks, and with numbers in place of those of constants.

    Itself where it has none.
    """
    asked = [node for node in program.graph.nodes if _decides(torch, node) or _masks(torch, node)]
    if not asked:
        return program
    module = copy.deepcopy(program.graph_module)
    graph = module.graph
    lifted: dict[str, Tensor] = {}
    constants = _Lifted(torch, program, graph, lifted)
    found = _decided(torch, program, graph)
    for node, known in found.items():
        masks = _masks(torch, node)
        if masks:
            indices = []
            for index in node.args[1]:
                indices += map(constants.add, known[index]) if index in masks else [index]
            node.args = (node.args[0], indices, *node.args[2:])
            continue
        new = constants.add(known) if isinstance(known, torch.Tensor) else known
        for user in list(node.users):
            user.args, user.kwargs = _exchanged(torch, (user.args, user.kwargs), node, new)
        graph.erase_node(node)
    if not found:
        return program
    module.recompile()
    fixed = program._update(module, constants.signature(), constants={**program.constants, **lifted})
    with quiet(), torch.no_grad():
        return fixed.run_decompositions({})


class _Lifted:
    """New constants of a program, which stand before what a caller gives.

    Parameters
    ----------
    values : what is filled with them, by name.
    """

    def __init__(
        self, torch: ModuleType, program: ExportedProgram, graph: Graph, values: dict[str, Tensor]
    ) -> None:
        self._torch, self._program, self._graph, self._values = torch, program, graph, values
        kinds = torch.export.graph_signature
        specs = program.graph_signature.input_specs
        own = [i for i, spec in enumerate(specs) if spec.kind is kinds.InputKind.USER_INPUT]
        self._place = own[0] if own else len(specs)
        nodes = graph.find_nodes(op="placeholder")
        self._before = nodes[self._place] if own else next(n for n in graph.nodes if n.op != "placeholder")
        self._taken = {node.name for node in graph.nodes} | set(program.constants) | set(program.state_dict)

    def add(self, value: Tensor) -> Node:
        """The node of a new constant."""
        number = len(self._values)
        while (name := f"fixed_value_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        self._values[name] = value
        with self._graph.inserting_before(self._before):
            node = self._graph.placeholder(name)
        mode = next(
            (n.meta["val"].fake_mode for n in self._graph.nodes if hasattr(n.meta.get("val"), "fake_mode")),
            None,
        )
        node.meta["val"] = mode.from_tensor(value, static_shapes=True) if mode else value
        return node

    def signature(self) -> Any:
        """The program's signature with the new constants."""
        kinds = self._torch.export.graph_signature
        old = self._program.graph_signature
        specs = [
            kinds.InputSpec(kinds.InputKind.CONSTANT_TENSOR, kinds.TensorArgument(name=name), name)
            for name in self._values
        ]
        inputs = list(old.input_specs)
        return kinds.ExportGraphSignature(
            [*inputs[: self._place], *specs, *inputs[self._place :]], list(old.output_specs)
        )


def _decides(torch: ModuleType, node: Node) -> bool:
    """Whether the size of what an operator gives, or the number that it reads, is known by a run alone."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and (
        torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    )


def _masks(torch: ModuleType, node: Node) -> list[Node]:
    """Truth values among the indices of a selection, or of an assignment of more than one value."""
    aten = torch.ops.aten
    if node.target in (aten.index_put.default, aten.index_put_.default):
        shape = node.args[2].meta["val"].shape
        if all(isinstance(extent, int) for extent in shape) and math.prod(shape) == 1:
            return []
    elif node.target != aten.index.Tensor:
        return []
    kinds = (torch.bool, torch.uint8)
    return [i for i in node.args[1] if i is not None and getattr(i.meta.get("val"), "dtype", None) in kinds]


def _exchanged(torch: ModuleType, arguments: Any, node: Node, new: Any) -> Any:
    """Arguments with something else in place of a node."""
    return torch.fx.map_arg(arguments, lambda argument: new if argument is node else argument)


def _decided(torch: ModuleType, program: ExportedProgram, graph: Graph) -> dict[Node, Any]:
    """Results of nodes whose sizes or numbers a run decides, where constants decide them.

    Of a node with masks, the positions of each.  Operators in place count up to the
    node: the program is run in its order, as far as no input reaches.
    """
    wanted: list[Node] = []
    for node in graph.nodes:
        wanted += _masks(torch, node) or ([node] if _decides(torch, node) else [])
    needed = _needed(torch, graph, wanted)
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    values: dict[Node, Any] = {}
    found: dict[Node, Any] = {}
    given = {**program.state_dict, **program.constants}
    changed = {base for node in graph.nodes for one in _written(torch, node) for base in _bases(torch, one)}
    for node in graph.nodes:
        masks = _masks(torch, node)
        if masks and all(mask in values for mask in masks):
            found[node] = {mask: values[mask].nonzero(as_tuple=True) for mask in masks}
        if node not in needed:
            continue
        if node.op == "placeholder":
            value = given.get(names.get(node.name))
            if isinstance(value, torch.Tensor) and node not in changed:
                values[node] = value.detach()
        elif node.op == "call_function" and not _is_random(torch, node):
            if all(source in values for source in node.all_input_nodes):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                with torch.no_grad():
                    values[node] = value = node.target(*args, **kwargs)
                if _decides(torch, node) and not masks:
                    found[node] = value.clone() if isinstance(value, torch.Tensor) else value
            else:
                for written in _written(torch, node):
                    _forget(torch, values, written)
    return found


def _is_random(torch: ModuleType, node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _needed(torch: ModuleType, graph: Graph, wanted: list[Node]) -> set[Node]:
    """Nodes that these are computed from, with those that write to their memory."""
    writers = [(node, list(_written(torch, node))) for node in graph.nodes]
    writers = [(node, written) for node, written in writers if written]
    needed: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += node.all_input_nodes
        for node, written in writers:
            if node not in needed and any(base in needed for one in written for base in _bases(torch, one)):
                waiting.append(node)
    return needed


def _written(torch: ModuleType, node: Node) -> Iterator[Node]:
    """Operands that an operator changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if isinstance(value, torch.fx.Node):
                yield value


def _bases(torch: ModuleType, node: Any) -> Iterator[Node]:
    """A node, and what it may be a view of."""
    while isinstance(node, torch.fx.Node):
        yield node
        node = node.args[0] if node.op == "call_function" and node.args else None


def _forget(torch: ModuleType, values: dict[Node, Any], written: Node) -> None:
    """Drop the values in memory that something unknown is written to."""
    if written not in values:
        return
    place = values[written].untyped_storage().data_ptr()
    for node in list(values):
        if isinstance(values[node], torch.Tensor) and values[node].untyped_storage().data_ptr() == place:
            del values[node]
