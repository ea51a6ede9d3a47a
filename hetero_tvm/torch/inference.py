"""Graphs without gradients: pure ones are exported as they are, others through AOTAutograd.

So are those of ``torch.func`` (``grad``, ``vmap``, ``jacrev``): they wrap tensors, which AOTAutograd unwraps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.torch.compiling import compile_graph
from hetero_tvm.torch.examine import examine
from hetero_tvm.torch.functional import functionalized
from hetero_tvm.torch.options import Options
from hetero_tvm.torch.refusing import refused
from hetero_tvm.torch.specializing import Compiled
from hetero_tvm.torch.transforms import is_transformed


def inference(
    gm: torch.fx.GraphModule, arguments: Sequence[Any], frozen: dict[int, torch.Tensor], options: Options
) -> Compiled:
    """Compile a graph of fixed shapes whose results need no gradients.

    Parameters
    ----------
    arguments : tensors like those that it will get, and numbers.
    frozen : arguments whose values become part of the library.

    Raises
    ------
    HeteroTVMError : with ``refused="raise"``, the reasons why it cannot be compiled.
    """
    if is_transformed(gm):
        return functionalized(gm, arguments, frozen, options)
    try:
        findings = examine(gm, arguments, views=True)
    except HeteroTVMError as error:
        return refused(gm, error, options)
    bound = {i: value for i, value in frozen.items() if i not in findings.changed}
    if findings.is_pure:
        # A refused graph is not: AOTAutograd divides its operators into those that the refusal is about.
        with contextlib.suppress(HeteroTVMError):
            return compile_graph(gm, arguments, bound, findings, options)
    return functionalized(gm, arguments, bound, options)
