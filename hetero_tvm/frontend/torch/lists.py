"""Operators on lists of tensors (``_foreach_add``): the operator on tensors, applied to each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ALIKE = """abs acos add asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor
    frac lerp lgamma log log10 log1p log2 mm mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub
    tan tanh trunc""".split()
"""Operators that take for one tensor what they take for each of a list."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Operators on lists that change none in place: of optimizers with ``foreach=True``, say."""
    aten = torch.ops.aten

    def weighted(operator: Any) -> Callable[..., Any]:
        return lambda x, one, other, value=1: aten.add(x, aten.mul(operator(one, other), value))

    def bounded(operator: Any, by_number: Any) -> Callable[..., Any]:
        return lambda x, other: (operator if isinstance(other, torch.Tensor) else by_number)(x, other)

    of_one: dict[str, Callable[..., Any]] = {
        **{name: getattr(aten, name) for name in _ALIKE},
        "addcdiv": weighted(aten.div),
        "addcmul": weighted(aten.mul),
        "max": aten.amax,
        "maximum": bounded(aten.maximum, aten.clamp_min),
        "minimum": bounded(aten.minimum, aten.clamp_max),
        "norm": lambda x, ord=2, dtype=None: aten.linalg_vector_norm(x, ord, dtype=dtype),
        "powsum": lambda x, ord=2, dtype=None: aten.sum(x.abs() ** ord, dtype=dtype),
        "zero": aten.zeros_like,
    }
    table: dict[Any, Callable[..., Any]] = {}
    for name, function in of_one.items():
        packet = getattr(aten, f"_foreach_{name}", None)  # other versions of PyTorch have fewer
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            if not operator._schema.is_mutable:
                table[operator] = _for_each(function, operator)
    return table


def _for_each(function: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    """Operator on lists as a function of their elements; a tensor with one number for each is a list too."""
    declared = operator._schema.arguments
    count_by = [a.name for a in declared if str(a.type) == "List[Tensor]"]
    listed = {a.name for a in declared if str(a.type).startswith("List[") or a.name == "scalars"}
    positional = [a.name for a in declared if not a.kwarg_only]

    def call(*args: Any, **kwargs: Any) -> list[Tensor]:
        given = dict(zip(positional, args, strict=False))
        options = {name: value for name, value in kwargs.items() if name not in positional}
        given |= {name: value for name, value in kwargs.items() if name in positional}
        given.pop("non_blocking", None)
        return [
            function(*(value[i] if name in listed else value for name, value in given.items()), **options)
            for i in range(len(given[count_by[0]]))
        ]

    return call
