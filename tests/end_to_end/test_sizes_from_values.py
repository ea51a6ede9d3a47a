"""Models whose results have as many elements as values say: built, exported and called."""

import numpy as np
import onnxruntime
import pytest

import hetero_tvm
from hetero_tvm.compile.quantize import quantize_model
from hetero_tvm.errors import InputError, ModelError, UsageError
from tests.frontend.onnx.counted.helpers import model_of
from tests.frontend.onnx.test_counting import DETECTOR

FOUND = """(float[4,5] x) => (float[N] y, int64[2,N] places, float total) {
  half = Constant<value = float {0.5}>() mask = Greater(x, half) places = NonZero(mask)
  rows = Transpose<perm = [1, 0]>(places) y = GatherND(x, rows) total = ReduceSum<keepdims = 0>(y)
}"""


def exported(body, folder):
    model = model_of(body)
    built = hetero_tvm.build_model(
        hetero_tvm.optimize_model(hetero_tvm.import_model(model)), use_shipped=False
    )
    assert built.check().ok
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return hetero_tvm.load(built.export(folder)), session


@pytest.mark.thorough
def test_results_have_their_true_size(tmp_path):
    net, session = exported(FOUND, tmp_path)
    rng = np.random.default_rng(1)
    for x in (rng.random((4, 5)), np.zeros((4, 5)), np.ones((4, 5))):
        x = x.astype("float32")
        for found, wanted in zip(net(x), session.run(None, {"x": x}), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert [spec.name for spec in net.signature.results] == ["y", "places", "total"]
    assert str(net.signature.outputs[0]) == "y: float32[0..20]"
    with pytest.raises(InputError, match="size depends on values"):
        net(x, out=[np.empty(20, "float32"), np.empty((2, 20), "int64"), np.empty((), "float32")])
    pytest.importorskip("torch")
    from hetero_tvm.torch.call import TensorCall

    with pytest.raises(ModelError, match="handed over"):
        TensorCall(net, (0,), (("result", 0),))


def test_eight_bits_cannot_be_compared_with_results_of_another_size():
    with pytest.raises(UsageError, match="how many elements y, places have"):
        quantize_model(hetero_tvm.import_model(model_of(FOUND)), hetero_tvm.build_model)


@pytest.mark.exhaustive
def test_a_detector(tmp_path):
    net, session = exported(DETECTOR, tmp_path)
    rng = np.random.default_rng(2)
    for _ in range(5):
        corner = rng.random((1, 20, 2)).astype("float32")
        boxes = np.concatenate([corner, corner + 0.3 * rng.random((1, 20, 2)).astype("float32")], axis=2)
        given = {"b": boxes, "s": rng.random((1, 3, 20)).astype("float32")}
        for found, wanted in zip(net(**given), session.run(None, given), strict=True):
            np.testing.assert_array_equal(found, wanted)
