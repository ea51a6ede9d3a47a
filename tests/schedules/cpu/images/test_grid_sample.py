"""Images read at positions: NaN and infinities in the image and among the positions, many blocks of them."""

import numpy as np

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu.images.grid_sample import Sampling, emit_grid_sample
from tests.schedules.cpu.running import MACHINES, TARGET


def sample(x, grid, taps=2, aligned=True, border=False):
    form = Sampling(x.shape, grid.shape[2:], taps, aligned, border)
    kernel = emit_grid_sample(MACHINES["avx2"], form).with_attr("global_symbol", "main")
    y = tvm.runtime.tensor(np.full((*x.shape[:2], *grid.shape[2:]), 7, "float32"))
    compile_kernels(tvm.IRModule({"main": kernel}), TARGET).jit()["main"](
        tvm.runtime.tensor(x), tvm.runtime.tensor(grid), y
    )
    return y.numpy()


def test_many_positions():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 3, 9, 11), dtype="float32")
    rows, columns = generator.integers(0, 9, (2, 30, 21)), generator.integers(0, 11, (2, 30, 21))
    grid = np.stack([columns / 5 - 1, rows / 4 - 1], 1).astype("float32")
    expected = x[np.arange(2)[:, None, None], :, rows, columns].transpose(0, 3, 1, 2)
    for taps in (1, 2):
        np.testing.assert_allclose(sample(x, grid, taps), expected, atol=1e-5)


def test_what_is_beyond_the_image_spreads_nothing():
    x = np.full((1, 1, 3, 3), np.nan, "float32")
    x[0, 0, 1, 1] = 5
    grid = np.array([[0, 3e38, -np.inf, np.nan, -3], [0, 0, 0, 0, -3]], "float32").reshape(1, 2, 1, 5)
    nearest, between = (sample(x, grid, taps)[0, 0, 0] for taps in (1, 2))
    np.testing.assert_array_equal(nearest[[0, 1, 2, 4]], [5, 0, 0, 0])
    assert between[4] == 0, "neighbours beyond the image are zeros, whatever lies at the border"
    assert np.isnan(between[3]), "an unknown position gives an unknown value"
    edge = sample(x, grid, 1, border=True)[0, 0, 0]
    assert edge[0] == 5 and np.isnan(edge[1:3]).all()
