"""Marks at loops and running sums of programs of open sizes."""

import pytest

pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from hetero_tvm.frontend.stablehlo.open.functions import REVERSE, RUNNING  # noqa: E402
from hetero_tvm.frontend.stablehlo.open.marks import SIZED_ROUNDS  # noqa: E402
from tests.frontend.stablehlo.open.test_functions import refined, serves  # noqa: E402


def over_rows(x):
    return lax.scan(lambda state, row: (state * 0.9 + row, state.sum()), jnp.zeros(8), x)


def over_columns(x):
    return lax.fori_loop(0, 8, lambda i, state: state * x[:, i], jnp.ones(x.shape[0]))


def until_small(x):
    return lax.while_loop(lambda state: jnp.abs(state).max() > 0.1, lambda state: state * 0.5, x)


@pytest.mark.parametrize(
    "function, is_marked", [(over_rows, True), (over_columns, False), (until_small, False)]
)
def test_loops_over_open_axes_alone_are_marked(function, is_marked):
    text = refined(function, 3)
    assert "stablehlo.while" in text and (SIZED_ROUNDS in text) == is_marked


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("is_reverse", [False, True])
def test_running_sums_know_their_axis_at_one_element(rows, is_reverse):
    text = refined(lambda x: lax.cumsum(x, 0, reverse=is_reverse), rows)
    assert f"{RUNNING} = 0" in text and (REVERSE in text) == is_reverse


@pytest.mark.thorough
@pytest.mark.parametrize("is_reverse", [False, True])
def test_a_scan_over_an_open_axis_is_one_library(is_reverse):
    def function(x):
        return lax.scan(lambda c, v: (jnp.tanh(c + v), c * 2), jnp.zeros(8), x, reverse=is_reverse)

    serves(function, (1, 4, 9))
