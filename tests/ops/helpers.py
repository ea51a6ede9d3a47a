"""Checks of one contract: its reference and its unscheduled kernel against another formula."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.base import FusedOp, from_json
from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.te_workload import OP_ATTR
from tests.plain import PLAIN


def sample_inputs(op: FusedOp, seed: int | np.random.Generator = 0) -> list[np.ndarray]:
    """Random operands, float32 unless float64; images have zeros where their layouts have them."""
    generator = np.random.default_rng(seed)
    arrays = []
    for operand in op.inputs:
        array = generator.standard_normal(operand.shape, dtype=np.float32)
        name = "residual" if operand.name == "gate" else operand.name.lower()
        if name in ("x", "residual") and hasattr(op, f"{name}_layout"):
            channels = (op.image if name == "x" else op.out_image)[1]
            layout = Layout.parse(getattr(op, f"{name}_layout"))
            array = layout.pack(np.ascontiguousarray(layout.unpack(array, channels)))
        arrays.append(array.astype("float64") if operand.dtype == "float64" else array)
    return arrays


def run_workload(op: FusedOp, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Results of the unscheduled kernel, compiled by TVM as it is."""
    function = op.workload()
    assert from_json(str(function.attrs[OP_ATTR])) == op
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    library = tvm.compile(module, target=PLAIN)
    # 7 is a value that must be overwritten.
    results = [tvm.runtime.tensor(np.full(o.shape, 7).astype(o.dtype)) for o in op.outputs]
    library["main"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays), *results)
    return tuple(result.numpy() for result in results)


def check(
    op: FusedOp,
    formula: Callable[..., np.ndarray | tuple[np.ndarray, ...]],
    arrays: list[np.ndarray] | None = None,
    *,
    seed: int = 0,
    tolerance: float = 2e-6,
) -> None:
    """Compare ``op`` with ``formula`` (of float64 operands): the reference exactly, the kernel in float32.

    ``tolerance`` is that of the kernel, relative to the largest finite value or 1.  NaN and infinities must
    be where the formula has them.
    """
    assert from_json(op.to_json()) == op and hash(from_json(op.to_json())) == hash(op)
    arrays = sample_inputs(op, seed) if arrays is None else arrays
    arrays = [a.astype(o.dtype) for a, o in zip(arrays, op.inputs, strict=True)]
    assert [a.shape for a in arrays] == [o.shape for o in op.inputs]
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays]
    with np.errstate(all="ignore"):
        wanted, exact = formula(*wide), op.reference(*wide)
    found = run_workload(op, arrays)
    wanted, exact = (x if isinstance(x, tuple) else (x,) for x in (wanted, exact))
    for operand, one, two, three in zip(op.outputs, wanted, exact, found, strict=True):
        assert one.shape == two.shape == three.shape == operand.shape
        scale = np.abs(one[np.isfinite(one)]).max(initial=1)
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-12 * scale)
        np.testing.assert_allclose(three.astype(np.float64), one, rtol=0, atol=tolerance * scale)
