"""Images in bfloat16 between convolutions of it: which, which not, and the same numbers to the last bit."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import FuseConv2d
from hetero_tvm.relax_passes.fusions.integers.bf16_convolutions import RoundConvolutions
from hetero_tvm.relax_passes.storage.halved_images import HalveImages
from hetero_tvm.relax_passes.storage.layout import BlockImages
from hetero_tvm.schedules.cpu.dots import halves_for
from hetero_tvm.targets.registry import parse_target
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.relax_passes.graphs import calls, constant, contracts, fuse, module, names_of, op, weights

FLOAT, HALF = "float32", "bfloat16"
multiplies = pytest.mark.skipif(halves_for(parse_target("cpu").machine) is None, reason="no avx512_bf16")


def conv(emit, x, filters=4, kernel=3, seed=0):
    w = constant(weights(filters, int(x.ty.shape[1]), kernel, kernel, seed=seed) * 0.3)
    return emit(op.nn.conv2d(x, w, padding=kernel // 2))


def halved(body, claims=lambda op: True):
    before = module({"x": (1, 8, 6, 5)}, body)
    rules = FuseConv2d(), BlockImages(4, lambda op: True), RoundConvolutions(claims, lambda op: True)
    after, names, report = fuse(before, *rules, HalveImages(claims))
    assert names_of(before) <= set().union(*names.values())
    found = [(c.x_dtype, c.y_dtype) for c in contracts(after, "bf16_conv2d")]
    moved = sum(str(var.ty.dtype) == HALF for var in _moved(after))
    assert report.fusions.get("halved_images", 0) == sum(y == HALF for _, y in found) + moved
    return found, calls(after)


def _moved(after):
    for block in after["main"].body.blocks:
        for binding in block.bindings:
            if getattr(getattr(binding.value, "op", None), "name", "") in (
                "relax.concat",
                "relax.strided_slice",
            ):
                yield binding.var


def test_what_convolutions_alone_read():
    found, _ = halved(lambda e, x: conv(e, e(op.nn.relu(conv(e, conv(e, x), seed=1))), seed=2))
    assert found == [(FLOAT, HALF), (HALF, HALF), (HALF, FLOAT)]


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: e(op.add(conv(e, y := conv(e, x)), y)),  # a residual
        lambda e, x: (conv(e, y := conv(e, x)), y),  # a result
        lambda e, x: e(op.multiply(conv(e, y := conv(e, x)), e(op.tanh(y)))),
        lambda e, x: conv(e, e(op.tanh(e(op.exp(conv(e, x)))))),  # an image that no convolution gives
    ],
    ids=["residual", "result", "activation", "elementwise"],
)
def test_what_others_read_or_give(body):
    found, _ = halved(body)
    assert found == [(FLOAT, FLOAT)] * 2


def test_a_kernel_that_the_target_lacks():
    claims = lambda op: getattr(op, "y_dtype", FLOAT) == FLOAT  # noqa: E731
    assert halved(lambda e, x: conv(e, conv(e, x)), claims)[0] == [(FLOAT, FLOAT)] * 2


@pytest.mark.parametrize(("pooled", "expected"), [(4, HALF), (16, FLOAT)])
def test_concatenations_of_mostly_convolutions(pooled, expected):
    """Parts that no convolution gives are rounded for it, unless they are the larger share."""

    def body(emit, x):
        first = conv(emit, x)
        other = emit(op.tanh(emit(op.exp(conv(emit, x, pooled, seed=1)))))
        whole = emit(op.concat([first, conv(emit, first, seed=2), other], 1))
        return conv(emit, whole, kernel=1, seed=3)

    found, made = halved(body)
    assert found[-1] == (expected, FLOAT) and made.get("astype", 0) == (expected == HALF)


def test_slices_go_along():
    """Both halves of a split are read by convolutions alone: no kernel reads the whole in float32."""

    def body(emit, x):
        whole = conv(emit, x, 8)
        first, second = (emit(op.strided_slice(whole, [1], [n], [n + 4], [1])) for n in (0, 4))
        return emit(op.add(*(conv(emit, part, kernel=1, seed=1) for part in (first, second))))

    assert halved(body)[0] == [(FLOAT, HALF), (HALF, FLOAT), (HALF, FLOAT)]


@multiplies
@pytest.mark.thorough
def test_numbers_are_the_same_to_the_last_bit(tmp_path):
    model = text_model(
        """g (float[1,64,30,30] x) => (float[1,64,15,15] y) {
          a = Conv<pads = [0,0,0,0]>(x, w1)  r = Relu(a)
          b = Conv<pads = [1,1,1,1]>(r, w3)  c = Conv<pads = [1,1,1,1]>(b, w3)
          p = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(x)
          j = Concat<axis = 1>(r, b, c, p)
          d = Conv<pads = [0,0,0,0], strides = [2,2]>(j, w2)  y = Sigmoid(d)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (64, 64, 1, 1)), ("w3", (64, 64, 3, 3)), ("w2", (64, 256, 1, 1))):
        add_weight(model, name, (rng.standard_normal(shape) / 8).astype(np.float32))
    x = rng.standard_normal((1, 64, 30, 30)).astype(np.float32)
    results = []
    for disabled in ((), ("halved_images",)):
        plan = optimize_model(import_model(model), target="cpu", precision="bf16", disable=disabled)
        made = build_model(plan, logs=tmp_path, use_shipped=False)
        results.append(made.run({"x": x})[0])
        halves = [kernel for kernel in made.kernels if "halves" in kernel["kernel"]]
        assert bool(halves) == (not disabled)
    np.testing.assert_array_equal(*results)
