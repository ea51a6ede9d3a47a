"""Graphs of open sizes: one compiled graph per set of shapes, as many as there is room for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hetero_tvm.torch.parameters import FrozenParameters, freezable
from hetero_tvm.torch.rewrites.copies import scalar_placeholders, with_values
from hetero_tvm.torch.transforms import levels_closed, traced_alone

Compiled = Callable[[Sequence[Any]], Sequence[Any]]
Maker = Callable[[torch.fx.GraphModule, Sequence[Any], dict[int, torch.Tensor]], Compiled]
"""Compiles a graph without open sizes, for arguments like the given ones, with some tensors frozen."""


class Specialized:
    """A graph as Dynamo calls it.

    Parameters
    ----------
    gm : the graph; it may take sizes and Python numbers as arguments.
    arguments : the first call's.
    make : compiles one variant.
    freeze : whether parameters may be packed; once one has changed, all are read at every call.
    most : bound of the variants; the one that was used longest ago makes room.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, arguments: Sequence[Any], make: Maker, freeze: bool, most: int
    ):
        self._gm = gm
        self._make = make
        self._most = most
        self._frozen = FrozenParameters(freezable(gm, arguments) if freeze else {})
        nodes = gm.graph.find_nodes(op="placeholder")
        scalars = scalar_placeholders(gm)
        self._scalars = tuple(i for i in scalars if isinstance(arguments[i], torch.Tensor))
        self._numbers = tuple(i for i, a in enumerate(arguments) if not isinstance(a, torch.Tensor))
        self._open = tuple(
            i
            for i, node in enumerate(nodes)
            if isinstance(arguments[i], torch.Tensor) and i not in scalars and _is_open(node)
        )
        self._variants: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()
        self._lock = threading.RLock()
        self._only: Compiled | None = None
        self._static = not (self._scalars or self._numbers or self._open)

    def prepare(self, arguments: Sequence[Any]) -> None:
        """Compile the variant that ``arguments`` need, as a call would.

        Sizes that Dynamo keeps unknown (``mark_unbacked``) are known at the first call, which compiles then.
        """
        if all(size.node.has_hint() for size in symbolic_sizes(arguments)):
            self._variant(arguments)

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        if not self._frozen.unchanged(arguments):
            with self._lock:
                self._frozen = FrozenParameters({})
                self._variants.clear()
                self._only = None
        compiled = self._only if self._only is not None else self._variant(arguments)
        return compiled(arguments)

    def _variant(self, arguments: Sequence[Any]) -> Compiled:
        key = self._key(arguments)
        found = self._known(key)
        if found is None:
            # Dynamo's lock comes before ours: Dynamo holds it when it asks for the first variant.
            with traced_alone():
                while found is None:
                    found = self._known(key) or self._kept(key, self._frozen, self._compiled(arguments))
        return found

    def _known(self, key: tuple[Any, ...]) -> Compiled | None:
        with self._lock:
            found = self._variants.get(key)
            if found is not None:
                self._variants.move_to_end(key)
            return found

    def _kept(self, key: tuple[Any, ...], frozen: FrozenParameters, made: Compiled) -> Compiled | None:
        """``made``, kept; None where parameters have changed while it was compiled."""
        with self._lock:
            if frozen is not self._frozen:
                return None
            self._variants[key] = made
            while len(self._variants) > self._most:
                self._variants.popitem(last=False)
            if self._static:
                self._only = made
            return made

    def _key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return (
            *(arguments[i].shape for i in self._open),
            *(_number(arguments[i]) for i in self._numbers),
            *(arguments[i].item() for i in self._scalars),
        )

    def _compiled(self, arguments: Sequence[Any]) -> Compiled:
        values = {i: _number(arguments[i]) for i in self._numbers}
        values |= {i: arguments[i].item() for i in self._scalars}
        gm = with_values(self._gm, values) if values else self._gm
        given = [values.get(i, a) if i in self._numbers else a for i, a in enumerate(arguments)]
        with levels_closed():
            return self._make(gm, [_concrete(a) for a in given], dict(self._frozen.tensors))


def symbolic_sizes(arguments: Sequence[Any]) -> list[torch.SymInt]:
    """Sizes that Dynamo has not fixed, of tensors and among numbers."""
    sizes = [size for a in arguments for size in (a.shape if isinstance(a, torch.Tensor) else (a,))]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def _is_open(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value", node.meta.get("val"))
    return not isinstance(value, torch.Tensor) or any(isinstance(s, torch.SymInt) for s in value.shape)


def _number(value: Any) -> Any:
    """A Python number for a size, which is symbolic while Dynamo traces."""
    if isinstance(value, torch.SymInt):
        return int(value.node.hint if value.node.hint is not None else value)
    return value


def _concrete(value: Any) -> Any:
    """A tensor like a symbolic one, of the sizes that it was traced with."""
    if isinstance(value, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape):
        sizes = [_number(s) for s in value.shape]
        made = torch.empty(sizes, dtype=value.dtype, device="meta")
        return made.requires_grad_(value.requires_grad)
    return value
