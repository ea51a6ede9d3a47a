"""Operators on counted tensors, beside onnxruntime."""

import numpy as np
import onnx
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.counted.rules import RULES
from tests.frontend.onnx.counted.helpers import agrees, model_of
from tests.frontend.onnx.counted.test_sources import sparse
from tests.selection import thorough

RNG = np.random.default_rng(8)
FOUND = "i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(w, t)"
ONE = "one = Constant<value = int64[1] {1}>()"
ZERO = "zero = Constant<value = int64[1] {0}>()"


def check(results: str, body: str, empty: bool = True) -> None:
    """``g`` has rows of 6 of ``w``, and is counted along its first axis."""
    x, w = sparse(5), RNG.standard_normal((5, 6)).astype("float32")
    x[-1] = 1  # of none there is a case of its own
    given = [{"x": x, "w": w}, {"x": x * 0 + 1, "w": w}, *([{"x": x * 0, "w": w}] if empty else [])]
    agrees(f"(float[5] x, float[5,6] w) => ({results}) {{ {FOUND} {body} }}", *given)


def test_rules_are_onnx_operators():
    assert {name for name in RULES if not onnx.defs.has(name)} == set()


def test_elementwise():
    check("float[N,6] y, bool[N,6] z", "a = Exp(g) b = Add(a, g) y = Where(z, a, b) z = Less(a, b)")
    check("int64[N,1] y", "d = Constant<value = int64[1] {12}>() u = Add(t, d) y = Div(d, u)")


def test_quantisers():
    number = "s = Constant<value = float {0.05}>() o = Constant<value = uint8 {7}>()"
    check("float[N,6] y, uint8[N,6] q", f"{number} q = QuantizeLinear(g, s, o) y = DequantizeLinear(q, s, o)")
    columns = "s = Constant<value = float[6] {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}>()"
    check(
        "float[N,6] y", f"{columns} q = QuantizeLinear<axis = 1>(g, s) y = DequantizeLinear<axis = -1>(q, s)"
    )


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min", "Mean", "Prod", "L2", "LogSumExp"])
def test_reductions(kind):
    # Of no elements only a sum is defined alike everywhere.
    kept, dropped = f"y = Reduce{kind}(g, zero)", f"z = Reduce{kind}<keepdims = 0>(g, zero)"
    check("float[1,6] y, float[6] z", f"{ZERO} {kept} {dropped}", empty=kind == "Sum")
    check(
        "float[N,1] y, float z",
        f"{ONE} y = Reduce{kind}(g, one) z = Reduce{kind}<keepdims = 0>(g)",
        empty=False,
    )


def test_places_of_extrema():
    check(
        "int64[1,6] y, int64[N] z",
        "y = ArgMax<axis = 0>(g) z = ArgMin<axis = 1, keepdims = 0>(g)",
        empty=False,
    )


def test_softmax_and_running_sums():
    check("float[N,6] y, float[N,6] z", "y = Softmax<axis = 0>(g) z = Softmax<axis = 1>(g)")
    check("float[N,6] y", f"{ZERO} s = Squeeze(zero) y = CumSum<reverse = 1>(g, s)")


def test_views():
    check("float[1,N,6] y", f"{ZERO} y = Unsqueeze(g, zero)")
    check("int64[N] y", f"{ONE} y = Squeeze(t, one)")
    check("float[N,3] y, float[N,3] z", "y, z = Split<axis = 1, num_outputs = 2>(g)")
    check("float[N,8] y", "p = Constant<value = int64[4] {0, 1, 0, 1}>() y = Pad(g, p)")


def test_gathers():
    check("float[N,6] y", f"{ONE} q = Squeeze(t, one) y = Gather<axis = 0>(w, q)")
    check("float[6] y", "k = Constant<value = int64 {-1}>() y = Gather<axis = 0>(g, k)", empty=False)
    check("float[N] y", "k = Constant<value = int64 {2}>() y = Gather<axis = 1>(g, k)")
    check(
        "float[N,2] y",
        "r = ArgMax<axis = 1>(g) r2 = Concat<axis = 1>(r, r) y = GatherElements<axis = 1>(g, r2)",
    )


def test_scatter_writes_what_counts_only():
    for kind in ("none", "add"):
        check("float[5,6] y", f'u = Exp(g) y = ScatterND<reduction = "{kind}">(w, t, u)')


@pytest.mark.parametrize("kind", ["none", "add"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_of_batches_of_rows(kind, axis):
    """As PyTorch's exporter writes ``w[:, mask] = u`` for several planes, with rows in front or behind."""
    turned = "0,1,2" if axis == 0 else "1,0,2"
    body = f"""(float[5] x, float[5,2,3] w) => (float[5,2,3] y) {{
        i = NonZero(x) t = Transpose<perm = [1, 0]>(i) n = Shape<end = 1>(t)
        {ONE} two = Constant<value = int64[1] {{2}}>()
        e = Concat<axis = 0>(n, two) e3 = Concat<axis = 0>(e, one)
        wide = Expand(t, e) rows = Unsqueeze(wide, two) planes = Constant<value = int64[1,2,1] {{0, 1}}>()
        columns = Expand(planes, e3) both = Concat<axis = -1>(rows, columns)
        index = Transpose<perm = [{turned}]>(both) g = GatherND(w, index) u = Exp(g)
        y = ScatterND<reduction = "{kind}">(w, index, u) }}"""
    w = RNG.standard_normal((5, 2, 3)).astype("float32")
    agrees(body, *({"x": np.array(x, "f4"), "w": w} for x in ([0, 1, 0, 2, 1], [1] * 5, [0] * 5)))


def test_scatter_of_elements():
    wide = "e = Shape(g) i6 = Expand(t, e) u = Exp(g)"
    for kind in ("none", "add", "max"):
        check("float[5,6] y", f'{wide} y = ScatterElements<axis = 0, reduction = "{kind}">(w, i6, u)')
    zeros = "none = ConstantOfShape(e)"
    back = "r = ArgMax<axis = 1>(g) r2 = Concat<axis = 1>(r, r) h = GatherElements<axis = 1>(g, r2)"
    check("float[N,6] y", f"{wide} {zeros} {back} y = ScatterElements<axis = -1>(none, r2, h)")
    with pytest.raises(UnsupportedOperatorError, match="counts that need not be equal"):
        check("float[5,6] y", f"{wide} v = Exp(w) y = ScatterElements<axis = 0>(w, i6, v)")


def test_rows_that_are_found_among_found_rows():
    """A mask over key points, or boxes, that another mask has left."""
    first = "r = ReduceSum<keepdims = 0>(g, one) q = Constant<value = float {0.0}>() m = Greater(r, q)"
    check(
        "float[M,6] y, float[M] z",
        f"{ONE} {first} k = NonZero(m) l = Transpose<perm = [1, 0]>(k) y = GatherND(g, l) z = GatherND(r, l)",
    )
    pair = "both = Concat<axis = 1>(t, t)"
    with pytest.raises(UnsupportedOperatorError, match="along a counted axis and others"):
        check("float[N] y", f"{pair} y = GatherND(g, both)")


def test_samples_at_found_points():
    x, image = sparse(5), RNG.random((1, 2, 6, 7)).astype("float32")
    points = RNG.uniform(-1.2, 1.2, (5, 2)).astype("float32")
    agrees(
        """(float[5] x, float[1,2,6,7] m, float[5,2] p) => (float[1,2,1,N] y) {
          i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(p, t)
          two = Constant<value = int64[2] {0, 1}>() w = Unsqueeze(g, two) y = GridSample(m, w) }""",
        {"x": x, "m": image, "p": points},
        {"x": x * 0 + 1, "m": image, "p": points},
    )


def test_concat():
    check("float[N,12] y", "y = Concat<axis = 1>(g, g)")
    check("float[M,6] y", "e = Exp(g) y = Concat<axis = 0>(g, w, e)")


def test_products():
    check("float[N,N] y", "h = Transpose<perm = [1, 0]>(g) y = MatMul(g, h)")
    check("float[6,6] y", "h = Transpose<perm = [1, 0]>(g) y = MatMul(h, g)")
    check("float[N,5] y", "y = Gemm<transB = 1>(g, w)")


def test_one_hot():
    check("float[N,1,5] y", "d = Constant<value = int64 {5}>() v = Constant<value = float[2] {0.0, 1.0}>() "
          "y = OneHot(t, d, v)")  # fmt: skip


def test_boxes_of_regions():
    x, image = sparse(4), RNG.random((1, 2, 8, 8)).astype("float32")
    rois = np.array([[0, 0, 4, 4], [1, 1, 6, 5], [2, 0, 7, 7], [0, 3, 3, 7]], "float32")
    agrees(
        """(float[4] x, float[1,2,8,8] m, float[4,4] r) => (float[N,2,3,3] y, float[N,2,1,1] z) {
          i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(r, t) s = Shape<end = 1>(t)
          b = ConstantOfShape<value = int64[1] {0}>(s)
          y = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>(m, g, b) z = GlobalMaxPool(y)
        }""",
        {"x": x, "m": image, "r": rois},
    )


@pytest.mark.parametrize("scales, tall", [("1, 1, 2, 2", 6), ("1, 1, 1.34, 2", 4)])
def test_images_that_are_resized(scales, tall):
    x, image = sparse(4), RNG.random((4, 2, 3, 3)).astype("float32")
    agrees(
        f"""(float[4] x, float[4,2,3,3] m) => (float[N,2,{tall},6] y) {{
          i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(m, t)
          s = Constant<value = float[4] {{{scales}}}>() y = Resize<mode = "linear">(g, , s)
        }}""",
        {"x": x, "m": image},
    )


def test_regions_that_do_not_count_lie_anywhere():
    image, rois = RNG.random((1, 2, 8, 8)).astype("float32"), np.full((4, 4), 5, "float32")
    agrees(
        """(float[4] x, float[1,2,8,8] m, float[4,4] r) => (float[N,2,3,3] y) {
          i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(r, t) s = Shape<end = 1>(t)
          v = GatherND(x, t) axis = Constant<value = int64[1] {1}>() w = Unsqueeze(v, axis) far = Div(g, w)
          b = ConstantOfShape<value = int64[1] {0}>(s)
          y = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>(m, far, b)
        }""",
        *({"x": np.array(x, "float32"), "m": image, "r": rois} for x in ([0, 1, 0, 2], [0, 0, 0, 0])),
    )


def test_extents_that_are_fixed_are_numbers():
    scalars = "one = Constant<value = int64 {1}>() none = Constant<value = int64 {0}>()"
    classes = (
        "n = Shape(g) k = Gather(n, one) r = Range(none, k, one) row = Constant<value = int64[2] {1, -1}>()"
    )
    check("int64[N,6] y", f"{scalars} {classes} r2 = Reshape(r, row) y = Expand(r2, n)")


def test_all_that_cannot_be_done_is_listed():
    with pytest.raises(UnsupportedOperatorError) as error:
        check("float[N,6] y, float[5,6] z", "a = NonZero(w) b = Transpose<perm = [1, 0]>(a) "
              "e = GatherND(w, b) "
              f"{ONE} c = Unsqueeze(e, one) y = Add(g, c) z = Add(g, w)")  # fmt: skip
    assert "'Add_y' (Add): two operands have counts" in str(error.value)
    assert "'Add_z' (Add): an operand has 5 elements" in str(error.value)


FEATURES = RNG.standard_normal((2, 6)).astype("float32")


def marked(*places: int) -> dict[str, np.ndarray]:
    """Rows of ``w``, of which those at ``places`` are selected, and as many features."""
    x = np.zeros(5, "float32")
    x[list(places)] = 1
    return {"x": x, "w": RNG.standard_normal((5, 6)).astype("float32"), "f": FEATURES}


@pytest.mark.parametrize(
    "body",
    [
        "y = ScatterND(w, t, f)",
        *thorough(["y = ScatterND<reduction = 'add'>(w, t, f)"]),
        *thorough(["g = GatherND(w, t) a = Add(g, f) y = ScatterND(w, t, a)"]),
        *thorough(["g = GatherND(w, t) a = Sub(f, g) y = ScatterND(w, t, a)"]),
    ],
    ids=["written", "added", "computed", "the other way round"],
)
def test_as_many_updates_as_indices(body):
    """Features of an image in the place of its tokens: that there are as many is not known before."""
    body = body.replace("'", '"')
    found = "i = NonZero(x) t = Transpose<perm = [1, 0]>(i)"
    text = f"(float[5] x, float[5,6] w, float[2,6] f) => (float[5,6] y) {{ {found} {body} }}"
    agrees(text, marked(0, 3), marked(3, 4))
    built = build_model(optimize_model(import_model(model_of(text))))
    with pytest.raises(HeteroTVMError, match="as many|selected"):
        built.run(marked(1, 2, 4))


def test_masked_scatter():
    """As PyTorch's exporters write it: the first elements of the source, as many as are selected."""
    agrees(
        "(bool[5,1] x, float[5,6] w, float[20] f) => (float[5,6] y) {"
        "shape = Constant<value = int64[2] {5, 6}>() wide = Expand(x, shape) i = NonZero(wide)"
        f"{ZERO} {ONE} t = Transpose<perm = [1, 0]>(i) all = Shape(t) n = Gather(all, zero)"
        "s = Slice(f, zero, n, zero) y = ScatterND(w, t, s) }",
        *(
            {
                "x": np.array(given, bool)[:, None],
                "w": RNG.standard_normal((5, 6)).astype("float32"),
                "f": RNG.standard_normal(20).astype("float32"),
            }
            for given in ([0, 1, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0])
        ),
    )


_PADS = {
    "pads of one axis": (
        "e = Mul(rest, six) p = Concat<axis = 0>(zero, e) q = Pad(flat, p) y = Reshape(q, shape)"
    ),
    "as PyTorch's exporter writes them": (
        "e = Mul(rest, six) c = Concat<axis = 0>(zero, e) r = Reshape(c, pairs)"
        "t2 = Slice(r, last, all, zero, last)"
        "t3 = Transpose<perm = [1, 0]>(t2) p = Reshape(t3, last) q = Pad(flat, p) y = Reshape(q, shape)"
    ),
    "pads of rows": (
        "p = Concat<axis = 0>(zero, zero, rest, zero) v = Constant<value = float {3.0}>() y = Pad(g, p, v)"
    ),
}


@pytest.mark.parametrize("body", _PADS.values(), ids=_PADS)
def test_a_counted_axis_is_filled_up_to_a_number(body):
    """Exported detectors with their suppression end so: as many rows of boxes as there may be."""
    numbers = {
        "six": [6],
        "seven": [7],
        "last": [-1],
        "all": [-(2**63) + 1],
        "pairs": [-1, 2],
        "shape": [7, 6],
    }
    constants = " ".join(
        f"{name} = Constant<value = int64[{len(v)}] {{{', '.join(map(str, v))}}}>()"
        for name, v in numbers.items()
    )
    agrees(
        f"(float[5] x, float[5,6] w) => (float[7,6] y) {{ {constants} {ZERO} i = NonZero(x)"
        "t = Transpose<perm = [1, 0]>(i) g = GatherND(w, t) flat = Reshape(g, last) s = Shape(g)"
        f"n = Gather(s, zero) rest = Sub(seven, n) {body} }}",
        *(
            {"x": np.array(x, "float32"), "w": RNG.standard_normal((5, 6)).astype("float32")}
            for x in ([0, 1, 0, 1, 1], [1] * 5, [0] * 5)
        ),
    )


def test_a_counted_axis_that_is_padded_otherwise_is_refused():
    with pytest.raises(HeteroTVMError, match="pads"):
        model = model_of(
            f"(float[5] x) => (float[1,n] y) {{ {ZERO} {ONE} i = NonZero(x) s = Shape(i) n = Gather(s, one)"
            "p = Concat<axis = 0>(zero, zero, zero, n) f = Cast<to = 1>(i) y = Pad(f, p) }}".replace(
                "}}", "}"
            )
        )
        optimize_model(import_model(model))
