"""Normalisation over the channels of images of any number and size."""

import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cpu.rows.normalization import NormalizeSpace
from hetero_tvm.schedules.cpu.rows.normalization_axis import NormalizeAxisSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.extents import Unfit
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of

SPACE = NormalizeAxisSpace()
ONE_THREAD = CpuModel("one", lanes=16, registers=32, threads=1)


@pytest.mark.parametrize("centered, shifted", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("here", [MACHINES["avx2"], ONE_THREAD], ids=["avx2", "one thread"])
@pytest.mark.parametrize("trail", [lambda s: (s, 7), lambda s: (s, s)], ids=["rows", "squares"])
def test_images_of_any_size(centered, shifted, here, trail):
    def make(b, s):
        return Normalization((b,), 6, 1e-5, centered, shifted, trail=trail(s))

    witnesses = witnesses_of(make)
    check(make, kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, here), here))


def test_an_axis_of_any_length_is_refused():
    witnesses = witnesses_of(lambda b, s: Normalization((b,), s, 1e-5, trail=(5, 7)))
    with pytest.raises(Unfit, match="the axis depends on the sizes"):
        kernels.emit(witnesses, SPACE, SPACE.default(witnesses.largest, ONE_THREAD), ONE_THREAD)


@pytest.mark.parametrize("centered, shifted", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("here", [MACHINES["avx2"], ONE_THREAD], ids=["avx2", "one thread"])
def test_rows_of_any_length(centered, shifted, here):
    def make(b, s):
        return Normalization((b, 3), 5 * s, 1e-5, centered, shifted)

    space, witnesses = NormalizeSpace(), witnesses_of(make)
    kernel = kernels.emit(witnesses, space, space.default(witnesses.largest, here), here)
    check(make, kernel)


def test_rows_of_one_length_are_those_of_every_number_of_them():
    space, witnesses = NormalizeSpace(), witnesses_of(lambda b, s: Normalization((b, s), 12, 1e-5))
    assert kernels.emit(witnesses, space, space.default(witnesses.largest, ONE_THREAD), ONE_THREAD) is None
