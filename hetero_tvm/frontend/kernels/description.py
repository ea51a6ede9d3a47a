"""A kernel description as plain data, read from JSON and checked: every fault is named by its path."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.foreign import foreign_json
from hetero_tvm.frontend.onnx.load import no_such_file
from hetero_tvm.frontend.signature import RESERVED
from hetero_tvm.host.install import extra_command

_MOST_BYTES = 64 << 20
"""Largest file that is read: a description holds shapes, and small constants."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a description; ``value`` is a constant's, ``role`` its name in an operator."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    role: str = ""
    value: np.ndarray | None = None


@dataclass(frozen=True)
class Operator:
    """One operator: what it is called, what it takes and gives, its attributes by name."""

    kind: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    attributes: Mapping[str, Any]
    path: str
    body: str | None = None


@dataclass(frozen=True)
class Description:
    """A fused operator; ``alternatives`` are other ways to compute it, each with a name."""

    name: str
    inputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[Tensor, ...]
    alternatives: tuple[tuple[str, Description], ...] = ()


@functools.lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """JSON schema of a description (draft 2020-12)."""
    return json.loads(resources.files(__package__).joinpath("schema.json").read_text(encoding="utf-8"))


def read_description(path: str | Path) -> Description:
    """Read a file.

    Raises
    ------
    ModelError : it cannot be read, is no JSON, or no kernel description; all faults with their paths.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelError(
                f"{path} is larger than {_MOST_BYTES >> 20} MiB", hint="give large tensors as inputs"
            )
        data = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise no_such_file(path, "*.json") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    return parse_description(data, str(path))


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def parse_description(data: Any, where: str = "the description") -> Description:
    """Check and read a description.

    Raises
    ------
    ModelError : faults of form, or of names, shapes and types; all of them, each with its JSON path.
    """
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise UsageError(
            f"{where} is checked with jsonschema, which is not installed", hint=extra_command("descriptions")
        ) from error

    if (other := foreign_json(data)) is not None:
        raise ModelError(f"{where} is {other[0]}, not a kernel description.", hint=other[1])
    found = [leaf for error in Draft202012Validator(schema()).iter_errors(data) for leaf in _leaves(error)]
    faults = [f"{error.json_path}: {_said(error)}" for error in sorted(found, key=lambda e: e.json_path)]
    if not faults:
        description, faults = _described(data)
    if faults:
        raise ModelError(
            f"{where} is no kernel description.",
            problems=faults[:50],
            hint="the form is in docs/kernel-descriptions.md and frontend/kernels/schema.json",
        )
    return description


def _leaves(error: Any) -> Iterator[Any]:
    """Faults behind one fault of a validator: of alternatives those of the one whose type is meant."""
    from jsonschema.exceptions import best_match

    branches: dict[Any, list[Any]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.schema_path[0], []).append(inner)
    meant = [b for b in branches.values() if not any(e.validator == "type" and not e.path for e in b)]
    if len(meant) != 1:
        yield best_match(error.context) if error.context else error
    else:
        for inner in meant[0]:
            yield from _leaves(inner)


def _said(error: Any) -> str:
    """A validator's message in one line."""
    return str(error.message).replace("\n", " ")[:200]


def _tensors(data: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Tensors of an ``input_desc``, nested once or not, with their paths."""
    for i, item in enumerate(data):
        if isinstance(item, list):
            yield from ((inner, f"{path}[{i}][{j}]") for j, inner in enumerate(item))
        else:
            yield item, f"{path}[{i}]"


def _tensor(data: Any, path: str, faults: list[str]) -> Tensor:
    shape, dtype = tuple(data["shape"]), data["data_type"]
    value = None
    if data.get("value") is not None:
        try:
            value = np.asarray(data["value"], dtype)
            value = np.broadcast_to(value, shape) if value.size == 1 else value.reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            faults.append(f"{path}.value: {error}")
            value = np.zeros(shape, dtype) if np.prod(shape) < 1 << 20 else None
    return Tensor(data["tensor_name"], shape, dtype, path, data.get("name", ""), value)


def _described(data: Any) -> tuple[Description, list[str]]:
    """The description, and what contradicts itself in it."""
    first, faults = _one_way(data, data["op_desc"], "$.op_desc")
    others, names = [], dict(RESERVED)
    for i, way in enumerate(data.get("implementations") or ()):
        path = f"$.implementations[{i}]"
        if way["name"] in names:
            faults.append(f"{path}.name: {way['name']!r} is taken by {names[way['name']]}")
        names[way["name"]] = path
        other, more = _one_way(data, way["op_desc"], f"{path}.op_desc")
        faults += [fault for fault in more if fault.startswith(path) or fault not in faults]
        others.append((way["name"], other))
    return replace(first, alternatives=tuple(others)), faults


def _one_way(data: Any, operators_data: Any, at: str) -> tuple[Description, list[str]]:
    """The description with one of its lists of operators, which is ``at`` a path, and its faults."""
    faults: list[str] = []
    inputs = [_tensor(item, path, faults) for item, path in _tensors(data["input_desc"], "$.input_desc")]
    known: dict[str, Tensor] = {}

    def define(tensor: Tensor) -> None:
        if tensor.name in known:
            faults.append(
                f"{tensor.path}.tensor_name: {tensor.name!r} is defined at {known[tensor.name].path}"
            )
        known[tensor.name] = tensor

    def refer(tensor: Tensor) -> None:
        defined = known.get(tensor.name)
        if defined is None:
            faults.append(f"{tensor.path}.tensor_name: nothing before it gives {tensor.name!r}")
        elif (tensor.shape, tensor.dtype) != (defined.shape, defined.dtype):
            faults.append(
                f"{tensor.path}: {tensor.name!r} is {tensor.dtype}{list(tensor.shape)} here and "
                f"{defined.dtype}{list(defined.shape)} at {defined.path}"
            )

    for tensor in inputs:
        define(tensor)
    operators = []
    for i, item in enumerate(operators_data):
        path = f"{at}[{i}]"
        taken = [_tensor(one, at, faults) for one, at in _tensors(item["input_desc"], f"{path}.input_desc")]
        for tensor in taken:
            if tensor.value is None:
                refer(tensor)
        output = _tensor(item["output_desc"][0], f"{path}.output_desc[0]", faults)
        define(output)
        attributes = {one["name"]: one["value"] for one in item.get("attr") or ()}
        operators.append(Operator(item["name"], tuple(taken), output, attributes, path, item.get("body")))
    outputs = [_tensor(one, f"$.output_desc[{i}]", faults) for i, one in enumerate(data["output_desc"])]
    for tensor in outputs:
        refer(tensor)
    return Description(data["op"], tuple(inputs), tuple(operators), tuple(outputs)), faults
