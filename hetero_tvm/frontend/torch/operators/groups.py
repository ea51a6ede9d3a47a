"""Products of rows with the weights of their groups: experts that a router chose."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_COPIED = 3
"""Times that memory is crossed where each row takes its own copy of its weights."""


def decompositions(torch: ModuleType) -> dict[Any, Callable[..., Any]]:
    """``_grouped_mm``, and the operators that transformers has in its place."""
    aten = torch.ops.aten

    def group_of(rows: int, ends: Tensor) -> Tensor:
        """Group of each row, [S]; the number of groups for rows behind the last one."""
        return (torch.arange(rows).unsqueeze(1) >= ends.unsqueeze(0)).to(torch.int64).sum(1)

    def product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Rows [S, K], in the order of their groups, with weights [G, K, N]; ``ends`` of the groups."""
        rows, groups = x.shape[0], weight.shape[0]
        group = group_of(rows, ends)
        if _COPIED * rows < groups:
            own = weight.index_select(0, group.clamp(max=groups - 1))
            found = torch.matmul(x.unsqueeze(1), own).squeeze(1)
            return torch.where((group < groups).unsqueeze(1), found, 0.0)
        every = torch.matmul(x.unsqueeze(0), weight)
        mine = group.unsqueeze(0) == torch.arange(groups).unsqueeze(1)
        return torch.where(mine.unsqueeze(2), every, 0.0).sum(0)

    def gradients(x: Tensor, weight: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        group = group_of(x.shape[0], ends)
        mine = group.unsqueeze(0) == torch.arange(weight.shape[0]).unsqueeze(1)
        columns = torch.where(mine.unsqueeze(1), x.t().unsqueeze(0), 0.0)
        return product(grad, weight.transpose(1, 2), ends), torch.matmul(columns, grad)

    def grouped_mm(
        x: Tensor, weight: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None
    ) -> Any:
        if x.dim() != 2 or weight.dim() != 3 or offs is None or bias is not None:
            return NotImplemented
        found = product(x, weight, offs)
        return found if out_dtype is None else found.to(out_dtype)

    table: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: grouped_mm}
    named = {"grouped_mm_fallback": product, "grouped_mm_fallback_backward": gradients}
    for name, function in named.items():  # there once transformers is imported
        if hasattr(torch.ops.transformers, name):
            table[getattr(torch.ops.transformers, name).default] = function
    return table
