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
    with pytest.raises(UsageError, match="not int"):
        import_model(3)
    with pytest.raises(ModelError, match="Did you mean zoo:minilm-l6?"):
        import_model("minilm-l6")
    with pytest.raises(ModelError, match="no model 'nothing'"):
        import_model("zoo:nothing")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("sklearn.ensemble._forest", "skl2onnx.to_onnx"),
        ("keras.src.models.model", "model.export('model.onnx'"),
        ("torch.nn.modules.linear", "torch.export.export"),
        ("mine", None),
    ],
)
def test_models_of_other_packages_are_told_how_to_be_exported(module, told):
    source = type("Model", (), {"__module__": module})()
    with pytest.raises(UsageError, match=f"not {module}.Model") as caught:
        import_model(source)
    assert told in caught.value.hint if told else caught.value.hint is None


def test_functions_may_be_exported_by_jax_and_none_is_told_plainly():
    with pytest.raises(UsageError, match="not function") as caught:
        import_model(lambda x: x)
    assert "jax.export.export(jax.jit(function))" in caught.value.hint
    with pytest.raises(UsageError, match=r"not NoneType\."):
        import_model(None)
