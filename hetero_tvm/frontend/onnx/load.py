"""Reading of ONNX files: bytes, protobuf, external data.  Every defect of a file is a ModelError."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from hetero_tvm.errors import ModelError, shortened
from hetero_tvm.frontend.foreign import HEAD, foreign, foreign_folder
from hetero_tvm.frontend.limits import check_size, current_limits
from hetero_tvm.frontend.onnx.graph.constants import stored_bytes, subgraphs
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.stored import StoredModel, is_stub, stored_array, stub
from hetero_tvm.host import mapped
from hetero_tvm.host.files import odd_kind

#: Protobuf cannot hold more in one message.
_LARGEST_FILE = 2**31 - 1


def load_stored(path: Path) -> StoredModel:
    """Load an ONNX file with its external data; large weights are arrays.

    Raises
    ------
    ModelError : the file is missing, empty, truncated, too large, not ONNX, beyond a bound of
        ``limits.py``, or its external data is missing, too short, or lies outside the folder of the model.
    """
    data = _read(path)
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, RecursionError, MemoryError, ValueError) as error:
        raise _not_onnx(path, data) from error
    if not model.HasField("graph"):
        raise foreign(path, data[:HEAD], "an ONNX model") or ModelError(
            f"{path} is not an ONNX model: it holds no graph.",
            hint="Give a file written by an ONNX exporter.",
        )
    check_size(model, current_limits())  # before anything goes through all nodes
    del data
    stored = detached(model)
    del model  # it has a copy of what is apart by now
    return StoredModel(stored.proto, {**stored.arrays, **_load_external(stored.proto, path)})


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Tensors stored in a model: initializers and node attributes, subgraphs and functions too."""
    stack: list = [model.graph]
    for function in model.functions:
        stack.extend(function.node)
    while stack:
        item = stack.pop()
        if isinstance(item, onnx.GraphProto):
            yield from item.initializer
            stack.extend(item.node)
            continue
        for attribute in item.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            stack.extend(subgraphs(attribute))


def _not_onnx(path: Path, data: bytes) -> ModelError:
    """Error for a file that does not parse; what often takes the place of a model is told by name."""
    if data.startswith(b"\x7fELF"):
        return ModelError(
            f"{path} is a built library, not a model.",
            hint="Name the model that it was built from; bench, profile, inspect and load() take libraries.",
        )
    if path.suffix.lower() == ".safetensors":
        return ModelError(
            f"{path} holds weights and no graph.",
            hint="For a language model, build takes the folder with config.json; others are exported first: "
            "torch.export, or an ONNX exporter.",
        )
    if (error := foreign(path, data[:HEAD], "an ONNX model")) is not None:
        return error
    return ModelError(
        f"{path} is not an ONNX model, or it is truncated ({len(data)} bytes).",
        hint="Check that the download or export finished; Git LFS pointers must be pulled first.  "
        "Subgraphs more than 30 deep inside one another cannot be read either.",
    )


def _read(path: Path) -> bytes:
    """Content of a file; every reason why it cannot be read is a :class:`ModelError`."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder, not an ONNX file.", hint=foreign_folder(path))
    if (kind := odd_kind(path)) is not None:
        raise ModelError(f"{path} is {kind}, not an ONNX file.", hint="Give the path of an .onnx file.")
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"{path} is empty.", hint="Export or download the model again.")
        if size > _LARGEST_FILE:
            raise ModelError(
                f"{path} has {size} bytes; an ONNX file cannot be larger than 2 GiB.",
                hint="Save the model with external data (onnx.save(..., save_as_external_data=True)).",
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise no_such_file(path, "*.onnx") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error


def no_such_file(path: Path, pattern: str) -> ModelError:
    """Error for a missing file; names one beside it that matches ``pattern`` and is called alike."""
    near = [p.name for p in path.parent.glob(pattern)] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, near, n=1)
    hint = "Check the path; zoo models are zoo:NAME."
    if close:
        hint = f"Did you mean {path.parent / close[0]}?"
    elif _is_of_a_hub(path):
        name = "/".join(path.parts[-2:])
        hint = f"A model of a hub is fetched first (hf download {name} --local-dir DIR); name its folder."
    return ModelError(f"There is no model file {path}.", hint=hint)


def _is_of_a_hub(path: Path) -> bool:
    """Whether a name that is no file is ``OWNER/NAME``, with or without ``hf://``."""
    if path.parts[:1] in (("hf:",), ("HF:",)):
        return len(path.parts) == 3
    bare = len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists()
    return bare and path.suffix.lower() != ".onnx"


def _load_external(model: onnx.ModelProto, path: Path) -> dict[str, np.ndarray]:
    """Bring external data into the model, large weights as arrays; one error lists what fails."""
    external = [t for t in tensors(model) if t.data_location == TensorProto.EXTERNAL and not is_stub(t)]
    names = Counter(tensor.name for tensor in model.graph.initializer)
    weights = {id(tensor): tensor for tensor in model.graph.initializer if names[tensor.name] == 1}
    arrays: dict[str, np.ndarray] = {}
    problems = []
    for tensor in external:
        try:
            file, offset, length = _external_part(tensor, path)
            with file.open("rb") as stream:
                dtype = stored_array(tensor, length) if tensor.name and id(tensor) in weights else None
                if dtype is not None:
                    dims = tuple(tensor.dims)
                    arrays[tensor.name] = mapped.mapped_part(stream, offset, length).view(dtype).reshape(dims)
                    tensor.CopyFrom(stub(tensor.name, tensor.data_type, dims))
                    continue
                stream.seek(offset)
                tensor.raw_data = stream.read(length)
        except (ModelError, OSError, RuntimeError, ValueError, OverflowError, EOFError) as error:
            problems.append(f"{tensor.name or '(unnamed tensor)'}: {error}")
            continue
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    if problems:
        raise ModelError(
            f"{path} keeps weights in external files that cannot be used.",
            problems=shortened(problems),
            hint=f"Put the data files that were written with the model into {path.parent.resolve()}.",
        )
    return arrays


def _external_part(tensor: TensorProto, path: Path) -> tuple[Path, int, int]:
    """File, offset and length of an external tensor; refuses files outside the folder of the model."""
    entry = {item.key: item.value for item in tensor.external_data}
    location = entry.get("location", "")
    target = _inside(path, location)
    if not target.is_file():
        raise ModelError(f"external data file {location!r} is missing")
    offset = int(entry.get("offset", 0) or 0)
    available = target.stat().st_size - offset
    length = int(entry.get("length", 0) or 0)
    if not length:  # as much as its shape says, also of a longer file
        needed = stored_bytes(tensor)
        length = available if needed is None else needed
    if offset < 0 or length < 0 or length > available:
        raise ModelError(
            f"needs {length} bytes at offset {offset}, but {location!r} has {target.stat().st_size} bytes"
        )
    return target, offset, length


def _inside(path: Path, location: str) -> Path:
    """Resolve a location relative to the model; a file must not read the rest of the disk."""
    refusal = ModelError(f"external data file {location!r} lies outside the folder of the model; refused")
    if not location or "\0" in location or Path(location).is_absolute():
        raise refusal
    target = (path.parent / location).resolve()
    # Download caches keep a model and its data as links into one blob folder: allowed when the
    # model itself is such a link and both end in the same folder.
    allowed = {path.parent.resolve()}
    if path.is_symlink():
        allowed.add(path.resolve().parent)
    if not any(target.is_relative_to(folder) for folder in allowed):
        raise refusal
    return target
