"""Each StableHLO operator with a translation is met by a test."""

import re

import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm.frontend.stablehlo.operators import TRANSLATIONS  # noqa: E402
from tests.frontend.stablehlo.test_importer import FUNCTIONS, exported  # noqa: E402

UNSEEN = {
    "chlo.erf",
    "chlo.square",
    *(f"stablehlo.{name}" for name in ("cbrt", "logistic", "round_nearest_even", "tan")),
}
"""JAX decomposes them before it exports, or writes them only for other types."""


def test_the_functions_of_the_importers_test_use_all_of_them():
    text = "".join(exported(function, shapes).mlir_module() for function, shapes in FUNCTIONS.values())
    met = set(re.findall(r"\b(?:stablehlo|chlo)\.\w+", text))
    assert set(TRANSLATIONS) - UNSEEN - met == set()
