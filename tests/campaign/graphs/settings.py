"""How a campaign compiles its graphs: target, precision, threads; and what that may cost its numbers."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx

from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.schedules.cpu.halves.conv2d import half_cycles

TOLERANCES = {
    # relative to the element, relative to the largest element of the output.
    "float64": (1e-9, 1e-10),
    "float32": (1e-4, 1e-5),  # chains of up to 40 roundings and vector polynomials of a few ulp
    # The references round every step to the narrow type, a CPU computes in float32 and rounds once.
    "float16": (1e-2, 5e-3),
    "bfloat16": (8e-2, 4e-2),
    # Precisions at which float32 is multiplied: one product, whose operands have 11, 8 and 7 bits.  What
    # follows from it, and further products, are judged by their conditioning.
    "f16": (1e-3, 1e-3),
    "bf16": (1e-2, 1e-2),
    "int8": (2e-2, 2e-2),
    "int8-weights": (2e-2, 2e-2),
    "int4-weights": (0.2, 0.2),
}
"""Without conditioning; integers and booleans are equal."""

_NOISE = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""Relative rounding error that is added to every value when conditioning is measured: a few ulp."""
_FACTOR = 20.0
"""How much of the spread under noise an error may be: six draws do not find the worst."""
_OPERAND_NOISE = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""Relative error of an operand of a product at a precision: half a unit in the last place, and one."""
_STEPS = {"int8": 127, "int8-weights": 127, "int4-weights": 7}
"""Steps between 0 and the largest number of an operand."""
_OPERAND_FACTOR = 5.0
"""How much of the spread an error may be where the noise is that of the precision itself, not less."""
_PRODUCTS = frozenset(
    "MatMul Gemm Conv ConvTranspose Einsum LSTM GRU RNN Attention MultiHeadAttention FusedMatMul FusedGemm "
    "FusedConv GroupQueryAttention SkipLayerNormalization QuickGelu BiasGelu MatMulNBits".split()
)
"""Operators whose operands a lower precision may round."""
_INTEGERS = "hetero_tvm.relax_passes.fusions.integers"
_WHERE_IT_PAYS = {
    f"{_INTEGERS}.dynamic_quantization.LEAST_COLUMNS": 1,
    f"{_INTEGERS}.dynamic_quantization.LEAST_DEPTH": 1,
    f"{_INTEGERS}.stored_weights.LEAST_WEIGHTS": 1,
    f"{_INTEGERS}.stored_weights.MOST_ROWS_OF_HALVES": 1 << 30,
    "hetero_tvm.targets.cpu.target.halves_pay": lambda op, machine: half_cycles(op, machine) is not None,
}
"""Sizes from which a lower precision pays, for graphs whose products are all smaller than that."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a :class:`Setting`."""
    parser.add_argument(
        "--target", default="cpu", help="also cpu:haswell (AVX2 alone), cpu:nehalem (SSE), npu:mobile"
    )
    parser.add_argument(
        "--precision",
        choices=("f32", "f16", "bf16", "int8", "int8-weights", "int4-weights"),
        help="products with constant weights in these, however small they are",
    )
    parser.add_argument("--threads", type=int, help="that kernels of a CPU are laid out for")


@dataclass(frozen=True)
class Setting:
    """What graphs are compiled for.

    Parameters
    ----------
    precision : as ``--precision`` has it, for products of any size; ``int8-weights`` and ``int4-weights``
        store weights so; None for what the file is stored in.
    threads : that kernels of a CPU are laid out for; None for this machine's.
    """

    target: str = "cpu"
    precision: str | None = None
    threads: int | None = None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Setting:
        """What the options say that :func:`add_options` added."""
        return cls(options.target, options.precision, options.threads)

    def built(self, imported: Any) -> Any:
        """An imported model, compiled without records."""
        from hetero_tvm.api import build_model, optimize_model
        from hetero_tvm.targets.cpu.target import CpuTarget

        target: Any = self.target
        stored = self.precision is not None and self.precision.endswith("-weights")
        if self.threads is not None or stored:
            target = CpuTarget(self.target.removeprefix("cpu").lstrip(":") or None, self.threads)
        precision = self.precision
        if stored:
            target, precision = target.storing(Storage.named(precision.removesuffix("-weights"), 32)), None
        with contextlib.ExitStack() as changed:
            for name, value in _WHERE_IT_PAYS.items() if not self._exact else ():
                changed.enter_context(mock.patch(name, value))
            optimized = optimize_model(imported, target, precision=precision)
        return build_model(optimized, use_shipped=False)

    @property
    def factor(self) -> float:
        return _FACTOR if self._exact else _OPERAND_FACTOR

    @property
    def rows_become_nan(self) -> bool:
        """Whether a row with NaN or infinity has no other products than NaN: its scale is not finite."""
        return self.precision == "int8"

    @property
    def _exact(self) -> bool:
        return self.precision in (None, "f32")

    def dtypes_as(self, model: onnx.ModelProto) -> dict[str, str]:
        """Dtypes whose tolerance is that of another one.

        Half precision is computed in float32 and rounded where it leaves the model, also where a Cast makes a
        wider type of it before; accelerators compute float32 in less.
        """
        elements = {v.type.tensor_type.elem_type for v in model.graph.input}
        elements |= {t.data_type for t in model.graph.initializer}
        elements |= {
            a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"
        }
        if narrow := [n for n in ("BFLOAT16", "FLOAT16") if getattr(onnx.TensorProto, n) in elements]:
            mixed = dict.fromkeys(("float32", "float64"), narrow[0].lower())
        else:
            # The sixth in ONNX's definition of HardSwish is that of float32.
            single = onnx.TensorProto.FLOAT in elements or any(
                n.op_type == "HardSwish" for n in model.graph.node
            )
            mixed = {"float64": "float32"} if single else {}
        if not self.target.startswith("cpu"):
            return {"float32": "float16", "float64": "float16"}
        return mixed if self._exact else {**dict.fromkeys(("float32", "float64"), self.precision), **mixed}

    def noise(self, model: onnx.ModelProto, rng: np.random.Generator) -> Noise:
        """What adds rounding errors to the tensors of a model."""
        if self._exact:
            return Noise(rng)
        read = {name for node in model.graph.node if node.op_type in _PRODUCTS for name in node.input}
        return Noise(rng, frozenset(read), self.precision)


@dataclass(frozen=True)
class Noise:
    """Rounding errors of tensors.

    Parameters
    ----------
    operands : names of the tensors that products read, which have the errors of ``precision``.
    """

    rng: np.random.Generator
    operands: frozenset[str] = frozenset()
    precision: str | None = None

    def __call__(self, value: Any, name: str, moved: bool = False) -> Any:
        """A tensor with its error; what an operator only moves has none of its own."""
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.name not in _NOISE:
            return value
        wide = np.asarray(value, np.float64)
        step: Any = 0.0 if moved else _NOISE[value.dtype.name] * np.abs(wide)
        if name in self.operands:
            finite = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
            narrow = _OPERAND_NOISE.get(self.precision or "")
            step = finite / _STEPS[self.precision] if narrow is None else narrow * np.abs(wide)
        with np.errstate(all="ignore"):
            error = np.where(np.isfinite(wide), step, 0.0) * self.rng.uniform(-1, 1, wide.shape)
            return np.asarray(wide + error).astype(value.dtype)


CPU = Setting()
