"""Running sums and products: every axis, dtypes, lengths around a tile, and that models get this kernel."""

import numpy as np

from hetero_tvm.compile.optimize import optimize_model
from hetero_tvm.frontend import import_onnx
from hetero_tvm.schedules.cuda.tensor_program.scan import scan
from hetero_tvm.targets.cuda.thread_binding import is_bound
from tests.frontend.onnx.helpers import text_model
from tests.schedules.cuda.running import TARGET, compiled

CASES = {
    "one value": ((1,), 0, "float32", "float32", {}),
    "last axis": ((3, 37), 1, "int64", "int64", {}),
    "first axis": ((33, 5), 0, "int32", "int32", {}),
    "middle axis, exclusive": ((2, 65, 3), 1, "int64", "int64", {"exclusive": True}),
    "truth values": ((2, 40), 1, "bool", "int64", {}),
    "products": ((4, 7), 1, "float32", "float32", {"product": True}),
    "products before": ((4, 7), 0, "float32", "float32", {"product": True, "exclusive": True}),
    "three tiles": ((2, 1100), 1, "float32", "float32", {}),
    "three tiles before": ((1100, 2), 0, "int64", "int64", {"exclusive": True}),
}


def expected(x, axis, dtype, product=False, exclusive=False):
    x = x.astype(np.float64 if dtype == "float32" else dtype)
    if exclusive:
        one = np.full_like(np.take(x, [0], axis), 1 if product else 0)
        x = np.concatenate([one, np.delete(x, -1, axis)], axis)
    return (np.cumprod if product else np.cumsum)(x, axis)


def test_numbers(emulated):
    rng = np.random.default_rng(0)
    calls = compiled([scan(*case[:4], **case[4]) for case in CASES.values()])
    for (name, (shape, axis, given, dtype, form)), call in zip(CASES.items(), calls, strict=True):
        whole = rng.integers(0, 2 if given == "bool" else 9, shape)
        x = (rng.standard_normal(shape) if given == "float32" else whole).astype(given)
        (y,) = call([x], [np.full(shape, 7, dtype)])
        # float32 sums in another order: an error of one rounding per doubling of the length.
        np.testing.assert_allclose(y, expected(x, axis, dtype, **form), rtol=3e-6, atol=3e-5, err_msg=name)


def test_models_get_it():
    model = text_model("""
        g (float[2, 9] x) => (float[2, 9] y) <int64 a = {1}> { y = CumSum (x, a) }
    """)
    (task,) = optimize_model(import_onnx(model), target=TARGET).tasks
    assert task.name == "cumsum" and is_bound(task.workload)
