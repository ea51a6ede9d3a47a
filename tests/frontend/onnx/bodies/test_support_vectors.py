"""Support vector machines compute what ONNX Runtime computes."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.reference.running import run_double
from tests.frontend.onnx.bodies.test_learning import RANDOM, X, model

ort = pytest.importorskip("onnxruntime")
ROWS = RANDOM.normal(size=(40, 3)).astype("float32")


def classifier(classes, kernel="RBF", probable=False, **others):
    vectors, pairs = [2, 1, 3, 2][:classes], classes * (classes - 1) // 2
    given = {
        "kernel_type": kernel, "kernel_params": [0.3, 0.5, 2.0], "vectors_per_class": vectors,
        "support_vectors": RANDOM.normal(size=3 * sum(vectors)).tolist(),
        "coefficients": RANDOM.normal(size=(classes - 1) * sum(vectors)).tolist(),
        "rho": (RANDOM.normal(size=pairs) / 20).tolist(), "classlabels_ints": [7, 3, 9, 1][:classes],
    }  # fmt: skip
    if probable:
        given |= {"prob_a": [-2.0] * pairs, "prob_b": RANDOM.normal(size=pairs).tolist()}
    return "SVMClassifier", [ROWS], ["int64", "float32"], given | others


CASES = {
    **{kernel: ("SVMRegressor", [X], ["float32"],
                {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "n_supports": 4, "rho": [0.7],
                 "coefficients": [1.0, -0.5, 0.25, 2.0], "support_vectors": RANDOM.normal(size=12).tolist()})
       for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID")},
    "two classes": classifier(2),
    "logistic": classifier(2, post_transform="LOGISTIC"),
    "probability": classifier(2, probable=True),
    "three classes": classifier(3, "POLY"),
    "softmax": classifier(3, "LINEAR", post_transform="SOFTMAX"),
    "probabilities": classifier(3, probable=True),
    "four classes": classifier(4, "SIGMOID", probable=True),
    "without vectors": ("SVMClassifier", [ROWS], ["int64", "float32"],
                        {"coefficients": RANDOM.normal(size=9).tolist(), "rho": [0.3],
                         "kernel_type": "LINEAR", "kernel_params": [0.0] * 3,
                         "classlabels_ints": [7, 3, 9]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_against_onnxruntime(case):
    kind, inputs, results, attributes = case
    made = model(kind, inputs, results, **attributes)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [f"y{n}" for n in range(len(results))]
    ours = run_double(import_onnx(made).clean, {"x0": inputs[0]}, names)
    for name, their in zip(names, session.run(names, {"x0": inputs[0]}), strict=True):
        assert ours[name].shape == their.shape
        np.testing.assert_allclose(ours[name], their, rtol=2e-5, atol=1e-5)


def test_forms_without_meaning_are_refused():
    kind, inputs, results, attributes = classifier(2, post_transform="SOFTMAX")
    with pytest.raises(UnsupportedOperatorError, match="post_transform but LOGISTIC"):
        import_onnx(model(kind, inputs, results, **attributes))
