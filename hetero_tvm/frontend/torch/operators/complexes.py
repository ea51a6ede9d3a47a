"""Views of complex numbers as views of their parts, which PyTorch's exporter can translate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Views and selections, for programs with complex numbers alone: on others they are as they were."""
    aten = torch.ops.aten

    def along(operator: Any, more: int = 0) -> Callable[..., Any]:
        """The operator along an axis, of a result with ``more`` axes than its operand."""

        def function(x: Tensor, dim: int = 0, *given: Any, **named: Any) -> Any:
            if not x.is_complex():
                return NotImplemented
            axis = dim % max(x.dim() + more, 1)
            return torch.view_as_complex(operator(torch.view_as_real(x), axis, *given, **named).contiguous())

        return function

    def expand(x: Tensor, size: Sequence[Any], *, implicit: bool = False) -> Any:
        if not x.is_complex():
            return NotImplemented
        return torch.view_as_complex(torch.view_as_real(x).expand([*size, 2]).contiguous())

    return {
        aten.unsqueeze.default: along(aten.unsqueeze.default, 1),
        aten.slice.Tensor: along(aten.slice.Tensor),
        aten.select.int: along(aten.select.int),
        aten.index_select.default: along(aten.index_select.default),
        aten.expand.default: expand,
    }
