"""The judge of an operator that a user wrote for TVM is that operator, compiled by stock TVM."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.errors import AccuracyError, UsageError
from hetero_tvm.frontend.functions.importer import import_function
from hetero_tvm.host.tvm import te
from hetero_tvm.reference import run_reference


def rows(scale=3.0):
    x = te.placeholder((5, 9), name="x")
    return import_function([x, te.compute((5, 9), lambda i, j: x[i, j] * scale, name="y")], name="rows")


def test_the_judge_computes_what_was_written():
    given = np.random.default_rng().standard_normal((5, 9)).astype("float32")
    found = run_reference(rows(), {"x": given})
    np.testing.assert_array_equal(found.float32[0], given * 3)
    assert found.float64[0].dtype == "float64" and "unscheduled" in found.float32_engine


def test_a_wrong_library_is_caught():
    other, mine = rows(3.01), rows()
    built = build_model(optimize_model(mine))
    object.__setattr__(mine, "original", other.original)
    with pytest.raises(AccuracyError, match="rows"):
        built.check()


def test_it_has_no_form_for_other_runtimes():
    with pytest.raises(UsageError, match="another runtime"):
        rows().original.to_onnx()
