"""``python -m tests.campaign.onnx_bombs``: small ONNX models that ask for far too much.

Each is read in a process of its own, and must end with one of our errors, or with a model that is read,
within bounds of memory and processor time (the command judges both; the quick tests look at the end
and at memory).
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST_BYTES = 2 << 30
MOST_SECONDS = 10.0
FLOAT = TensorProto.FLOAT

Bomb = Callable[[Path], "onnx.ModelProto | Path"]
"""Makes the model, or writes its file in a folder."""


def model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    shape: Sequence[int] = (4,),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Model with one input ``x`` and one output ``y`` of one dimension."""
    graph = helper.make_graph(
        list(nodes),
        "bomb",
        [helper.make_tensor_value_info("x", FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", FLOAT, ["n"])],
        list(initializers),
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def ints(name: str, values: Sequence[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def floats(name: str, count: int = 1) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(count, np.float32), name)


def summed(name: str) -> list[onnx.NodeProto]:
    """Nodes that add the sum of a tensor to ``x``."""
    return [
        helper.make_node("ReduceSum", [name], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]


def _function(name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["a"], ["b"], list(nodes), imports)


def _call(name: str, source: str, result: str) -> onnx.NodeProto:
    return helper.make_node(name, [source], [result], domain="f")


def billion_laughs(levels: int, width: int) -> onnx.ModelProto:
    """Functions of which each calls the next ``width`` times."""
    functions = [_function("f0", [helper.make_node("Relu", ["a"], ["b"])])]
    for level in range(1, levels):
        names = ["a", *(f"t{i}" for i in range(width - 1)), "b"]
        calls = [_call(f"f{level - 1}", a, b) for a, b in zip(names, names[1:], strict=False)]
        functions.append(_function(f"f{level}", calls))
    return model([_call(f"f{levels - 1}", "x", "y")], functions=functions)


def recursive_function(length: int) -> onnx.ModelProto:
    """Functions that call one another in a circle."""
    functions = [_function(f"f{i}", [_call(f"f{(i + 1) % length}", "a", "b")]) for i in range(length)]
    return model([_call("f0", "x", "y")], functions=functions)


def doubling(kind: str, steps: int, *, constant: bool) -> onnx.ModelProto:
    """Chain of nodes of which each doubles what came before, of a constant or of the input."""
    name, nodes = "c" if constant else "x", []
    weights = [floats("c", 4), ints("twice", [2]), floats("scales", 1)]
    for step in range(steps):
        result = f"d{step}"
        inputs = {
            "Concat": [name, name],
            "Tile": [name, "twice"],
            "Expand": [name, f"shape{step}"],
            "Pad": [name, f"pads{step}"],
        }[kind]
        if kind == "Expand":
            weights.append(ints(f"shape{step}", [2, *[1] * (step + 1)]))
        if kind == "Pad":
            weights.append(ints(f"pads{step}", [0, 4 << step]))
        nodes.append(helper.make_node(kind, inputs, [result], **({"axis": 0} if kind == "Concat" else {})))
        name = result
    return model([*nodes, *summed(name)], weights)


def resized(steps: int) -> onnx.ModelProto:
    """Chain of Resize nodes of which each doubles height and width."""
    nodes, name = [], "c"
    for step in range(steps):
        nodes.append(helper.make_node("Resize", [name, "", "scales"], [f"d{step}"], mode="nearest"))
        name = f"d{step}"
    nodes += [
        helper.make_node("ReduceSum", [name], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((1, 1, 2, 2), np.float32), "c"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
    ]
    return model(nodes, weights)


def filled(dims: Sequence[int]) -> onnx.ModelProto:
    """Sum of a ConstantOfShape of these dimensions."""
    nodes = [
        helper.make_node("ConstantOfShape", ["dims"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    return model(nodes, [ints("dims", dims)])


def counted(limit: int) -> onnx.ModelProto:
    """Sum of a Range up to ``limit``."""
    nodes = [
        helper.make_node("Range", ["zero", "limit", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["c"], to=FLOAT),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(v, np.int64), n)
        for n, v in (("zero", 0), ("limit", limit), ("one", 1))
    ]
    return model(nodes, weights)


def nested(kind: str, depth: int) -> onnx.ModelProto:
    """``kind`` (If or Loop) nodes inside one another."""
    inner = helper.make_node("Relu", ["x"], ["y0"])
    for level in range(depth):
        if kind == "If":
            branches = {
                name: helper.make_graph(
                    [inner] if name == "then_branch" else [helper.make_node("Relu", ["x"], [f"y{level}"])],
                    name,
                    [],
                    [helper.make_tensor_value_info(f"y{level}", FLOAT, ["n"])],
                )
                for name in ("then_branch", "else_branch")
            }
            inner = helper.make_node("If", ["cond"], [f"y{level + 1}"], **branches)
        else:
            body = helper.make_graph(
                [inner, helper.make_node("Identity", [f"c{level}"], [f"d{level}"])],
                "body",
                [
                    helper.make_tensor_value_info(f"i{level}", TensorProto.INT64, []),
                    helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, []),
                ],
                [
                    helper.make_tensor_value_info(f"d{level}", TensorProto.BOOL, []),
                    helper.make_tensor_value_info(f"y{level}", FLOAT, ["n"]),
                ],
            )
            inner = helper.make_node("Loop", ["count", ""], [f"y{level + 1}"], body=body)
    inner.output[0] = "y"
    weights = [
        numpy_helper.from_array(np.array(3, np.int64), "count"),
        numpy_helper.from_array(np.array(True), "cond"),
    ]
    return model([inner], weights)


def nested_bytes(folder: Path, depth: int) -> Path:
    """File with If nodes inside one another, deeper than protobuf libraries write; made byte by byte."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), b""
        while True:
            length += bytes([size & 127 | (128 if size > 127 else 0)])
            size >>= 7
            if not size:
                return bytes([number << 3 | 2]) + length + data

    node = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    head = helper.make_node("If", ["x"], ["y"]).SerializeToString()
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, field(1, node)) + b"\xa0\x01\x05"
        node = head + field(5, attribute)
    whole = model([helper.make_node("Relu", ["x"], ["y"])])
    whole.graph.node.add().CopyFrom(helper.make_node("Relu", ["x"], ["z"]))
    graph = whole.graph.SerializeToString() + field(1, node)
    del whole.graph.node[:]
    path = folder / "nested.onnx"
    path.write_bytes(b"\x08\x08" + b"\x42\x04\x0a\x00\x10\x11" + field(7, graph))
    return path


def many_nodes(count: int) -> onnx.ModelProto:
    """Chain of ``count`` nodes."""
    made = model([])
    node = helper.make_node("Relu", ["x"], ["y"])
    made.graph.node.extend([node] * count)
    for index, one in enumerate(made.graph.node):
        one.input[0] = f"t{index}" if index else "x"
        one.output[0] = f"t{index + 1}" if index + 1 < count else "y"
    return made


def claimed(dims: Sequence[int], kind: int = FLOAT) -> onnx.ModelProto:
    """Initializer that claims more elements than it has bytes."""
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=list(dims), raw_data=b"\0\0\0\0")
    if kind == TensorProto.STRING:
        tensor = onnx.TensorProto(name="w", data_type=kind, dims=list(dims), string_data=[b"a"])
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def external(location: str, *, size: int = 64, **entries: int) -> Bomb:
    """Initializer in an external file; ``size`` bytes of ``data.bin`` lie beside the model."""

    def write(folder: Path) -> Path:
        (folder / "data.bin").write_bytes(bytes(size))
        if not (folder / "link.bin").is_symlink():
            (folder / "link.bin").symlink_to("/etc/passwd")
            (folder / "out").symlink_to("/etc")
        made = claimed([4])
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=str(value))
        path = folder / "external.onnx"
        path.write_bytes(made.SerializeToString())
        return path

    return write


def reshaped(rank: int) -> onnx.ModelProto:
    """Value of a large rank."""
    dims = [4, *[1] * (rank - 1)]
    nodes = [
        helper.make_node("Reshape", ["x", "dims"], ["r"]),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("Reshape", ["s", "back"], ["y"]),
    ]
    return model(nodes, [ints("dims", dims), ints("back", [4])])


def _of(made: Callable[..., onnx.ModelProto], *args: object, **options: object) -> Bomb:
    return lambda folder: made(*args, **options)


def _squares(folder: Path) -> onnx.ModelProto:
    """Outer products of which each squares the size of the one before: 8 to the power of 16 at the end."""
    nodes = [helper.make_node("Identity", ["x"], ["a0"])]
    for step in range(4):
        for name in ("row", "column"):
            nodes.append(helper.make_node("Reshape", [f"a{step}", name], [f"{name}{step}"]))
        nodes.append(helper.make_node("MatMul", [f"column{step}", f"row{step}"], [f"m{step}"]))
        nodes.append(helper.make_node("Reshape", [f"m{step}", "flat"], [f"a{step + 1}"]))
    weights = [ints("row", [1, -1]), ints("column", [-1, 1]), ints("flat", [-1])]
    return model([*nodes, *summed("a4")], weights, shape=[8])


_INPUT_SHAPES = {
    "input_huge": [2**60],
    "input_rank": [1] * 200,
    "input_negative": [-5],
    "input_many": [2**31, 2**31],
}

_RELU = [helper.make_node("Relu", ["x"], ["y"])]

BOMBS: dict[str, Bomb] = {
    "laughs_binary": _of(billion_laughs, 40, 2),
    "laughs_wide": _of(billion_laughs, 9, 10),
    "laughs_endless": _of(billion_laughs, 300, 10),
    "recursive_1": _of(recursive_function, 1),
    "recursive_2": _of(recursive_function, 2),
    "recursive_500": _of(recursive_function, 500),
    "functions_deep": _of(billion_laughs, 2000, 1),
    **{
        f"{kind.lower()}_{steps}_{'constant' if constant else 'input'}": _of(
            doubling, kind, steps, constant=constant
        )
        for kind in ("Concat", "Tile", "Expand", "Pad")
        for steps in (27, 50)
        for constant in (True, False)
    },
    "resize_13": _of(resized, 13),
    "resize_40": _of(resized, 40),
    "filled_2_40": _of(filled, [2**40]),
    "filled_2_28": _of(filled, [2**28]),
    "filled_overflow": _of(filled, [2**40, 2**40]),
    "filled_negative": _of(filled, [-3, 4]),
    "filled_rank": _of(filled, [1] * 1000),
    "range_2_40": _of(counted, 2**40),
    "range_2_62": _of(counted, 2**62),
    "squares": _squares,
    "nested_if_20": _of(nested, "If", 20),
    "nested_loop_20": _of(nested, "Loop", 20),
    "nested_file_10000": lambda folder: nested_bytes(folder, 10_000),
    "nested_file_200": lambda folder: nested_bytes(folder, 200),
    "nodes_million": _of(many_nodes, 1_000_000),
    "claimed_2_60": _of(claimed, [2**60]),
    "claimed_product": _of(claimed, [2**31, 2**31, 2**31]),
    "claimed_negative": _of(claimed, [-4]),
    "claimed_negative_pair": _of(claimed, [-1, -1]),
    "claimed_rank": _of(claimed, [1] * 10_000),
    "claimed_strings": _of(claimed, [2**60], TensorProto.STRING),
    "strings": _of(claimed, [1], TensorProto.STRING),
    "external_parent": external("../../../../../../etc/passwd", length=16),
    "external_absolute": external("/etc/passwd", length=16),
    "external_link": external("link.bin", length=16),
    "external_folder_link": external("out/passwd", length=16),
    "external_missing": external("none.bin"),
    "external_device": external("../../dev/zero", length=16),
    "external_folder": external("."),
    "external_nul": external("data\0.bin"),
    "external_long": external("a" * 5000),
    "external_beyond": external("data.bin", offset=1000, length=16),
    "external_length": external("data.bin", offset=0, length=2**60),
    "external_negative": external("data.bin", offset=-16, length=16),
    "external_short": external("data.bin", offset=60, length=4),
    "external_text": external("data.bin", offset="0x10", length="many"),  # type: ignore[arg-type]
    "external_digits": external("data.bin", offset="9" * 5000),  # type: ignore[arg-type]
    "rank_70": _of(reshaped, 70),
    "rank_1000": _of(reshaped, 1000),
    **{name: _of(model, _RELU, shape=shape) for name, shape in _INPUT_SHAPES.items()},
}


@dataclass(frozen=True)
class End:
    """How the reading of a bomb ended."""

    kind: str
    """``refused`` (our error), ``read``, ``wrong error`` or ``died``."""
    text: str
    seconds: float = 0.0
    """Of processor time, so that a busy machine is no fault."""
    peak: int = 0
    """Bytes of memory at most, beyond those of the process before."""


def light(name: str) -> End:
    """Make a bomb and read it in a process of its own, which may not take more than four times the bound."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_read, args=(name, theirs))
    child.start()
    theirs.close()
    found = ours.recv() if ours.poll(120) else None
    if found is None:
        child.kill()
    child.join()
    return found or End("died", f"exit code {child.exitcode}")


def _read(name: str, answer: Connection) -> None:
    from hetero_tvm.errors import HeteroTVMError
    from hetero_tvm.frontend import import_model

    with tempfile.TemporaryDirectory() as text:
        made = BOMBS[name](Path(text))
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 4 * MOST_BYTES,) * 2)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, start = _status("VmRSS"), time.process_time()
        try:
            import_model(made)
            kind, said = "read", ""
        except HeteroTVMError as error:
            kind, said = "refused", str(error)
        except BaseException as error:
            kind, said = "wrong error", f"{type(error).__name__}: {error}"
        seconds = time.process_time() - start
        answer.send(End(kind, said, seconds, _status("VmHWM") - before))
    os._exit(0)


def _status(field: str) -> int:
    """A size of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="bombs to try (default: all)")
    options = parser.parse_args()
    importlib.import_module("hetero_tvm.frontend")  # once, before the processes fork
    bad = 0
    for name in options.names or BOMBS:
        end = light(name)
        fine = end.kind in ("refused", "read") and end.peak <= MOST_BYTES and end.seconds <= MOST_SECONDS
        bad += not fine
        mark = "" if fine else "  <-- beyond its bounds"
        first = end.text.replace("\n", " ")[:150]
        print(
            f"{name:24} {end.kind:11} {end.seconds:6.2f} s {end.peak >> 20:6} MiB  {first}{mark}", flush=True
        )
    print(f"{len(options.names or BOMBS)} bombs, {bad} beyond their bounds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
