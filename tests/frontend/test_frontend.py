"""Sources of models: zoo names, files, objects."""

import onnx
import pytest

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend import import_model


def test_file_and_name(tmp_path):
    path = tmp_path / "my net.onnx"
    onnx.save(zoo.build("resnet50-tiny"), path)
    assert import_model(path).name == "my net"
    assert import_model(str(path)).signature == import_model("zoo:resnet50-tiny").signature


def test_other_sources_are_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"no model file model\.tflite"):
        import_model("model.tflite")
    with pytest.raises(UsageError, match="not builtins.int"):
        import_model(3)
    with pytest.raises(ModelError, match="Did you mean zoo:minilm-l6?"):
        import_model("minilm-l6")
    with pytest.raises(ModelError, match="no model 'nothing'"):
        import_model("zoo:nothing")
