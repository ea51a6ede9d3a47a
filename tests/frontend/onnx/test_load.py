"""Files that are missing, broken or hostile, and external data: one clear error each."""

import os

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model, import_onnx


@pytest.fixture(scope="module")
def stored():
    return zoo.build("mobilenetv2-tiny").SerializeToString()


def test_missing_file_names_a_near_one(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match="There is no model file") as caught:
        import_model(tmp_path / "modle.onnx")
    assert "Did you mean" in str(caught.value) and "model.onnx" in str(caught.value)


@pytest.mark.parametrize("name", ["HF://someone/Net-1B", "hf://someone/net", "someone/Net-3.2-1B"])
def test_models_of_a_hub_are_fetched_first(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="There is no model file") as caught:
        import_model(name)
    assert f"hf download {name.split('//')[-1]} " in caught.value.hint
    for other in ("missing/net.onnx", "/missing/Net", str(tmp_path / "Net")):
        with pytest.raises(ModelError) as caught:
            import_model(other)
        assert "hf download" not in caught.value.hint


@pytest.mark.parametrize(
    "name, kind", [("net.xml", "OpenVINO"), ("net.pb", "TensorFlow"), ("net.h5", "Keras")]
)
def test_formats_of_others_are_told_by_name(name, kind, tmp_path):
    (tmp_path / name).write_bytes(b"<net/>")
    with pytest.raises(ModelError, match=f"is a .* of {kind}, not an ONNX model"):
        import_model(tmp_path / name)


def test_folder_and_empty_file(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError, match="is a folder, not an ONNX file") as caught:
        import_model(tmp_path)
    assert "Name the file: model.onnx." in str(caught.value)
    with pytest.raises(ModelError, match="is empty"):
        import_model(tmp_path / "model.onnx")


def test_files_beyond_protobuf_are_refused_without_reading(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as stream:
        stream.write(b"\x08\x0a")  # the version of the format: a file of zeros may be a program of JAX
        stream.truncate(3 << 30)  # sparse: takes no room
    with pytest.raises(ModelError, match="cannot be larger than 2 GiB"):
        import_model(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"hello world",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\x08\x07",
        b"\x3a" * 500,
        b"\xff" * 64,
    ],
)
def test_other_bytes(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError):
        import_model(path)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("model.so", b"\x7fELF\x02\x01" + bytes(58), "is a built library, not a model"),
        ("model.safetensors", b"\x02" + bytes(7) + b"{}", "build takes the folder with config.json"),
    ],
)
def test_what_takes_the_place_of_a_model_is_told_by_name(tmp_path, name, data, told):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError) as caught:
        import_model(tmp_path / name)
    assert told in str(caught.value)


def test_truncated_files(tmp_path, stored):
    path = tmp_path / "model.onnx"
    for length in np.linspace(1, len(stored) - 1, 25).astype(int):
        path.write_bytes(stored[:length])
        with pytest.raises(ModelError):
            import_model(path)


@pytest.mark.thorough
def test_garbled_files_give_a_model_error_or_a_model(tmp_path, stored):
    path = tmp_path / "model.onnx"
    generator = np.random.default_rng(0)
    for _ in range(40):
        data = bytearray(stored)
        for place in generator.integers(0, len(data), 4):
            data[place] = generator.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            import_model(path)  # a flipped bit of a weight is still a model
        except ModelError:
            pass


def test_garbled_structure(tmp_path, stored):
    """The same on the graph alone, where each byte matters."""
    model = onnx.ModelProto.FromString(stored)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(array), tensor.name))
    data = model.SerializeToString()
    start = data.index(b"/features")
    generator = np.random.default_rng(1)
    path = tmp_path / "model.onnx"
    for _ in range(40):
        changed = bytearray(data)
        for place in generator.integers(start, min(start + 6000, len(data)), 3):
            changed[place] = generator.integers(0, 256)
        path.write_bytes(bytes(changed))
        try:
            import_model(path)
        except ModelError:
            pass


@pytest.fixture
def external(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(
        zoo.build("resnet50-tiny"),
        path,
        save_as_external_data=True,
        location="net.onnx.data",
        size_threshold=0,
    )
    return path


def _relocate(path, change):
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = change(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())


def test_external_data_is_loaded(external):
    model = import_model(external)
    stored = {t.name: t for t in import_model("zoo:resnet50-tiny").onnx_model.graph.initializer}
    assert all(t.raw_data == stored[t.name].raw_data for t in model.onnx_model.graph.initializer)


@pytest.mark.parametrize("length", [None, "0"])
def test_external_data_without_a_length_is_as_long_as_its_shape(external, length):
    model = onnx.load(external, load_external_data=False)
    for tensor in model.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
        if length is not None:
            tensor.external_data.add(key="length", value=length)
    external.write_bytes(model.SerializeToString())
    stored = {t.name: t for t in import_model("zoo:resnet50-tiny").onnx_model.graph.initializer}
    model = import_model(external).onnx_model
    assert all(t.raw_data == stored[t.name].raw_data for t in model.graph.initializer)


def test_missing_external_data(external):
    (external.parent / "net.onnx.data").unlink()
    with pytest.raises(ModelError, match="external files that cannot be used") as caught:
        import_model(external)
    assert "'net.onnx.data' is missing" in str(caught.value)
    assert str(external.parent) in str(caught.value)
    assert "more" in str(caught.value)


def test_short_external_data(external):
    data = external.parent / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ModelError, match="but 'net.onnx.data' has 1000 bytes"):
        import_model(external)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../secret", "", "..", "."])
def test_external_data_outside_the_folder(external, location):
    (external.parent.parent / "secret").write_bytes(b"x" * 100000)
    _relocate(external, lambda key, value: location if key == "location" else value)
    with pytest.raises(ModelError, match="refused|is missing"):
        import_model(external)


def test_external_data_by_a_way_that_ends_in_the_folder(external):
    (external.parent / "sub").mkdir()
    location = "sub/../net.onnx.data"
    _relocate(external, lambda key, value: location if key == "location" else value)
    assert import_model(external).signature.inputs


def test_links_in_a_circle_are_refused(external):
    data = external.parent / "net.onnx.data"
    data.unlink()
    data.symlink_to(data.name)
    with pytest.raises(ModelError, match="external files that cannot be used"):
        import_model(external)


def test_link_out_of_the_folder_is_refused(external, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data"
    os.replace(external.parent / "net.onnx.data", elsewhere)
    (external.parent / "net.onnx.data").symlink_to(elsewhere)
    with pytest.raises(ModelError, match="outside the folder of the model; refused"):
        import_model(external)


def test_download_caches_link_model_and_data_into_one_folder(external, tmp_path_factory):
    blobs, snapshot = tmp_path_factory.mktemp("blobs"), tmp_path_factory.mktemp("snapshot")
    for name, blob in (("net.onnx", "1f"), ("net.onnx.data", "2e")):
        os.replace(external.parent / name, blobs / blob)
        (snapshot / name).symlink_to(blobs / blob)
    assert import_model(snapshot / "net.onnx").signature.outputs[0].shape == (1, 10)


@pytest.mark.parametrize(
    "bad", [("offset", "-8"), ("length", "-1"), ("length", "x"), ("offset", str(1 << 62))]
)
def test_bad_external_ranges(external, bad):
    _relocate(external, lambda key, value: bad[1] if key == bad[0] else value)
    with pytest.raises(ModelError):
        import_model(external)


def test_model_in_memory_with_external_data(external):
    with pytest.raises(ModelError, match="refers to external data") as caught:
        import_onnx(onnx.load(external, load_external_data=False))
    assert "onnx.load(path)" in str(caught.value)
