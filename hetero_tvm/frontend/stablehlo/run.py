"""Judge of a StableHLO program: the program itself, run by XLA or by StableHLO's own interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from hetero_tvm.errors import ModelError, last_line
from hetero_tvm.frontend.stablehlo.load import bindings


class StableHloProgram:
    """A program run as it is written: by XLA where JAX is installed, else by the interpreter in jaxlib.

    Its numbers have the types that it is written in, in float64 too.

    Parameters
    ----------
    module : the MLIR module.
    model : the same program in ONNX, for other runtimes.
    """

    exact = available = True
    coarse = False

    def __init__(self, module: Any, model: onnx.ModelProto):
        self._module, self._model = module, model
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

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Outputs in signature order, floats widened to float64 for ``double``."""
        try:
            arrays = self._run(list(inputs.values()))
        except Exception as error:  # both raise kinds of their own
            raise ModelError(f"{self.engine} cannot run this program: {last_line(error)}") from error
        return tuple(x.astype(np.float64) if double and x.dtype.kind == "f" else x for x in arrays)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """{}: a compiled program shows no values inside."""
        return {}

    def to_onnx(self) -> onnx.ModelProto:
        """The same program for other runtimes."""
        return self._model
