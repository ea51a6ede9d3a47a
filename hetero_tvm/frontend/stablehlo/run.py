"""Judge of a StableHLO program: the program itself, run by XLA or by StableHLO's own interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from hetero_tvm.errors import ModelError, last_line
from hetero_tvm.frontend.stablehlo.load import bindings
from hetero_tvm.frontend.stablehlo.sizes import main_of

_MOST_SIZES = 8
"""Sets of sizes for which a program of open ones is kept compiled."""


class StableHloProgram:
    """A program run as it is written: by XLA where JAX is installed, else by the interpreter in jaxlib.

    Its numbers have the types that it is written in, in float64 too.  What it rounds to 16 bits on the way is
    not rounded in what is compiled, so that such a program judges its translation alone, which tells what is
    exact.

    Parameters
    ----------
    module : the MLIR module.
    model : the same program in ONNX, for other runtimes.
    at : gives the module for inputs of other shapes, where the program leaves sizes open.
    """

    available = True

    def __init__(
        self,
        module: Any,
        model: onnx.ModelProto,
        at: Callable[[Sequence[Sequence[int]]], Any] | None = None,
    ):
        self._module, self._model, self._at = module, model, at
        self._others: dict[tuple[tuple[int, ...], ...], StableHloProgram] = {}
        self.coarse = _has_narrow_floats(model)
        self.exact = not self.coarse
        self.engine, self._run = self._made()

    def _made(self) -> tuple[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]]:
        try:
            import jax
        except ImportError:
            return "StableHLO's reference interpreter", self._interpreted
        return f"XLA of JAX {jax.__version__}", self._compiled

    @functools.cached_property
    def _executable(self) -> tuple[Any, Any]:
        from jax.extend import backend
        from jaxlib import xla_client

        client = backend.get_backend("cpu")
        devices = client.local_devices()[:1]
        data = self._module.operation.get_asm(binary=False).encode()
        options = xla_client.CompileOptions()
        return devices[0], client.compile_and_load(data, xla_client.DeviceList(tuple(devices)), options)

    def _compiled(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        import jax

        device, executable = self._executable
        with jax.enable_x64(True):
            given = [jax.device_put(array, device) for array in arrays]
        results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
        return [np.asarray(shards[0]) for shards in results]

    def _interpreted(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        ir, stablehlo, _ = bindings()
        context = self._module.context
        stablehlo.register_interpreter_dialect(context)
        with context:
            given = [ir.DenseElementsAttr.get(np.ascontiguousarray(array)) for array in arrays]
            return [np.array(found) for found in stablehlo.eval_module(self._module, given)]

    def _sized(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Results for inputs of these shapes, which may be others than the module's."""
        block = main_of(self._module).regions[0].blocks[0]
        shapes = tuple(array.shape for array in arrays)
        own = tuple(tuple(argument.type.shape) for argument in block.arguments)
        if self._at is None or shapes == own:
            return self._run(arrays)
        if shapes not in self._others:
            while len(self._others) >= _MOST_SIZES:
                self._others.pop(next(iter(self._others)))
            self._others[shapes] = StableHloProgram(self._at(shapes), self._model)
        return self._others[shapes]._run(arrays)

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Outputs in signature order, floats widened to float64 for ``double``."""
        try:
            arrays = self._sized(list(inputs.values()))
        except Exception as error:  # both raise kinds of their own
            raise ModelError(f"{self.engine} cannot run this program: {last_line(error)}") from error
        return tuple(x.astype(np.float64) if double and x.dtype.kind == "f" else x for x in arrays)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """{}: a compiled program shows no values inside."""
        return {}

    def to_onnx(self) -> onnx.ModelProto:
        """The same program for other runtimes."""
        return self._model


def _has_narrow_floats(model: onnx.ModelProto) -> bool:
    """Whether some numbers of a program have 16 bits or fewer: given, constant, or rounded on the way."""
    graph = model.graph
    kinds = {value.type.tensor_type.elem_type for value in graph.input}
    kinds |= {tensor.data_type for tensor in graph.initializer} | _casts(graph)
    wide = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
    names = {kind: onnx.TensorProto.DataType.Name(kind) for kind in kinds}
    return any("FLOAT" in name and kind not in wide for kind, name in names.items())


def _casts(graph: onnx.GraphProto) -> set[int]:
    """Types of the casts in a graph, and in those inside it."""
    found = set()
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                found.add(attribute.i)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                found |= _casts(attribute.g)
    return found
