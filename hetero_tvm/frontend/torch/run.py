"""Exported PyTorch programs run by PyTorch, in float32 and in float64: the reference of their import."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hetero_tvm.errors import InputError, ModelError
from hetero_tvm.frontend.torch.arrays import array_of, tensor_of
from hetero_tvm.frontend.torch.load import require
from hetero_tvm.host import mapped

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Interpreter


class TorchProgram:
    """An exported program as a function of arrays.

    Parameters
    ----------
    program : ``torch.export.ExportedProgram``.
    inputs : names of the tensors that it takes.
    """

    exact = available = True
    coarse = False

    def __init__(self, program: ExportedProgram, inputs: Sequence[str]):
        torch = require("torch")
        self.program = program
        self.inputs = tuple(inputs)
        self.engine = f"torch {torch.__version__}"

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Compute the tensors that the program returns, in order.

        Parameters
        ----------
        inputs : arrays by name, of the shapes and types that the program takes.
        double : compute in float64: weights, inputs and every type written in the program are
            widened.  Values stay what they were, only arithmetic becomes finer.
        """
        torch = require("torch")
        interpreter = _interpreter(torch, self._graph(), double)
        default = torch.get_default_dtype()
        try:
            if double:
                torch.set_default_dtype(torch.float64)  # the type of int / int, for one
            with torch.no_grad():
                results = interpreter.run(*self._arguments(torch, inputs))
        except Exception as error:  # guards of the program, for one
            reason = (str(error).strip().splitlines() or [""])[0]
            if isinstance(error, IndexError):
                raise InputError(f"an input leads the program to an index out of range: {reason}") from error
            raise ModelError(f"PyTorch cannot run the program. {type(error).__name__}: {reason}") from error
        finally:
            torch.set_default_dtype(default)
        returned = self._returned(torch, torch.utils._pytree.tree_leaves(results))
        return tuple(array_of(torch, value) for value in returned)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """Values inside the program, of those ``names`` that it has, in float64 and in order."""
        torch = require("torch")
        interpreter = _interpreter(torch, self.program.graph_module, True)
        interpreter.garbage_collect_values = False
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            with torch.no_grad():
                interpreter.run(*self._arguments(torch, inputs))
        finally:
            torch.set_default_dtype(default)
        return {
            node.name: array_of(torch, value)
            for node, value in interpreter.env.items()
            if node.name in names and node.op == "call_function" and isinstance(value, torch.Tensor)
        }

    def to_onnx(self) -> onnx.ModelProto:
        """Translate the program as PyTorch does, its open dimensions left open."""
        from hetero_tvm.frontend.torch.specialize import sizes_kept
        from hetero_tvm.frontend.torch.to_onnx import to_onnx

        with sizes_kept(self.program):
            return to_onnx(self.program).whole()

    def save(self, path: Path) -> Path:
        """Write the program as ``torch.export.save`` does; gives the path."""
        require("torch").export.save(self.program, path)
        return path

    def _graph(self) -> GraphModule:
        """The graph that :meth:`run` runs."""
        return self.program.graph_module

    def _returned(self, torch: ModuleType, results: Sequence[Any]) -> list[Any]:
        """Tensors that the caller gets, of all results of the graph."""
        kinds = torch.export.graph_signature
        return [
            value if isinstance(value, torch.Tensor) else torch.tensor(value)
            for value, spec in zip(results, self.program.graph_signature.output_specs, strict=True)
            if spec.kind is kinds.OutputKind.USER_OUTPUT
            and (isinstance(value, torch.Tensor) or isinstance(spec.arg, kinds.SymIntArgument))
        ]

    def _arguments(self, torch: ModuleType, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Arguments of the flat graph: weights and constants, then the caller's inputs."""
        kinds = torch.export.graph_signature.InputKind
        program = self.program
        arguments = []
        for spec in program.graph_signature.input_specs:
            if spec.kind is not kinds.USER_INPUT:
                stored = program.state_dict if spec.target in program.state_dict else program.constants
                value = stored[spec.target]
            elif spec.arg.name in self.inputs:
                value = tensor_of(torch, inputs[spec.arg.name])
            else:
                value = spec.arg.value  # None, a flag or a number that the export fixed
            arguments.append(value)
        return arguments


def _interpreter(torch: ModuleType, module: GraphModule, double: bool) -> Interpreter:
    """An interpreter of the flat graph; nested graphs run in the same precision."""
    narrow = {torch.float32, torch.float16, torch.bfloat16}
    wide = dict.fromkeys(narrow, torch.float64) | {torch.complex64: torch.complex128}

    class Interpreter(torch.fx.Interpreter):
        def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
            if not double:
                return super().call_function(target, args, kwargs)
            tree_map = torch.utils._pytree.tree_map
            wider = tree_map(widen, (args, kwargs))
            try:
                return super().call_function(target, *wider)
            except RuntimeError:  # of kernels that have no float64: simulated quantisation
                return super().call_function(target, *tree_map(narrowed, (args, kwargs)))

        def call_method(self, target: str, args: tuple, kwargs: dict) -> Any:
            if double:
                args, kwargs = torch.utils._pytree.tree_map(widen, (args, kwargs))
                target = "double" if target in ("float", "half", "bfloat16") else target
            return super().call_method(target, args, kwargs)

    def narrowed(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float64
        return value.float() if is_wide else value

    def widen(value: Any) -> Any:
        if isinstance(value, torch.fx.GraphModule):
            return lambda *arguments: Interpreter(value).run(*arguments)
        if isinstance(value, torch.Tensor) and value.dtype in wide:
            # Where it is used: all weights in float64 at once would need more memory than anything else.
            mapped.touched(value.nbytes)
            return value.to(wide[value.dtype])
        return wide.get(value, value) if isinstance(value, torch.dtype) else value

    return Interpreter(module)
