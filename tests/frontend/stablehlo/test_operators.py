"""Each StableHLO operator with a translation is met by a test."""

import re

import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm.frontend.stablehlo.control import CONTROL  # noqa: E402
from hetero_tvm.frontend.stablehlo.operators import SEVERAL, TRANSLATIONS  # noqa: E402
from tests.frontend.stablehlo import (  # noqa: E402
    test_bits,
    test_control,
    test_importer,
    test_indexing,
    test_matrices,
    test_sorting,
    test_windows,
)

UNSEEN = {
    "chlo.erf",
    "chlo.square",
    *(
        f"stablehlo.{name}"
        for name in ("cbrt", "if", "logistic", "reduce_precision", "round_nearest_even", "tan")
    ),
}
"""JAX decomposes them before it exports, or writes them only for other types."""


def test_the_functions_of_these_tests_use_all_of_them():
    text = ""
    for module in (test_importer, test_indexing, test_sorting, test_windows, test_control, test_matrices):
        for function, shapes in module.FUNCTIONS.values():
            text += test_importer.exported(function, shapes).mlir_module()
    for function in test_bits.FUNCTIONS.values():
        text += test_importer.exported(function, [(6,)] * 2, "int32").mlir_module()
    text += test_importer.exported(test_bits.of_floats, [(6,)]).mlir_module()
    met = set(re.findall(r"\b(?:stablehlo|chlo)\.\w+", text))
    assert {*TRANSLATIONS, *SEVERAL, *CONTROL} - UNSEEN - met == set()


def test_borders_of_no_width_are_nothing():
    """``jnp.pad`` broadcasts an edge to every side, those without a border too."""
    from tests.frontend.stablehlo.test_importer import same_as_jax  # XLA begins threads

    same_as_jax(lambda x: jax.numpy.pad(x, ((1, 2), (0, 0), (3, 0)), mode="edge"), [(3, 4, 5)])
