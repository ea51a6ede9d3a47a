"""Graphs without gradients: pure ones are exported as they are, others through AOTAutograd."""

from __future__ import annotations

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
    reasons: list[HeteroTVMError] = []
    try:
        findings = examine(gm, arguments)
        bound = {i: value for i, value in frozen.items() if i not in findings.changed}
        if findings.is_pure:
            return compile_graph(gm, arguments, bound, findings, options)
    except HeteroTVMError as error:
        reasons.append(error)
        bound = frozen
    return functionalized(gm, arguments, bound, options) if not reasons else refused(gm, reasons, options)
