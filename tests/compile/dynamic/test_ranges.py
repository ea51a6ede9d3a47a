"""The check inside a library: sizes outside of the range are refused by name, also from C."""

import numpy as np
import pytest

from hetero_tvm.compile.linking import machine
from hetero_tvm.host.tvm import tvm


@pytest.mark.thorough
@pytest.mark.thorough
def test_the_library_itself_refuses_sizes_outside_of_the_range(built, library):
    main = machine(built.executable, [tvm.cpu()])["main"]
    names = [spec.name for spec in built.optimized.signature.inputs]

    def call(shape):
        return main(*(tvm.runtime.tensor(np.ones(shape, "int64")) for _ in names))

    call((1, 2))
    for shape, axis in (((4, 8), 0), ((1, 21), 1), ((1, 1), 1)):
        with pytest.raises(IndexError, match=f"{names[0]}: dimension {axis} .* is outside"):
            call(shape)
