"""Rows that fill no tile: each is visited once, whatever their number."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tirx, tvm
from hetero_tvm.schedules.cpu.symbolic.tails import last_rows, narrowed
from hetero_tvm.schedules.emit import Kernel, in_powers_of_two, int32
from hetero_tvm.schedules.symbolic import shape_variables
from tests.schedules.cpu.running import TARGET


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_every_row_is_visited_once(rows):
    k = Kernel()
    with k:
        variables = shape_variables(["n"])
        marks = k.argument("marks", (variables["n"], 2), "int32")
        rest = k.let(tirx.truncmod(narrowed(k, variables)["n"], int32(rows)))

        def mark(column):
            def body(first, height):
                for row in range(height):
                    at = [first + row, column]
                    k.store(marks, k.load(marks, at) + 1, at)

            return body

        last_rows(k, rest, rows, lambda height: mark(0)(int32(0), height))
        in_powers_of_two(k, int32(0), rest, rows, mark(1))
    run = compile_kernels(k.function, TARGET).jit()["main"]
    for n in range(1, 2 * rows + 1):
        given = tvm.runtime.tensor(np.zeros((n, 2), "int32"))
        run(given)
        wanted = (np.arange(n) < n % rows).astype("int32")
        np.testing.assert_array_equal(given.numpy(), np.stack([wanted, wanted], 1), err_msg=str(n))
