"""Calls of LAPACK without a translation."""

import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
import jax.scipy.linalg as jl  # noqa: E402

from hetero_tvm.errors import UnsupportedOperatorError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo  # noqa: E402
from tests.frontend.stablehlo.test_importer import exported  # noqa: E402


def test_calls_are_refused_by_name_and_by_what_they_compute():
    for function, shape, said in (
        (jl.schur, (4, 4), r"lapack_sgees_ffi \(Schur's form\)"),
        (jnp.linalg.cholesky, (65, 65), "more than 64 rows"),
        (jnp.linalg.eigh, (65, 65), "more than 64 rows"),
    ):
        with pytest.raises(UnsupportedOperatorError, match=said):
            import_stablehlo(exported(function, [shape]))
