"""The file as it came judges our conversion of it."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import AccuracyError
from hetero_tvm.frontend.onnx import clean
from hetero_tvm.reference import run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, text_model


def old_resize():
    source = text_model(
        'g (float[1,1,3,4] x) => (float[A,B,C,D] y) { y = Upsample<mode="linear">(x, s) }', opset=9
    )
    return add_weight(source, "s", np.array([1, 1, 2, 3], np.float32))


def test_a_wrong_conversion_is_caught(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(clean, "restore_corners", lambda *arguments: None)
    model = import_model(old_resize())
    assert run_reference(model, sample_inputs(model)).float32_engine.endswith("as it came")
    with pytest.raises(AccuracyError):
        build_model(optimize_model(model), use_shipped=False).check()


def test_a_right_conversion_is_judged_in_float64():
    model = import_model(old_resize())
    reference = run_reference(model, sample_inputs(model))
    assert not reference.float32_engine.endswith("as it came")
    build_model(optimize_model(model), use_shipped=False).check()


def test_a_file_is_read_again(tmp_path):
    path = tmp_path / "old.onnx"
    path.write_bytes(old_resize().SerializeToString())
    model = import_model(str(path))
    assert model.source.proto.opset_import[0].version == 9
    path.unlink()
    assert run_reference(model, sample_inputs(model)).float32
