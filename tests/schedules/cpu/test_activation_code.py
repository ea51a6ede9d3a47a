"""Code of activations: the table of AVX-512 where it fits, polynomials elsewhere."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm import host
from hetero_tvm.codegen import vector_math
from hetero_tvm.codegen.avx512 import GELU_ERF
from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import MACHINES, compiled

TABLE = dataclasses.replace(MACHINES["avx512"], features=("avx512f",))


def test_every_activation_of_the_contracts_has_vector_code():
    assert set(vector_math.ACTIVATIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize(
    "machine", [MACHINES["avx2"], MACHINES["avx512"], dataclasses.replace(TABLE, lanes=8)]
)
def test_without_avx512_there_is_nothing_to_import(machine):
    assert ActivationCode(("bias", "gelu_erf"), machine).imports == ()


def test_the_table_is_imported_for_gelu_alone():
    (source,) = ActivationCode(("bias", "gelu_erf"), TABLE).imports
    assert f"@{GELU_ERF}" in source
    assert ActivationCode(("bias", "relu"), TABLE).imports == ()


@pytest.mark.skipif("avx512f" not in host.cpu_features(), reason="this CPU has no AVX-512")
def test_whole_vectors_take_the_table_and_narrow_ones_the_polynomial():
    activations = ActivationCode(("gelu_erf",), TABLE)
    k = Kernel()
    with k:
        x, y = k.argument("x", (24,)), k.argument("y", (24,))
        with k.imported(*activations.imports):
            for start, width in ((0, 16), (16, 8)):
                at = [k.ramp(start, width)]
                k.store(y, activations.apply("gelu_erf", k.load(x, at), width), at)
    assert k.function.script().count(GELU_ERF) >= 1
    (run,) = compiled([(k.function, (24,))])
    x = np.linspace(-6, 6, 24, dtype="float32")
    np.testing.assert_allclose(run(x), ACTIVATIONS["gelu_erf"](x.astype("float64")), atol=3e-6)
