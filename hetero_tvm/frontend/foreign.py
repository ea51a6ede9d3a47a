"""Files that are no models of ours: what they are, by their content and name, and what to do with each."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hetero_tvm.errors import ModelError

HEAD = 4096
"""Bytes from the beginning of a file that tell its kind."""

_EXPORT = "torch.export.save(torch.export.export(model.eval(), example_inputs), 'model.pt2')"
_WEIGHTS = f"Make the model in Python, load the weights into it (load_state_dict), and export it: {_EXPORT}."
_SCRIPT = "Export it to ONNX: torch.onnx.export(torch.jit.load(path), inputs, 'model.onnx', dynamo=False)."
_OTHER = "Export what it was made from: ONNX, torch.export, TensorFlow Lite, or a function of JAX."
_AS_TEXT = "Save it in its binary form: onnx.save(onnx.load(path), 'model.onnx')."
_ARRAYS = "Give a model; bench and build take arrays as --inputs FILE.npz."
_PICKLED_BY_TORCH = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
"""Number at the beginning of checkpoints that PyTorch wrote before 1.6."""

_SUFFIXES = {
    ".xml": "a model of OpenVINO",
    ".pb": "a graph of TensorFlow",
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "a model of Keras"),
    ".mlmodel": "a model of Core ML",
    **dict.fromkeys((".engine", ".plan"), "an engine of TensorRT"),
    ".caffemodel": "a model of Caffe",
    ".pdmodel": "a model of PaddlePaddle",
    ".param": "a model of ncnn",
}
_MAGIC = {  # offset and bytes
    (0, b"\x89HDF\r\n"): ("a model of Keras", _OTHER),
    (0, b"\x93NUMPY"): ("an array of NumPy", _ARRAYS),
    (0, b"\x1f\x8b"): ("a compressed file", "Unpack it first (gunzip, tar -xf)."),
    (257, b"ustar"): ("an archive", "Unpack it first (tar -xf)."),
    (4, b"ORTM"): (
        "a model in ONNX Runtime's own format",
        "Give the ONNX file that it was converted from; an .ort file cannot be converted back.",
    ),
    (4, b"TFL3"): ("a model of TensorFlow Lite", "Call the file NAME.tflite."),
    (4, b"ET12"): ("a program of ExecuTorch", _OTHER),
    (0, b"version https://git-lfs"): (
        "a pointer of Git LFS in the place of the file",
        "Fetch the file itself: git lfs pull, or download it again.",
    ),
}


def foreign(path: Path, head: bytes, wanted: str) -> ModelError | None:
    """Error that tells what a file is instead of ``wanted``; None where that cannot be told.

    Parameters
    ----------
    head : its first bytes, ``HEAD`` or more.
    wanted : what it should be, with its article.
    """
    found = _by_content(path, head)
    if found is None and (kind := _SUFFIXES.get(path.suffix.lower())) is not None:
        found = kind, _OTHER
    return None if found is None else ModelError(f"{path} is {found[0]}, not {wanted}.", hint=found[1])


def foreign_folder(path: Path) -> str:
    """Advice for a folder that is given as a model, by what lies in it."""
    if onnx := sorted(p.name for p in path.glob("*.onnx")):
        return f"Name the file: {', '.join(onnx)}."
    if (path / "saved_model.pb").exists():
        return f"It is a SavedModel of TensorFlow. {_OTHER}"
    if (path / "config.json").exists():
        return (
            "Of a language model, build takes the folder with config.json and safetensors; others are "
            f"exported first: {_EXPORT}."
        )
    return "Give the path of an .onnx file; of a language model, build takes the folder with config.json."


def foreign_json(data: object) -> tuple[str, str] | None:
    """Kind of a JSON document that describes no kernel, and what to do with it; None for an unknown one."""
    keys = set(data) if isinstance(data, dict) else set()
    if {"weight_map", "architectures", "model_type"} & keys:
        return "part of a checkpoint of transformers", (
            f"Of a language model, name the folder that it lies in; others are exported first: {_EXPORT}."
        )
    if "irVersion" in keys:
        return "an ONNX model written as text", _AS_TEXT
    if isinstance(data, dict) and isinstance(model := data.get("model"), dict) and "decoder" in model:
        return "a configuration of onnxruntime-genai", "Name the .onnx file beside it."
    return None


def _by_content(path: Path, head: bytes) -> tuple[str, str] | None:
    for (offset, magic), found in _MAGIC.items():
        if head[offset : offset + len(magic)] == magic:
            return found
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        if _PICKLED_BY_TORCH in head[:32]:
            return "a checkpoint of PyTorch: weights and no graph", _WEIGHTS
        return "a pickled object of Python", _OTHER
    if head[8:10] == b'{"' and head[6:8] == b"\0\0":  # length of a header in JSON
        return "a file of weights (safetensors) and no graph", _WEIGHTS
    start = head.lstrip()[:400].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page", "The download met an error or a login: download the file again."
    if start.startswith((b"ir_version:", b"<")) and b"ir_version" in start or b'"irversion"' in start:
        return "an ONNX model written as text", _AS_TEXT
    return None


def _archive(path: Path) -> tuple[str, str] | None:
    """Kind of a zip file, by the names of its members, and what to do with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    if any(name.endswith("/constants.pkl") or "/code/" in name for name in names):
        return "a model of TorchScript", _SCRIPT
    if any(name.endswith("data.pkl") for name in names):
        return "a checkpoint of PyTorch: weights and no graph", _WEIGHTS
    if "model.weights.h5" in names:
        return "a model of Keras", _OTHER
    if names and all(name.endswith(".npy") for name in names):
        return "a file of arrays of NumPy", _ARRAYS
    if models := [name for name in names if name.endswith(".onnx")]:
        return f"an archive that holds {models[0]}", "Unpack it first (unzip)."
    return None
