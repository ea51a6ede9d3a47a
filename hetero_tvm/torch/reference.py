"""Dynamo's own graph as the reference of its library: what the export from it got wrong shows too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.arrays import tensor_of
from hetero_tvm.frontend.torch.run import TorchProgram


class TracedGraph(TorchProgram):
    """A graph of Dynamo, or of AOTAutograd, as a function of arrays.

    Parameters
    ----------
    gm : the graph; it returns tensors only.
    program : what was exported from it, which tells values inside by the names of the library's nodes.
    free : number of the argument that each input of the program is, by name.
    bound : values of the other arguments, by number.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        program: ExportedProgram,
        free: Mapping[str, int],
        bound: Mapping[int, Any],
    ):
        super().__init__(program, list(free))
        self._gm, self._free, self._bound = gm, dict(free), dict(bound)

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Compute the tensors that the graph returns, in order.

        Where the graph cannot be computed in float64 (regions of autocast, for one) the exported program is.
        """
        if not double:
            return super().run(inputs)
        try:
            return super().run(inputs, double=True)
        except ModelError:
            return TorchProgram(self.program, self.inputs).run(inputs, double=True)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """Values inside the exported program, of those ``names`` that it has, in float64 and in order."""
        return TorchProgram(self.program, self.inputs).tensors(inputs, names)

    def _graph(self) -> torch.fx.GraphModule:
        return self._gm

    def _returned(self, torch: ModuleType, results: Sequence[Any]) -> list[Any]:
        return list(results)

    def _arguments(self, torch: ModuleType, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        given = {index: tensor_of(torch, inputs[name]) for name, index in self._free.items()}
        values = given | self._bound
        return [values[index] for index in range(len(values))]
