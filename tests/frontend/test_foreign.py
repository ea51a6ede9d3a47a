"""Files that are no models: each is named, with what to do."""

import gzip
import io
import json
import pickle
import zipfile

import numpy as np
import onnx
import pytest

from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError


def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return stream.getvalue()


def saved_array():
    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    "name, content, kind, hint",
    [
        (
            "net.bin",
            archive(net__data_dot_pkl="", net__byteorder=""),
            "a checkpoint of PyTorch",
            "state_dict",
        ),
        (
            "net.ckpt",
            bytes.fromhex("80028a0a6cfc9c46f9206aa850192e"),
            "a checkpoint of PyTorch",
            "state_dict",
        ),
        ("net.pt", archive(net__data_dot_pkl="", net__code__x_dot_py=""), "TorchScript", "torch.jit.load"),
        ("net.pkl", pickle.dumps({"a": 1}), "a pickled object", "Export"),
        ("net.ort", b"\x20\0\0\0ORTM" + bytes(40), "ONNX Runtime's own format", "converted from"),
        ("net.pte", b"\x20\0\0\0ET12" + bytes(40), "ExecuTorch", "Export"),
        ("net.hdf5", b"\x89HDF\r\n\x1a\n", "Keras", "Export"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS", "git lfs pull"),
        ("web.onnx", b"<!DOCTYPE html><html></html>", "a web page", "download"),
        ("net.onnx.gz", gzip.compress(b"model", mtime=0), "a compressed file", "Unpack"),
        ("net.zip", archive(a__model_dot_onnx="x"), "an archive that holds a/model.onnx", "Unpack"),
        ("net.npy", saved_array(), "an array of NumPy", "--inputs"),
        ("net.param", b"7767517\n1 1\n", "ncnn", "Export"),
        ("net.textproto", b"ir_version: 8\ngraph {}", "as text", "onnx.save"),
        ("net.onnxtxt", b"<\n  ir_version: 8\n>", "as text", "onnx.save"),
        ("net.json", b'{"irVersion": "8", "graph": {}}', "as text", "onnx.save"),
        ("config.json", json.dumps({"model_type": "vit"}).encode(), "part of a checkpoint", "folder"),
        ("genai_config.json", b'{"model": {"decoder": {}}}', "onnxruntime-genai", ".onnx"),
    ],
)
def test_a_file_of_another_kind_is_named(name, content, kind, hint, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"is .*{kind}.*, not ") as caught:
        import_model(tmp_path / name)
    assert hint in caught.value.hint


def test_a_model_of_the_same_message_format_is_told_by_its_name(tmp_path):
    (tmp_path / "net.caffemodel").write_bytes(b"\n\x03abc")
    with pytest.raises(ModelError, match="a model of Caffe, not an ONNX model"):
        import_model(tmp_path / "net.caffemodel")


@pytest.mark.parametrize(
    "files, hint",
    [
        (["saved_model.pb"], "SavedModel of TensorFlow"),
        (["config.json", "model.safetensors"], "torch.export"),
        (["a.onnx", "config.json"], "Name the file: a.onnx."),
    ],
)
def test_advice_follows_what_lies_in_a_folder(files, hint, tmp_path):
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelError, match="is a folder, not an ONNX file") as caught:
        import_model(tmp_path)
    assert hint in caught.value.hint


def test_a_model_in_its_binary_form_needs_no_suffix(tmp_path):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2,))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2,))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net")
    assert [spec.name for spec in import_model(tmp_path / "net").signature.inputs] == ["x"]


@pytest.mark.parametrize("name", ["none.json", "none.mlir", "none.tflite", "none.onnx"])
def test_a_file_that_is_not_there_says_what_to_do(name, tmp_path):
    with pytest.raises(ModelError, match="There is no model file") as caught:
        import_model(tmp_path / name)
    assert "Check the path" in str(caught.value)
