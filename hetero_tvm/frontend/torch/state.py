"""Programs that change their buffers or arguments, as pure functions: the state comes in and goes out."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import quiet, require

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node


@dataclass(frozen=True)
class State:
    """A tensor that a program changes.

    Parameters
    ----------
    input : name of the input with its value before.
    output : name of the output with its value after.
    buffer : name of the buffer that it is in the program; None for an argument of the caller.
    """

    input: str
    output: str
    buffer: str | None


def with_state(program: ExportedProgram) -> tuple[ExportedProgram, tuple[State, ...]]:
    """The program with each buffer that it changes as a further input, and its new value as a further output.

    Both stand after the program's own; an argument that is changed in place gets an output only.  A program
    that changes nothing is given back as it is.

    Raises
    ------
    ModelError : PyTorch cannot say the program without changes in place.
    """
    torch = require("torch")
    if not _may_change_state(torch, program):
        return program, ()
    try:
        with quiet(), torch.no_grad():
            pure = _with_buffers(torch, program).run_decompositions({})
    except Exception as error:
        line = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
        raise ModelError(
            f"PyTorch cannot say the program without changes in place. {type(error).__name__}: {line[:300]}"
        ) from error
    signature = pure.graph_signature
    if not signature.buffers_to_mutate and not signature.user_inputs_to_mutate:
        return program, ()
    return _opened(torch, pure)


def _may_change_state(torch: ModuleType, program: ExportedProgram) -> bool:
    """Whether an operator in place may reach an input, a buffer or a constant: not a value of the program.

    PyTorch takes minutes to say a program without changes whose loops assign to rows (gated delta rules).
    """
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        return True
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if not isinstance(node.target, torch._ops.OpOverload) or not schema.is_mutable:
            continue
        written = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        if any(i >= len(node.args) or _owner(torch, node.args[i]) is None for i in written):
            return True
    return False


def _owner(torch: ModuleType, value: Any) -> Node | None:
    """The operator that made the memory of a value, following views; None where that is not known."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    while isinstance(value, torch.fx.Node) and value.op == "call_function":
        if isinstance(value.target, torch._ops.OpOverload):
            results = value.target._schema.returns
            # one that is made of others may hand its operand on, whatever it says (dropout)
            made = not value.target.has_kernel_for_dispatch_key(composite)
            if made and len(results) == 1 and results[0].alias_info is None:
                return value
        value = value.args[0] if value.args else None
    return None


def _with_buffers(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program, whose constants that it changes are buffers.

    Tensors that an object holds which is no module (a cache of keys and values) are exported as constants,
    also those that are buffers of a module beside; PyTorch takes no changes of two names of one tensor.
    """
    kinds = torch.export.graph_signature
    signature = program.graph_signature
    given = [
        (s, program.constants.get(s.target, program.state_dict.get(s.target))) for s in signature.input_specs
    ]
    buffers: dict[Any, str] = {}
    for spec, value in given:
        if spec.kind is kinds.InputKind.BUFFER and value is not None and value.numel():
            buffers.setdefault(_place(value), spec.arg.name)
    module = copy.deepcopy(program.graph_module)
    nodes = {node.name: node for node in module.graph.find_nodes(op="placeholder")}
    changed = _changed(torch, module.graph)
    specs = []
    for spec, value in given:
        if spec.kind is kinds.InputKind.CONSTANT_TENSOR and isinstance(value, torch.Tensor):
            node, same = nodes[spec.arg.name], buffers.get(_place(value))
            if same is not None:
                node.replace_all_uses_with(nodes[same])
                module.graph.erase_node(node)
                continue
            if node in changed:
                spec = kinds.InputSpec(kinds.InputKind.BUFFER, spec.arg, spec.target, persistent=False)
                if value.numel():
                    buffers[_place(value)] = spec.arg.name
        specs.append(spec)
    if specs == list(signature.input_specs):
        return program
    module.recompile()
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=kinds.ExportGraphSignature(specs, signature.output_specs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _place(value: Any) -> Any:
    """Address and layout of a tensor."""
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def _changed(torch: ModuleType, graph: Graph) -> set[Node]:
    """Nodes that operators change in place, and those that they are views of."""
    found = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            while writes and isinstance(value, torch.fx.Node) and value not in found:
                found.add(value)
                value = value.args[0] if value.op == "call_function" and value.args else None
    return found


def _opened(torch: ModuleType, program: ExportedProgram) -> tuple[ExportedProgram, tuple[State, ...]]:
    kinds = torch.export.graph_signature
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    module = copy.deepcopy(program.graph_module)
    graph = module.graph
    placeholders = dict(
        zip(
            (spec.arg.name for spec in signature.input_specs), graph.find_nodes(op="placeholder"), strict=True
        )
    )
    fixed = [
        s for s in signature.input_specs if s.target not in changed or s.kind is kinds.InputKind.USER_INPUT
    ]
    buffers = [s for s in signature.input_specs if s not in fixed]
    names = _unique([s.target for s in buffers], {s.arg.name for s in fixed})
    inputs = dict(zip((s.target for s in buffers), names, strict=True))
    for node in graph.nodes:  # of their names there is one each
        if node.op != "placeholder" and node.name in names:
            node.name = f"{node.name}_of_{node.op}"
    for spec in buffers:
        _to_the_end(graph, placeholders[spec.arg.name], inputs[spec.target])
    input_specs = [
        *fixed,
        *(
            kinds.InputSpec(kinds.InputKind.USER_INPUT, kinds.TensorArgument(name=name), None)
            for name in names
        ),
    ]
    returned = next(iter(graph.find_nodes(op="output")))
    pairs = list(zip(returned.args[0], signature.output_specs, strict=True))
    mutations = (kinds.OutputKind.BUFFER_MUTATION, kinds.OutputKind.USER_INPUT_MUTATION)
    own = [(node, spec) for node, spec in pairs if spec.kind not in mutations]
    after = [(node, spec) for node, spec in pairs if spec.kind in mutations]
    returned.args = (tuple(node for node, _ in (*own, *after)),)
    states = tuple(_state(spec.target, inputs) for _, spec in after)
    output_specs = [
        *(spec for _, spec in own),
        *(
            kinds.OutputSpec(kinds.OutputKind.USER_OUTPUT, kinds.TensorArgument(name=node.name), state.output)
            for (node, _), state in zip(after, states, strict=True)
        ),
    ]
    module.recompile()
    opened = torch.export.ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=kinds.ExportGraphSignature(input_specs, output_specs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=_called(torch, program, names, len(after)),
        example_inputs=None,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    return opened, states


def _called(torch: ModuleType, program: ExportedProgram, names: Sequence[str], results: int) -> list[Any]:
    """Structure of a call: further arguments by name, and a tuple of the own result and further ones."""
    pytree = torch.utils._pytree
    entry, *others = program.module_call_graph
    spec = entry.signature
    args, kwargs = pytree.tree_unflatten([0] * spec.in_spec.num_leaves, spec.in_spec)
    own = pytree.tree_unflatten([0] * spec.out_spec.num_leaves, spec.out_spec)
    parameters = spec.forward_arg_names
    signature = dataclasses.replace(
        spec,
        forward_arg_names=None if parameters is None else [*parameters, *names],
        in_spec=pytree.tree_structure((args, {**kwargs, **dict.fromkeys(names, 0)})),
        out_spec=pytree.tree_structure((own, *[0] * results)),
    )
    return [dataclasses.replace(entry, signature=signature), *others]


def _state(target: str, inputs: Mapping[str, str]) -> State:
    name = inputs.get(target, target)
    return State(name, f"{name}_out", target if target in inputs else None)


def _to_the_end(graph: Graph, node: Node, name: str) -> None:
    """Move a placeholder behind the others, under a new name."""
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        fresh = graph.placeholder(name)
    fresh.meta = node.meta
    node.replace_all_uses_with(fresh)
    graph.erase_node(node)
    fresh.name = name


def _unique(targets: Sequence[Any], taken: set[str]) -> list[str]:
    """Names of inputs for buffers: their paths, as identifiers that nobody else has."""
    names = []
    for target in targets:
        name = re.sub(r"\W", "_", str(target))
        while name in taken:
            name += "_state"
        taken.add(name)
        names.append(name)
    return names
