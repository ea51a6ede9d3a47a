"""Models with counted tensors, cleaned and run by onnxruntime, beside the same models as they came."""

import numpy as np
import onnx.parser
import onnxruntime

from hetero_tvm.frontend.onnx.clean import clean
from hetero_tvm.frontend.onnx.counting import counts_of
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.relax import supported_operators


def model_of(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {body}')


def agrees(body: str, *inputs: dict[str, np.ndarray]) -> None:
    """Assert that a cleaned model gives, cut to its counts, what onnxruntime makes of the model itself."""
    model = model_of(body)
    cleaned = clean(detached(model), supported_operators(), {}).proto
    ours, theirs = (_session(proto) for proto in (cleaned, model))
    for value in cleaned.graph.output:
        assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim), value
    names = [value.name for value in cleaned.graph.output]
    counts = counts_of(cleaned)
    for given in inputs:
        wanted = theirs.run(None, given)
        found = ours.run(None, given)
        for value, want in zip(model.graph.output, wanted, strict=True):
            have = found[names.index(value.name)]
            cut = [slice(None)] * have.ndim
            for axis, place in counts.get(value.name, ()):
                cut[axis] = slice(int(found[place]))
            have = have[tuple(cut)]
            assert have.shape == want.shape and have.dtype == want.dtype, value.name
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6, err_msg=value.name)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
