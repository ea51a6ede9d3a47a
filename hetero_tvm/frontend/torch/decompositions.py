"""PyTorch operators in terms of others, where its exporter has no translation or a wrong one."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_tvm.frontend.torch import antialias, doubles, lists
from hetero_tvm.frontend.torch.fixed_values import with_fixed_values
from hetero_tvm.frontend.torch.flex import with_plain_attention
from hetero_tvm.frontend.torch.load import quiet, require
from hetero_tvm.frontend.torch.masked import with_choices
from hetero_tvm.frontend.torch.operators import (
    attention,
    bags,
    complexes,
    convolution,
    counting,
    divisions,
    elements,
    encoders,
    factors,
    groups,
    indexing,
    losses,
    matrices,
    moments,
    pooling,
    quantizers,
    recurrence,
    scatters,
    signals,
    special,
)
from hetero_tvm.frontend.torch.registry import registry

if TYPE_CHECKING:
    from types import ModuleType

    from torch.export import ExportedProgram
    from torch.fx import Node


_Table: TypeAlias = Mapping[Any, Callable[..., Any]]
"""Functions of tensors by the operator that they compute."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Functions of tensors that compute the same, by operator; also those of packages that are imported."""
    torch = require("torch")
    table = _of_pytorch() | groups.decompositions(torch) | quantizers.decompositions(torch)
    if hasattr(torch.ops.prims, "fma"):  # Inductor's, which Dynamo writes for some of torch's functions
        table[torch.ops.prims.fma.default] = lambda x, y, z: x * y + z
    return table


@functools.lru_cache(maxsize=1)
def _of_pytorch() -> dict[Any, Callable[..., Any]]:
    torch = require("torch")
    table: dict[Any, Callable[..., Any]] = {}
    parts = (
        antialias, attention, bags, convolution, counting, divisions, doubles, elements, encoders, factors,
        indexing, lists, losses, matrices, moments, pooling, recurrence, scatters, signals, special,
    )  # fmt: skip
    for part in parts:
        table |= part.decompositions(torch)
    return table


def with_others(ours: _Table, others: _Table) -> dict[Any, Callable[..., Any]]:
    """Decompositions of ours, then others: of operators without ours, and of calls that ours leave."""

    def either(operator: Any, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            return others[operator](*args, **kwargs) if found is NotImplemented else found

        return call

    return {**others, **ours, **{o: either(o, function) for o, function in ours.items() if o in others}}


def decomposed(program: ExportedProgram, others: _Table | None = None) -> ExportedProgram:
    """The program without the operators that are decomposed here; itself where it has none.

    With ``others`` these are decomposed too, as a rule in the same pass: each pass traces the whole program
    anew, which takes longer than its translation.
    """
    torch = require("torch")
    program = with_choices(torch, with_fixed_values(torch, program))
    program = with_plain_attention(torch, _without_assertions(torch, program))
    program = _without_numbers(torch, _with_scans(torch, program))
    program = _with_types(torch, _with_indices(torch, _with_empty_statistics(torch, program)))
    table: _Table = decompositions()
    is_asked = _asks(torch, table)
    nodes = _calls(torch, program)
    composites = _composites(torch, nodes, table, is_asked)
    in_pairs = _is_complex(program)
    if in_pairs:
        table = {**complexes.decompositions(torch, program), **table}
        is_asked = _asks(torch, table)
    ours = {**composites, **table} if composites or any(map(is_asked, nodes)) else {}
    with quiet(), torch.no_grad():
        if ours and (in_pairs or others is None):  # others would take complex numbers for real ones
            program, ours = program.run_decompositions(ours), {}
        if others is None:
            return program
        # As the exporter has it: open sizes are taken for other than 0 and 1.
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):
            return program.run_decompositions(with_others(ours, others))


def _without_assertions(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program without assertions about numbers that are read from tensors for them alone.

    PyTorch cannot decompose some of them (that as many tokens stand for images as there are features), and
    they are in no translation.
    """
    read = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
    asserted = torch.ops.aten._assert_scalar.default
    if not any(node.target in read for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.find_nodes(op="call_function", target=asserted):
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    if any(node.target in read for node in module.graph.nodes):
        return program
    module.recompile()
    return program._update(module, program.graph_signature)


def _with_scans(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with a scan without states for each ``map`` over rows of tensors; itself where it has none.

    PyTorch's exporter translates scans, whose functions take what a map's do: rows, then what all share.
    """
    maps = getattr(torch.ops.higher_order, "map_impl", None)
    if maps is None or not any(node.target is maps for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.find_nodes(op="call_function", target=maps):
        function, rows, shared = node.args
        node.target, node.args = torch.ops.higher_order.scan, (function, [], rows, tuple(shared))
    module.recompile()
    return program._update(module, program.graph_signature)


def _without_numbers(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program without what it returns beside tensors and was fixed by the export: numbers, flags, text.

    PyTorch's exporter leaves out None alone.
    """
    kinds = torch.export.graph_signature
    fixed, specs = kinds.ConstantArgument, program.graph_signature.output_specs
    if not any(isinstance(spec.arg, fixed) and spec.arg.value is not None for spec in specs):
        return program
    module = copy.deepcopy(program.graph_module)
    end = module.graph.output_node()
    pairs = zip(end.args[0], specs, strict=True)
    end.args = (tuple(None if isinstance(spec.arg, fixed) else value for value, spec in pairs),)
    module.recompile()
    outputs = [
        kinds.OutputSpec(spec.kind, fixed(spec.arg.name, None), spec.target)
        if isinstance(spec.arg, fixed)
        else spec
        for spec in specs
    ]
    return program._update(module, kinds.ExportGraphSignature(program.graph_signature.input_specs, outputs))


def _with_indices(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with ``x[mask]`` for ``masked_select``, of which PyTorch loses the number of results."""
    aten = torch.ops.aten
    if not any(node.target == aten.masked_select.default for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.find_nodes(op="call_function", target=aten.masked_select.default):
        x, mask = node.args
        if x.meta["val"].shape != mask.meta["val"].shape:
            with module.graph.inserting_before(node):
                pair = module.graph.call_function(aten.broadcast_tensors.default, ([x, mask],))
                pair.meta["val"] = aten.broadcast_tensors.default([x.meta["val"], mask.meta["val"]])
                x, mask = (module.graph.call_function(operator.getitem, (pair, n)) for n in range(2))
                for n, one in enumerate((x, mask)):
                    one.meta["val"] = pair.meta["val"][n]
        node.target, node.args = aten.index.Tensor, (x, [mask])
    module.recompile()
    return program._update(module, program.graph_signature)


def _with_empty_statistics(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with the statistics of no batch, which a batch norm that infers gives a gradient, as empty.

    So they are on a CPU; the translation of the operator gives those that it was called with.
    """
    aten = torch.ops.aten
    infers = aten._native_batch_norm_legit_no_training.default

    def is_asked(node: Node) -> bool:
        return node.target is operator.getitem and node.args[0].target is infers and node.args[1] > 0

    if not any(map(is_asked, program.graph.nodes)):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in filter(is_asked, module.graph.nodes):
        node.target, node.args = aten.full.default, ([0], 0.0)
        node.kwargs = {"dtype": node.meta["val"].dtype}
    module.recompile()
    return program._update(module, program.graph_signature)


def _with_types(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program as its types mean it: PyTorch's exporter looks at operators alone.

    New tensors say their type, where it was a default other than float32; sums and products of truth values
    are Or and And.
    """
    aten = torch.ops.aten
    logical = {aten.add.Tensor: aten.logical_or.default, aten.mul.Tensor: aten.logical_and.default}

    def is_truth(node: Node) -> bool:
        value = node.meta.get("val")
        tensors = len(node.all_input_nodes) == len(set(node.args)) and not node.kwargs
        return node.target in logical and tensors and getattr(value, "dtype", None) == torch.bool

    if not any(is_truth(node) or _is_untyped(torch, node) for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.nodes:
        if is_truth(node):
            node.target = logical[node.target]
        elif _is_untyped(torch, node):
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
    module.recompile()
    return program._update(module, program.graph_signature)


def _is_untyped(torch: ModuleType, node: Node) -> bool:
    """Whether a node makes a tensor out of numbers alone, of a floating type that it does not say."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.kwargs.get("dtype") is not None:
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == torch.float32:
        return False
    given = [source.meta.get("val") for source in node.all_input_nodes]
    takes_type = any(argument.name == "dtype" for argument in node.target._schema.arguments)
    return takes_type and not any(isinstance(source, torch.Tensor) for source in given)


def _calls(torch: ModuleType, program: ExportedProgram) -> list[Node]:
    """Nodes that call operators, those of inner graphs too."""
    return [
        node
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


def _composites(
    torch: ModuleType,
    nodes: Iterable[Node],
    table: Container[Any],
    is_asked: Callable[[Node], bool],
) -> dict[Any, Callable[..., Any]]:
    """Composite operators without translation that are made of ours (``slogdet``), as what they are made of.

    Programs keep them whole, and PyTorch's exporter would take them apart where ours are not asked.
    """
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    known: dict[Any, bool] = {}
    for node in nodes:
        operator = node.target
        if (
            operator not in known
            and operator not in table
            and operator.has_kernel_for_dispatch_key(composite)
            and not registry().is_registered(operator)
        ):
            inside = traced_alone(node, functools.partial(operator._op_dk, composite))
            known[operator] = any(map(is_asked, inside or ()))
    return {o: functools.partial(o._op_dk, composite) for o, ours in known.items() if ours}


def traced_alone(
    node: Node, function: Callable[..., Any], table: Mapping[Any, Callable[..., Any]] | None = None
) -> list[Node] | None:
    """Calls of operators in a function of a node's arguments, decomposed by ``table``.

    None where it cannot be traced by what the arguments' ``meta["val"]`` say.
    """
    torch = require("torch")
    tree = torch.utils._pytree
    leaves, structure = tree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]

    def call(*tensors: Any) -> Any:
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = tree.tree_unflatten([given.get(i, v) for i, v in enumerate(values)], structure)
        return function(*args, **kwargs)

    trace = torch.fx.experimental.proxy_tensor.make_fx(call, decomposition_table=table, tracing_mode="fake")
    try:
        with quiet(), torch.no_grad():
            traced = trace(*(torch.empty(values[i].shape, dtype=values[i].dtype) for i in places))
    except Exception:  # whatever its kernel or its decomposition raises
        return None
    return [n for n in traced.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def _asks(torch: ModuleType, table: dict[Any, Callable[..., Any]]) -> Callable[[Node], bool]:
    """Test of a call of an operator: whether a function of the table replaces it, with its arguments."""
    parts = (antialias, doubles, elements, indexing, moments, pooling)
    conditions = {_base(o): test for part in parts for o, test in part.in_part(torch).items()}
    bases = {_base(operator) for operator in table}
    # What is assigned to a diagonal becomes an operator of ours while the program is decomposed.
    bases.add(_base(torch.ops.aten.diagonal.default))

    def is_asked(node: Node) -> bool:
        base = _base(node.target)
        return base in bases and (base not in conditions or conditions[base](node))

    return is_asked


def _is_complex(program: ExportedProgram) -> bool:
    """Whether a value of the program is a tensor of complex numbers."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(hasattr(value, "dtype") and value.dtype.is_complex for value in values)


def _base(operator: Any) -> tuple[str, str]:
    """Name and overload of an operator, the same for its form in place."""
    return operator._schema.name.rstrip("_"), operator._overloadname
