"""Effects of a graph on its arguments, found by running it on tensors without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from hetero_tvm.errors import ModelError

Source = tuple[Literal["argument", "value", "result", "view"], Any]
"""Origin of an output: the number of an argument, a Python value, the number of a computed tensor, or a
:class:`View` of one."""


@dataclass(frozen=True)
class View:
    """A view of a computed tensor's memory: the tensor's number, sizes, strides, and its first element."""

    result: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Findings:
    """Outputs of a graph, and whether it is a pure function.

    Parameters
    ----------
    outputs : source of each output, in order.
    results : indices of the outputs that are computed, each tensor once; without views of others.
    changed : numbers of the arguments that are changed in place.
    shares_memory : whether an output lies in memory of an argument or of another result.
    complexes : numbers of the computed tensors that are complex.
    orders : of each computed tensor, its dimensions from that of the longest steps in memory to that of the
        shortest; None where they stand in their own order, or leave elements out.
    """

    outputs: tuple[Source, ...]
    results: tuple[int, ...]
    changed: tuple[int, ...]
    shares_memory: bool
    complexes: tuple[int, ...]
    orders: tuple[tuple[int, ...] | None, ...]

    @property
    def is_pure(self) -> bool:
        """Whether new tensors may stand for all results."""
        return not self.changed and not self.shares_memory


def first_line(error: BaseException) -> str:
    """Kind of an error of PyTorch's tracing, and the beginning of what it says."""
    line = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {line[:300]}"


def examine(gm: torch.fx.GraphModule, arguments: Sequence[Any], *, views: bool = False) -> Findings:
    """Run a graph on fake tensors like ``arguments``.

    Parameters
    ----------
    arguments : tensors and numbers, in the order of the graph's placeholders; none is symbolic.
    views : whether outputs that are views of another one are found as such, not as results of their own.

    Raises
    ------
    ModelError : sizes inside depend on values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes = [fake(mode, a) if isinstance(a, torch.Tensor) else a for a in arguments]
    before = [value._version if isinstance(value, torch.Tensor) else 0 for value in fakes]
    writes = _Writes()
    try:
        with mode, writes, torch.no_grad():
            returned = torch.fx.Interpreter(gm).run(*fakes, enable_io_processing=False)
    except Exception as error:
        raise ModelError(f"Sizes in the graph depend on values. {first_line(error)}") from error
    leaves = list(torch.utils._pytree.tree_leaves(returned, is_leaf=lambda value: value is None))
    changed = tuple(
        i
        for i, value in enumerate(fakes)
        if isinstance(value, torch.Tensor)
        and (value._version != before[i] or _memory(value) in writes.memories)
    )
    places = {id(value): i for i, value in enumerate(fakes) if isinstance(value, torch.Tensor)}
    taken = {_memory(value) for value in fakes if isinstance(value, torch.Tensor)}
    outputs: list[Source] = []
    results: dict[int, int] = {}
    computed: list[int] = []
    complexes: list[int] = []
    orders: list[tuple[int, ...] | None] = []
    shares = False
    own = [value for value in leaves if isinstance(value, torch.Tensor) and _memory(value) not in taken]
    bases = _bases(own) if views else {}
    for index, value in enumerate(leaves):
        if isinstance(value, torch.Tensor) and id(value) not in {**places, **results, **bases}:
            results[id(value)] = len(computed)
            if value.is_complex():
                complexes.append(len(computed))
            computed.append(index)
            orders.append(_order(value))
            shares |= _memory(value) in taken
            taken.add(_memory(value))
    for value in leaves:
        if not isinstance(value, torch.Tensor):
            outputs.append(("value", _plain(value)))
        elif id(value) in places:
            outputs.append(("argument", places[id(value)]))
        elif id(value) in bases:
            base = bases[id(value)]
            first = value.storage_offset() - base.storage_offset()
            view = View(results[id(base)], tuple(value.shape), value.stride(), first)
            outputs.append(("view", view))
        else:
            outputs.append(("result", results[id(value)]))
    return Findings(tuple(outputs), tuple(computed), changed, shares, tuple(complexes), tuple(orders))


class _Writes(TorchDispatchMode):
    """Memories of tensors that operators change as a list, which leaves their versions as they were."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.memories: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = func._schema.arguments if isinstance(func, torch._ops.OpOverload) else ()
        for argument, value in zip(arguments, args, strict=False):
            if argument.is_write and isinstance(value, list | tuple):
                self.memories.update(_memory(tensor) for tensor in value)
        return func(*args, **(kwargs or {}))


def fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without data, of the same sizes, strides and type, on the CPU like those of the graph."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bases(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Dense tensors in whose memory others of the same type lie, by the identity of the others."""
    found: dict[int, torch.Tensor] = {}
    dense: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        memory = _memory(tensor)
        if _is_dense(tensor) and (memory not in dense or tensor.numel() > dense[memory].numel()):
            dense[memory] = tensor
    for tensor in tensors:
        base = dense.get(_memory(tensor))
        if base is None or tensor is base or not _is_real(tensor) or tensor.dtype != base.dtype:
            continue
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        first = tensor.storage_offset() - base.storage_offset()
        if tensor.numel() and first >= 0 and first + sum((n - 1) * s for n, s in steps) < base.numel():
            found[id(tensor)] = base
    return found


def _is_dense(tensor: torch.Tensor) -> bool:
    return _is_real(tensor) and (tensor.is_contiguous() or _order(tensor) is not None)


def _is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds its numbers as they are, in places that are known."""
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_neg():
        return False
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return not any(isinstance(number, torch.SymInt) for number in numbers)


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if tensor.layout is not torch.strided or any(isinstance(step, torch.SymInt) for step in tensor.stride()):
        return None
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
    if tensor.is_contiguous() or not tensor.permute(order).is_contiguous():
        return None
    return order


def _plain(value: Any) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise ModelError(f"An output is a number that depends on values: {value}.")
    return value
