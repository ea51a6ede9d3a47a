import json

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.build import open_checkpoint
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder, read_safetensors
from tests.tiny_llama import write, write_safetensors


def test_types_are_read_as_float32(tmp_path):
    values = np.array([[1.5, -2.0, 0.25]], np.float32)
    tensors = {name: values.astype(name) for name in ("float32", "float16", ml_dtypes.bfloat16)}
    tensors = {np.dtype(name).name: array for name, array in tensors.items()} | {
        "mask": np.zeros(3, np.int64)
    }
    folder = SafetensorsFolder(write(tmp_path, {"model_type": "llama"}, tensors))
    for name in ("float32", "float16", "bfloat16"):
        got = folder.array(name)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, values)
    assert "mask" not in folder  # a buffer that no weight is
    assert folder.matrix("float16").dtype == np.float16
    with pytest.raises(ModelError, match="no tensor 'q'"):
        folder.array("q")


def test_several_files_and_the_stop_token_of_generation(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    for part in ("a", "b"):
        write_safetensors(tmp_path / f"{part}.safetensors", {part: np.ones(2, np.float32)})
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    folder = SafetensorsFolder(tmp_path)
    assert "a" in folder and "b" in folder
    assert folder.config["eos_token_id"] == [2, 3]
    index["weight_map"]["c"] = "../c.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not there") as caught:
        SafetensorsFolder(tmp_path)
    assert caught.value.problems == ("../c.safetensors: not a file of this folder",)


def test_parts_that_are_not_there(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    write_safetensors(tmp_path / names[0], {"a": np.ones(2, np.float32)})
    with pytest.raises(ModelError, match=f"but {names[0]}, a part of a model") as caught:
        SafetensorsFolder(tmp_path)
    assert "model.safetensors.index.json" in caught.value.hint
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not there") as caught:
        SafetensorsFolder(tmp_path)
    assert "2 files of weights" in caught.value.hint and names[1] in caught.value.problems[0]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "m.gguf"])
def test_what_git_has_not_fetched_is_told_as_such(name, tmp_path):
    if name.endswith("gguf"):
        pytest.importorskip("gguf")
    (tmp_path / "config.json").write_text("{}")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(ModelError, match="pointer of git-lfs") as caught:
        open_checkpoint(tmp_path / name if name.endswith("gguf") else tmp_path)
    assert "git lfs pull" in caught.value.hint


def header(tmp_path, change):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones((2, 3), np.float32)})
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + size])
    change(entries["a"])
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(data_offsets=[0, 25]),
        lambda e: e.update(data_offsets=[8, 32]),
        lambda e: e.update(data_offsets=[-8, 16]),
        lambda e: e.update(shape=[2, 4]),
        lambda e: e.update(shape=[-2, -3]),
        lambda e: e.update(shape="x"),
        lambda e: e.update(dtype="F4"),
        lambda e: e.pop("dtype"),
    ],
)
def test_damaged_headers(tmp_path, change):
    with pytest.raises(ModelError, match="damaged"):
        read_safetensors(header(tmp_path, change))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 7, b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7]
)
def test_what_is_no_safetensors_file(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="no safetensors file"):
        read_safetensors(path)


def test_what_is_no_folder_of_a_model(tmp_path):
    with pytest.raises(ModelError, match="cannot read"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="no configuration"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="neither"):
        SafetensorsFolder(tmp_path)
