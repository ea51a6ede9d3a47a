"""Products whose rows are counted at run time: every tail, with and without a last narrow panel."""

import pytest

from hetero_tvm.host.tvm import tirx, tvm_ffi
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.gated_matmul import GatedMatmulSpace
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, choices_after_simplifying, witnesses_of

AVX2 = MACHINES["avx2"]


def emitted(make, space):
    witnesses = witnesses_of(make)
    point = kernels.kept_decisions(space, space.default(witnesses.largest, AVX2))
    function = kernels.emit(witnesses, space, point, AVX2)
    return function, space.pack(witnesses.largest, point, AVX2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("n", "k", "epilogue"),
    [
        (50, 37, ("bias", "gate", "gelu_erf", "residual")),
        pytest.param(96, 64, ("bias",), marks=pytest.mark.exhaustive),
        pytest.param(8, 3, (), marks=pytest.mark.exhaustive),
    ],
)
def test_products_of_any_number_of_rows(n, k, epilogue):
    def make(b, s):
        return Matmul((b, s), n, k, epilogue)

    check(make, *emitted(make, MatmulSpace()))


def test_the_simplifier_does_not_copy_choices():
    function = emitted(lambda b, s: Matmul((b, s), 96, 64), MatmulSpace())[0]
    assert choices_after_simplifying(function) < 4


def test_rows_that_are_a_multiple_of_a_batch():
    """The branch for a few rows is one for none here, and those are no divisor."""

    def make(b, s):
        return Matmul((b, 64), 32, 64, ("residual",))

    space, machine = MatmulSpace(), MACHINES["avx512"]
    point = {"tile": (8, 2), "row_blocks": 1, "unroll": 4, "prefetch": 1, "k_blocks": 1}
    witnesses = witnesses_of(make)
    check(make, kernels.emit(witnesses, space, point, machine), space.pack(witnesses.largest, point, machine))


@pytest.mark.exhaustive
def test_gated_products_of_any_number_of_rows():
    def make(b, s):
        return GatedMatmul((b, s), 40, 24, "silu", True)

    check(make, *emitted(make, GatedMatmulSpace()))


@pytest.mark.parametrize(("n", "branches"), [(64, 1), (4096, 0)])
def test_few_rows_of_small_weights_stay_on_the_calling_thread(n, branches):
    """Waking another thread takes longer than such a product."""

    def make(b, s):
        return Matmul((b, s), n, 64, ())

    shares = []

    def note(branch):
        both = [str(case) for case in (branch.then_case, branch.else_case) if case is not None]
        shares.append(sorted("T.parallel" in text for text in both))
        return branch

    function = emitted(make, MatmulSpace())[0]
    tvm_ffi.structural_map(function, (tirx.IfThenElse, note), order="post")
    assert shares.count([False, True]) == branches and "T.parallel" in str(function)
