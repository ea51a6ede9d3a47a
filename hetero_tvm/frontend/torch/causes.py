"""Causes for which PyTorch cannot trace a model, in the model's own terms."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import require


def untraceable(error: BaseException) -> ModelError | None:
    """Refusal of a model whose course depends on values that only a run knows; None for another error.

    It tells the line of the model, where the traceback has one that is not PyTorch's.
    """
    link: BaseException | None = error
    seen: list[BaseException] = []
    while link is not None and link not in seen:
        if type(link).__name__ == "GuardOnDataDependentSymNode":
            break
        seen.append(link)
        link = link.__cause__ or link.__context__
    else:
        return None
    place = _place(error) or _place(link)
    return ModelError(
        "The model decides by values that only a run knows, or has as many elements as these say.",
        problems=[place] if place else [next(iter(str(link).splitlines()), "")[:300]],
        hint="Choose by torch.where or a mask of the full size there, or say the bound by torch._check; "
        "torch.compile(model, backend='hetero_tvm') divides the model at such lines.",
    )


def refuse_without_values(tensors: Iterable[tuple[str, Any]]) -> None:
    """Refuse tensors on the device ``meta``, which have a shape and no values: :class:`ModelError`."""
    empty = [name for name, value in tensors if getattr(getattr(value, "device", None), "type", "") == "meta"]
    if empty:
        more = [f"and {len(empty) - 3} more"] if len(empty) > 3 else []
        raise ModelError(
            "Tensors have no values: they are on the device meta.",
            problems=[*empty[:3], *more],
            hint="Load the checkpoint first: model.to_empty(device='cpu') and model.load_state_dict(..., "
            "assign=True), or build the model without torch.device('meta') and low_cpu_mem_usage.",
        )


def _place(error: BaseException | None) -> str:
    """File, line and text of the innermost line in a traceback that is neither PyTorch's nor ours."""
    if error is None:
        return ""
    theirs = [Path(require("torch").__file__).parent, Path(__file__).parents[2]]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.exists() and not any(path.is_relative_to(folder) for folder in theirs):
            text = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {text}"[:300]
    return ""
