"""Damage to files: bytes, fields of ONNX messages, members of archives, lines of records."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

Damage = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))


# bytes -----------------------------------------------------------------------------------------
def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def swap_chunks(data: bytes, rng: random.Random) -> bytes:
    cuts = sorted(rng.randrange(len(data)) for _ in range(4))
    parts = [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    parts[1], parts[3] = parts[3], parts[1]
    return b"".join(parts)


def blank_chunk(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.choice((1, 16, 256, 4096)))
    fill = rng.choice((b"\0", b"\xff", bytes([rng.randrange(256)])))
    return data[:begin] + fill * (end - begin) + data[end:]


def insert_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 3, 40))) + data[at:]


def repeat_chunk(data: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:end] + data[begin:end] * rng.choice((1, 3)) + data[end:]


BYTES: tuple[Damage, ...] = (flip_bits, truncate, swap_chunks, blank_chunk, insert_bytes, repeat_chunk)


# ONNX messages ---------------------------------------------------------------------------------
def _on_model(change: Callable[[onnx.ModelProto, random.Random], None]) -> Damage:
    def damage(data: bytes, rng: random.Random) -> bytes:
        model = onnx.ModelProto.FromString(data)
        change(model, rng)
        return model.SerializeToString()

    damage.__name__ = change.__name__
    return damage


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _graphs(attribute.g)
    return found


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice([node for graph in _graphs(model.graph) for node in graph.node])


@_on_model
def wrong_weight_type(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(model.graph.initializer).data_type = rng.choice((0, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 17, 99))


@_on_model
def wrong_weight_shape(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    if not tensor.dims or rng.random() < 0.2:
        tensor.dims.append(rng.choice(NUMBERS))
    else:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)


@_on_model
def short_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    if tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data))]
    else:
        tensor.raw_data = b"abc"


@_on_model
def external_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    tensor.data_location = TensorProto.EXTERNAL
    places = ("/etc/passwd", "../x", "nothing.bin", "", "\0", "weights.bin", ".", "a" * 5000)
    for key, value in (
        ("location", rng.choice(places)),
        ("offset", str(rng.choice(NUMBERS))),
        ("length", rng.choice(("x", str(rng.choice(NUMBERS))))),
    ):
        if rng.random() < 0.8:
            tensor.external_data.add(key=key, value=value)


@_on_model
def missing_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    way = rng.randrange(4)
    if way == 0 or not node.input:
        node.input.append(rng.choice(("nothing", "", "x")))
    elif way == 1:
        node.input[rng.randrange(len(node.input))] = rng.choice(("nothing", ""))
    elif way == 2:
        del node.input[rng.randrange(len(node.input))]
    else:
        del node.input[:]


@_on_model
def other_input(model: onnx.ModelProto, rng: random.Random) -> None:
    """Cycles among them: a node reads what any other makes."""
    node = _node(model, rng)
    names = [name for other in model.graph.node for name in other.output]
    names += [value.name for value in (*model.graph.input, *model.graph.initializer)]
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


@_on_model
def two_origins(model: onnx.ModelProto, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:
        model.graph.node.append(copy.deepcopy(_node(model, rng)))
    elif way == 1:
        model.graph.initializer.append(copy.deepcopy(rng.choice(model.graph.initializer)))
    elif way == 2:
        model.graph.input.append(copy.deepcopy(rng.choice(model.graph.input)))
    else:
        node = _node(model, rng)
        node.output[rng.randrange(len(node.output))] = _node(model, rng).output[0]


@_on_model
def outputs_changed(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    way = rng.randrange(4)
    if way == 0:
        del node.output[:]
    elif way == 1:
        node.output.append("another")
    elif way == 2:
        node.output[0] = ""
    else:
        model.graph.output[0].name = rng.choice(("", "nothing", model.graph.input[0].name))


@_on_model
def node_gone(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


@_on_model
def nodes_shuffled(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


@_on_model
def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
    node = _node(model, rng)
    if rng.random() < 0.8:
        node.op_type = rng.choice([*names, "", "Nothing", "matmul"])
    else:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "me", "ai.onnx"))


@_on_model
def attribute_type(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if not node.attribute or rng.random() < 0.3:
        node.attribute.add(name=rng.choice(("axis", "perm", "to", "shape", "pads", "value")))
    attribute = rng.choice(node.attribute)
    if rng.random() < 0.5:
        attribute.type = rng.randrange(0, 15)
        return
    values: tuple[Any, ...] = (3, 2.5, "text", [1, 2], [1.5], ["a"], [0], [-1, 2**62])
    fresh = helper.make_attribute(attribute.name or "axis", rng.choice(values))
    attribute.CopyFrom(fresh)


@_on_model
def attribute_value(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    attribute = rng.choice(rng.choice(nodes).attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"nothing", b"\xff\xfe", b"VALID", b"SAME_UPPER"))
    elif attribute.type == AttributeProto.INTS:
        if attribute.ints and rng.random() < 0.7:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        elif attribute.ints:
            del attribute.ints[rng.randrange(len(attribute.ints))]
        else:
            attribute.ints.append(rng.choice(NUMBERS))
    elif attribute.type == AttributeProto.TENSOR:
        attribute.t.dims.append(rng.choice(NUMBERS))
    elif attribute.type == AttributeProto.GRAPH:
        del attribute.g.output[:]


@_on_model
def attribute_gone(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice([node for node in model.graph.node if node.attribute])
    at = rng.randrange(len(node.attribute))
    if rng.random() < 0.5:
        del node.attribute[at]
    else:
        node.attribute.append(node.attribute[at])


@_on_model
def shape_of_input(model: onnx.ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info])
    tensor = value.type.tensor_type
    way = rng.randrange(5)
    if way == 0 or not tensor.shape.dim:
        tensor.elem_type = rng.choice((0, 2, 7, 8, 9, 10, 16, 99))
    elif way == 1:
        value.ClearField("type")
    elif way == 2:
        tensor.ClearField("shape")
    elif way == 3:
        tensor.shape.dim.add(dim_value=rng.choice(NUMBERS))
    else:
        tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_value = rng.choice(NUMBERS)


@_on_model
def versions(model: onnx.ModelProto, rng: random.Random) -> None:
    way = rng.randrange(3)
    if way == 0:
        model.ir_version = rng.choice((0, 1, 3, 99, 2**40))
    elif way == 1:
        model.opset_import[0].version = rng.choice((-1, 0, 1, 6, 7, 9, 11, 13, 18, 21, 99, 2**40))
    else:
        del model.opset_import[:]


@_on_model
def constants_changed(model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes, axes, pads: whole numbers in weights become others."""
    whole = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64 and t.raw_data]
    if not whole:
        return
    tensor = rng.choice(whole)
    data = bytearray(tensor.raw_data)
    at = 8 * rng.randrange(len(data) // 8)
    data[at : at + 8] = rng.choice(NUMBERS).to_bytes(8, "little", signed=True)
    tensor.raw_data = bytes(data)


@_on_model
def names_changed(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(("", "a b", "x\ny", "\u202e", "é" * 3000, "%s%n", "../../x", "y", "main", "lv0"))
    rng.choice([*model.graph.node, *model.graph.input, *model.graph.output, model.graph]).name = name


MESSAGES: tuple[Damage, ...] = (
    wrong_weight_type,
    wrong_weight_shape,
    short_weight,
    external_weight,
    missing_input,
    other_input,
    two_origins,
    outputs_changed,
    node_gone,
    nodes_shuffled,
    other_operator,
    attribute_type,
    attribute_value,
    attribute_gone,
    shape_of_input,
    versions,
    constants_changed,
    names_changed,
)


# archives --------------------------------------------------------------------------------------
def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(content: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


def _pick(content: dict[str, bytes], rng: random.Random) -> str:
    return rng.choice(sorted(name for name in content if content[name]))


def member_damaged(data: bytes, rng: random.Random) -> bytes:
    content = members(data)
    name = _pick(content, rng)
    content[name] = rng.choice(BYTES)(content[name], rng)
    return archive_of(content)


def member_gone(data: bytes, rng: random.Random) -> bytes:
    content = members(data)
    del content[_pick(content, rng)]
    return archive_of(content)


def members_swapped(data: bytes, rng: random.Random) -> bytes:
    content = members(data)
    a, b = _pick(content, rng), _pick(content, rng)
    content[a], content[b] = content[b], content[a]
    return archive_of(content)


def member_renamed(data: bytes, rng: random.Random) -> bytes:
    content = members(data)
    name = _pick(content, rng)
    content[rng.choice((name + ".x", "../x", "x/" + name, name.upper()))] = content.pop(name)
    return archive_of(content)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        found.append((value, key))
        _places(inner, found)
    return found


WRONG: tuple[Any, ...] = (None, True, "", "text", [], {}, [[]], -1, 0, 1.5, 2**31, 2**63, 1e308, float("nan"))


def member_field(data: bytes, rng: random.Random) -> bytes:
    """One value somewhere in the program's JSON becomes another, or goes."""
    content = members(data)
    name = rng.choice(sorted(name for name in content if name.endswith(".json")))
    document = json.loads(content[name])
    holder, key = rng.choice(_places(document, []))
    if rng.random() < 0.25:
        del holder[key]
    elif isinstance(holder[key], int) and rng.random() < 0.5:
        holder[key] = rng.choice(NUMBERS)
    else:
        holder[key] = rng.choice(WRONG)
    content[name] = json.dumps(document).encode()
    return archive_of(content)


FOLDERS: tuple[Damage, ...] = (
    member_damaged,
    member_gone,
    members_swapped,
    member_renamed,
    member_field,
    member_field,
    member_field,
)
"""Of files in a folder, which an archive stands for."""
ARCHIVES: tuple[Damage, ...] = (*BYTES, *FOLDERS)


# records ---------------------------------------------------------------------------------------
def record_field(data: bytes, rng: random.Random) -> bytes:
    """One field of one record becomes something else, the knobs of its point included."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    document = json.loads(lines[at])
    holder, key = rng.choice(_places(document, []))
    way = rng.random()
    if way < 0.2:
        del holder[key]
    elif way < 0.4 and isinstance(holder, dict):
        holder["other"] = holder.pop(key)
    else:
        holder[key] = rng.choice((*WRONG, *NUMBERS, [7, 7], "ok", "verified", 1e-30))
    lines[at] = json.dumps(document).encode()
    return b"\n".join(lines) + b"\n"


def records_mixed(data: bytes, rng: random.Random) -> bytes:
    """Points of one kernel under the name of another."""
    lines = [json.loads(line) for line in data.splitlines()]
    a, b = rng.choice(lines), rng.choice(lines)
    a["point"], b["point"] = b.get("point"), a.get("point")
    if rng.random() < 0.5:
        a["key"], b["key"] = b["key"], a["key"]
    a["seconds"] = b["seconds"] = 1e-9  # they win
    return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"


DOCUMENTS: tuple[Damage, ...] = (*BYTES, record_field, record_field, record_field)
"""Of one JSON document, which is a line of records."""
RECORDS: tuple[Damage, ...] = (*DOCUMENTS, records_mixed)
