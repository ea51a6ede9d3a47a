"""Graphs through AOTAutograd: without mutation, with gradients where they are wanted, then compiled."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils.checkpoint import CheckpointPolicy

from hetero_tvm.errors import HeteroTVMError, ModelError, last_line
from hetero_tvm.torch.compiling import compile_graph
from hetero_tvm.torch.examine import examine
from hetero_tvm.torch.options import Options
from hetero_tvm.torch.partitioning import compile_parts, in_memory_as_traced
from hetero_tvm.torch.refusing import refused
from hetero_tvm.torch.rewrites.copies import copied
from hetero_tvm.torch.rewrites.numbers import OPENED
from hetero_tvm.torch.sharing import unless_shared
from hetero_tvm.torch.specializing import Compiled
from hetero_tvm.torch.transforms import traced_alone


def functionalized(
    gm: torch.fx.GraphModule, arguments: Sequence[Any], frozen: Mapping[int, torch.Tensor], options: Options
) -> Compiled:
    """Compile a graph that needs no gradients and changes its arguments, or returns views of them.

    AOTAutograd makes it a pure one and applies the changes to the arguments afterwards.

    Parameters
    ----------
    arguments : tensors like those that it will get.
    frozen : arguments whose values become part of the library.

    Raises
    ------
    HeteroTVMError : with ``refused="raise"``, the reasons why it cannot be compiled.
    """

    def compile_(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # Arguments keep their order, unless several share memory and become one.
        same = len(inputs) == len(arguments) and all(_alike(inputs[i], t) for i, t in frozen.items())
        return _boxed(_compiled(traced, inputs, frozen if same else {}, options))

    compilers = dict.fromkeys(("fw_compiler", "bw_compiler", "inference_compiler"), compile_)
    call = _aot(gm, list(arguments), options, **compilers)
    return lambda given: call(*given)


def trained(gm: torch.fx.GraphModule, arguments: Sequence[Any], options: Options) -> Compiled:
    """Compile a graph whose results need gradients: a forward and a backward library.

    Parameters
    ----------
    arguments : tensors like those that it will get; parameters are read at every call.

    Raises
    ------
    HeteroTVMError : with ``refused="raise"``, the reasons why a part cannot be compiled.
    """

    # How many the graph has: behind them the forward one gives what the backward one takes.
    outputs: list[int] = []

    def forward(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(_compiled(traced, inputs, {}, options, ordered=outputs[-1] if outputs else None))

    def divide(joint: torch.fx.GraphModule, inputs: Any, **given: Any) -> Any:
        outputs.append(given["num_fwd_outputs"])
        return _partition(options, joint, inputs, **given)

    def backward(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made: list[Compiled] = []

        def run(given: Sequence[Any]) -> Sequence[Any]:
            if not made:  # at the first backward call: many graphs with gradients never see one
                with traced_alone():
                    if not made:  # by another thread meanwhile
                        made.append(_compiled(traced, inputs, {}, options, given, ordered=0))
            return made[0](given)

        # Autograd calls it where Dynamo may be looking at every frame: that of a compiled training step.
        call = torch.compiler.disable(_boxed(run))
        call._boxed_call = True
        return call

    call = _aot(
        gm,
        list(arguments),
        options,
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        partition_fn=divide,
    )
    return lambda given: call(*given)


def _aot(gm: torch.fx.GraphModule, arguments: list[Any], options: Options, **compilers: Any) -> Compiled:
    compilers["decompositions"] = _decompositions()
    try:
        with _recurrences_in_steps():
            if not _has_open_values(gm):
                return aot_module_simplified(gm, arguments, **compilers)
            # Dynamo's context knows what is open, and would open it again in this variant.
            with unset_fake_temporarily(), torch._guards.tracing(None):
                mode = FakeTensorMode(allow_non_fake_inputs=True)
                call = aot_module_simplified(gm, [_fixed(mode, value) for value in arguments], **compilers)
                return unless_shared(call, gm, _changed(gm, arguments))
    except HeteroTVMError:
        raise
    except RestartAnalysis:  # Dynamo traces again, with a number fixed that it left open
        raise
    except Exception as error:  # AOTAutograd raises many kinds
        reason = ModelError(f"AOTAutograd cannot trace the graph. {type(error).__name__}: {last_line(error)}")
        eager = refused(gm, reason, options)
        return lambda *given: eager(given)


@contextlib.contextmanager
def _recurrences_in_steps() -> Iterator[None]:
    """Trace an LSTM as its steps: oneDNN's one operator for it gives gradients in its own terms only."""
    was = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was)


@functools.lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Gradients that PyTorch counts among compound operators (exports keep those whole), and mixed types."""
    aten = torch.ops.aten
    mixed = (
        aten.native_layer_norm.default,
        aten.native_layer_norm_backward.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten._native_batch_norm_legit_functional.default,
        aten.native_batch_norm_backward.default,
    )
    found = torch._decomp.get_decompositions([aten.silu_backward, aten.mish_backward])
    return {**found, **{operator: _in_float32(operator) for operator in mixed}}


def _in_float32(operator: Any) -> Callable[..., Any]:
    """A normalization of 16-bit numbers with parameters of 32 bits, computed as by PyTorch's kernel.

    Traced as it is, its statistics have another type than those that the kernel gives.
    """

    def run(first: torch.Tensor, *others: Any) -> Any:
        given = (first, *others)
        types = {value.dtype for value in given if isinstance(value, torch.Tensor)}
        if torch.float32 not in types or len(types) == 1:
            return NotImplemented
        wide = [value.float() if isinstance(value, torch.Tensor) else value for value in given]
        result, *facts = operator(*wide)
        return (None if result is None else result.to(first.dtype), *facts)

    return run


def _changed(gm: torch.fx.GraphModule, arguments: Sequence[Any]) -> tuple[int, ...]:
    """Numbers of the arguments that a graph changes; all, where that cannot be told."""
    try:
        return examine(gm, [_like(value) for value in arguments]).changed
    except HeteroTVMError:
        return tuple(range(len(arguments)))


def _has_open_values(gm: torch.fx.GraphModule) -> bool:
    """Whether Dynamo made the graph for arguments of several sizes, or for several numbers."""
    for node in gm.graph.find_nodes(op="placeholder"):
        if OPENED in node.meta:
            return True
        value = node.meta.get("example_value", node.meta.get("val"))
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return True
    return False


def _fixed(mode: FakeTensorMode, value: Any) -> Any:
    """A tensor without data like an argument, of a mode that has no open sizes."""
    if not isinstance(value, torch.Tensor):
        return value
    device = "cpu" if value.device.type == "meta" else value.device
    with mode:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return made.requires_grad_(value.requires_grad)


def _compiled(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    bound: Mapping[int, Any],
    options: Options,
    given: Sequence[Any] | None = None,
    ordered: int | None = None,
) -> Compiled:
    """A graph that AOTAutograd has made, compiled as a whole, or what can be of it.

    ``given`` : arguments of a call; ``ordered`` : number of first outputs that lie in memory as traced.
    """
    with unset_fake_temporarily(), torch._guards.tracing(None):
        bound = {**bound, **dict.fromkeys(_drop_checks(gm), torch.empty(0))}
        _reshape(gm)
        arguments = [_like(value) for value in inputs]
        try:
            # Autograd may take gradients for its own, to add to them in place: each is memory of its own.
            findings = examine(gm, [_strided(value) for value in inputs], views=ordered is None)
            return compile_graph(gm, arguments, bound, findings, options, given, ordered)
        except HeteroTVMError as error:
            return in_memory_as_traced(gm, compile_parts(gm, arguments, bound, error, options), ordered)


def _drop_checks(gm: torch.fx.GraphModule) -> list[int]:
    """Drop tests whether factors of matrices were found: where there are none, results are NaN or infinite.

    AOTAutograd keeps such a test as an effect, between the token that it takes and the one that it gives.
    Returns the numbers of the arguments that are tokens: calls give None for them.
    """
    tokens: set[torch.fx.Node] = set()
    for node in list(gm.graph.nodes):
        if node.target is not with_effects or node.args[1] is not torch.ops.aten._linalg_check_errors.default:
            continue
        for user in list(node.users):  # of the token and of the result, which is nothing
            user.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(user)
        tokens.add(node.args[0])
        gm.graph.erase_node(node)
    gm.recompile()
    return [i for i, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node in tokens]


def _reshape(gm: torch.fx.GraphModule) -> None:
    """Let nothing depend on strides: libraries take and give dense tensors.

    PyTorch's kernel for gradients of GroupNorm reads both tensors in the order of one of them.  Determinants
    give factors of the transposed matrix where the matrix is dense, and gradients read them as traced.
    """
    aten = torch.ops.aten
    determinants = {aten._linalg_det.default, aten._linalg_slogdet.default}
    for node in list(gm.graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        elif node.target is aten.native_group_norm_backward.default:
            with gm.graph.inserting_before(node):
                for place, given in enumerate(node.args[:2]):
                    dense = {"memory_format": torch.contiguous_format}
                    copy = gm.graph.call_function(aten.clone.default, (given,), dense)
                    copy.meta = dict(given.meta)
                    node.update_arg(place, copy)
        elif node.target in determinants:
            with gm.graph.inserting_before(node):
                node.update_arg(0, _lying_as_traced(gm.graph, node.args[0]))
    gm.recompile()


def _lying_as_traced(graph: torch.fx.Graph, matrix: torch.fx.Node) -> torch.fx.Node:
    """A matrix that lies row by row where it was traced so, and column by column where it was not."""
    aten = torch.ops.aten
    value = matrix.meta.get("val")
    columns = isinstance(value, torch.Tensor) and not value.is_contiguous()
    if columns:
        matrix = graph.call_function(aten.transpose.int, (matrix, -2, -1))
    made = graph.call_function(aten.clone.default, (matrix,), {"memory_format": torch.contiguous_format})
    return graph.call_function(aten.transpose.int, (made, -2, -1)) if columns else made


def _like(value: Any) -> Any:
    """A tensor of the same sizes and type, without data."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return value


def _strided(value: Any) -> Any:
    """A tensor of the same sizes, strides and type, without data."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return _like(value)


def _boxed(call: Compiled) -> Callable[[list[Any]], Sequence[Any]]:
    """A function for AOTAutograd: takes a list and empties it, so that nothing lives longer than it must."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        given = list(arguments)
        arguments.clear()
        return call(given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _alike(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype


# ---- what is kept from forward to backward ----------------------------------------------------


def _partition(
    options: Options, joint: torch.fx.GraphModule, inputs: Any, **given: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Divide a joint graph; tells how many bytes are kept with and without computing values again."""
    count = given["num_fwd_outputs"]
    _keep_draws(joint)
    _keep_compared(joint)
    plain = default_partition(_again(joint), inputs, **given)
    kept = _kept_bytes(plain[0], count)
    if not options.recompute:
        options.tell(event="partition", kept_bytes=kept, kept_bytes_without_recomputation=kept)
        return plain
    with contextlib.suppress(Exception):  # its graph of capacities does not know every operator
        cut = min_cut_rematerialization_partition(joint, inputs, **given)
        fewer = _kept_bytes(cut[0], count)
        if fewer < kept:
            options.tell(event="partition", kept_bytes=fewer, kept_bytes_without_recomputation=kept)
            return cut
    options.tell(event="partition", kept_bytes=kept, kept_bytes_without_recomputation=kept)
    return plain


def _keep_draws(joint: torch.fx.GraphModule) -> None:
    """Let checkpointing keep what operators that may draw random numbers give: attention, masks of dropout.

    To compute one again, PyTorch's partitioner passes states of the generator from graph to graph.
    """
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for kept in (node, *(user for user in node.users if user.target is operator.getitem)):
                kept.meta.pop("recompute", None)


def _keep_compared(joint: torch.fx.GraphModule) -> None:
    """Keep the numbers that gradients of extrema compare with these: computed again, none may be equal."""
    aten = torch.ops.aten
    picking = (aten.gather.default, aten.index.Tensor, aten.index_select.default)
    pending = [
        operand
        for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor)
        for operand in node.all_input_nodes
    ]
    while pending:
        node = pending.pop()
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if node.target in picking or getattr(node.target, "is_view", False):
            pending.extend(node.all_input_nodes[:1])
        else:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _again(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy: partitioners change what they are given."""
    copy = torch.fx.GraphModule(joint, copied(joint.graph))  # which keeps the constants that the graph reads
    copy.graph._codegen = joint.graph._codegen
    copy.recompile()
    return copy


def _kept_bytes(forward: torch.fx.GraphModule, outputs: int) -> int:
    """Bytes of what a forward graph computes for its backward one; arguments are there anyway."""
    node = next(iter(forward.graph.find_nodes(op="output")))
    kept = {n for n in node.args[0][outputs:] if isinstance(n, torch.fx.Node) and n.op != "placeholder"}
    values = [n.meta.get("val") for n in kept - set(node.args[0][:outputs])]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
