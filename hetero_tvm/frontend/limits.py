"""Bounds of what a model file may ask for while it is read, so that a small file cannot take the machine.

A file of a kilobyte can call functions that call functions, or double a tensor forty times.  Whatever is
beyond a bound is refused with its name.  Models that honestly need more: ``$HETERO_TVM_LIMITS``, for instance
``HETERO_TVM_LIMITS=nodes=500000,tensor_bytes=64GiB``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import onnx

from hetero_tvm.errors import ModelError, UsageError, shortened

VARIABLE = "HETERO_TVM_LIMITS"
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_ADDRESSES = 1 << 48
"""Bytes that a processor can address: beyond, no bound helps."""
_VALUE = re.compile(r"([0-9]{1,18})(|[KMGT]iB)", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """Bounds of one import; each name can be given in ``$HETERO_TVM_LIMITS``."""

    nodes: int = 100_000
    """Nodes of a file with its subgraphs, once its own functions are written out."""
    written_nodes: int = 500_000
    """Nodes once operators are written out by others (the time steps of an LSTM)."""
    depth: int = 64
    """Subgraphs inside one another, or functions that call one another."""
    rank: int = 32
    """Dimensions of a tensor."""
    tensor_bytes: int = 8 << 30
    """Size of an input, or of a value that a node computes."""
    folded_bytes: int = 512 << 20
    """Constants computed while the model is read, beyond eight times the weights in its file."""


def current_limits() -> Limits:
    """The bounds that hold here: the defaults, and what the environment changes.

    Raises
    ------
    UsageError : the variable names no bound, or no whole number.
    """
    given = os.environ.get(VARIABLE, "")
    known = [field.name for field in fields(Limits)]
    changed = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, _, text = part.partition("=")
        value = _VALUE.fullmatch(text.strip())
        if name.strip() not in known or value is None:
            raise UsageError(
                f"${VARIABLE} holds {part!r}, which is no bound",
                hint=f"write NAME=NUMBER, with {', '.join(known)} as names and 64GiB or 100000 as numbers",
            )
        changed[name.strip()] = int(value[1]) * _UNITS[value[2].upper()]
    return replace(Limits(), **changed)


def check_size(model: onnx.ModelProto, limits: Limits, bound: str = "nodes") -> None:
    """Refuse a model with too many nodes, too deep nests, functions without end, or too many dimensions.

    Nothing of the model is written out for it, and nothing here goes deeper than the stack allows.  ``bound``
    names the one for the number of nodes.

    Raises :class:`ModelError`.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes = _function_sizes(functions, limits)
    total = 0
    for node, depth in _nodes(model.graph.node):
        if depth > limits.depth:
            text = f"Node {node.name!r} ({node.op_type}) lies in {depth} subgraphs"
            raise beyond("depth", text, limits, needed=depth)
        total += sizes.get((node.domain, node.op_type), 1)
        if total > getattr(limits, bound):
            written = " once all is written out" if functions or bound != "nodes" else ""
            raise beyond(bound, f"The model has too many nodes{written}", limits)
    check_ranks(model.graph, limits)


def check_ranks(graph: onnx.GraphProto, limits: Limits) -> None:
    """Refuse tensors of too many dimensions among the weights and the values with a type."""
    ranks = [(tensor.name, len(tensor.dims)) for tensor in graph.initializer]
    ranks += [
        (value.name, len(value.type.tensor_type.shape.dim))
        for value in (*graph.input, *graph.output, *graph.value_info)
    ]
    most = max((rank for _, rank in ranks), default=0)
    if most > limits.rank:
        problems = [f"tensor {name!r} has {rank}" for name, rank in ranks if rank > limits.rank]
        raise beyond("rank", "Tensors have too many dimensions", limits, problems, most)


def check_values(graph: onnx.GraphProto, limits: Limits) -> None:
    """Refuse values of known shape that take too many bytes or dimensions; ``graph`` holds inferred types."""
    check_ranks(graph, limits)
    problems, below, most = [], [], 0
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if any(dim is not None and dim < 0 for dim in dims):
            below.append(f"tensor {value.name!r} has the shape {dims}")
        size = math.prod(max(0, dim) for dim in dims if dim is not None) * _item_bytes(tensor.elem_type)
        if size > limits.tensor_bytes:
            shape = "x".join("?" if dim is None else str(dim) for dim in dims)
            problems.append(f"tensor {value.name!r} ({shape}) takes {size:,} bytes")
            most = max(most, size)
    if below:
        raise ModelError("Values of the model have fewer than 0 elements along an axis.", problems=below)
    if problems:
        raise beyond("tensor_bytes", "Values of the model are too large", limits, problems, most)


def _item_bytes(element: int) -> int:
    """Bytes of one element, at least 1."""
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(element).itemsize
    except (KeyError, TypeError):
        return 1


def beyond(
    name: str, message: str, limits: Limits, problems: list[str] | None = None, needed: int = 0
) -> ModelError:
    """The error that names a bound, and how to raise it: to what is ``needed``, where that is known."""
    bound = getattr(limits, name)
    raised = f"{VARIABLE}={name}={max(2 * bound, needed)}"
    return ModelError(
        f"{message}; the bound is {bound:,}.",
        problems=shortened(problems or []),
        hint=f"If the model honestly needs it, raise the bound: {raised}."
        if needed < _ADDRESSES
        else f"No machine has so much memory, whatever {name} says: export the model with other sizes.",
    )


def _nodes(nodes: object, depth: int = 0) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Nodes with those of their subgraphs, and how many subgraphs each lies in."""
    stack = [(iter(nodes), depth)]
    while stack:
        node = next(stack[-1][0], None)
        if node is None:
            stack.pop()
            continue
        depth = stack[-1][1]
        yield node, depth
        for attribute in node.attribute:
            graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            stack += [(iter(graph.node), depth + 1) for graph in graphs]


Name = tuple[str, str]  # domain and operator


def _function_sizes(functions: dict[Name, onnx.FunctionProto], limits: Limits) -> dict[Name, int]:
    """Nodes that a call of each function stands for; calls are followed without recursion.

    Raises :class:`ModelError` for functions that call themselves, or call too deep.
    """
    calls: dict[Name, list[Name]] = {}
    own: dict[Name, int] = {}
    for name, function in functions.items():
        calls[name], own[name], seen = [], 0, 0
        for node, _ in _nodes(function.node):
            seen += 1
            if seen > limits.nodes:
                raise beyond("nodes", f"Function {name[1]!r} has too many nodes", limits)
            if (node.domain, node.op_type) in functions:
                calls[name].append((node.domain, node.op_type))
            else:
                own[name] += 1
    sizes: dict[Name, int] = {}
    depths: dict[Name, int] = {}
    for root in functions:
        path, open_calls = [root], {root: iter(dict.fromkeys(calls[root]))}
        while path:
            name = path[-1]
            if name in sizes:
                path.pop()
                continue
            inner = next(open_calls[name], None)
            if inner is None:
                # Counted only as far as matters: the numbers of a hostile file have thousands of digits.
                sizes[name] = min(own[name] + sum(sizes[one] for one in calls[name]), limits.nodes + 1)
                depths[name] = 1 + max((depths[one] for one in calls[name]), default=0)
                if depths[name] > limits.depth:
                    raise beyond("depth", f"Function {name[1]!r} calls {depths[name]} others deep", limits)
                path.pop()
            elif inner in open_calls and inner not in sizes:
                by = "" if inner == name else f", by {name[1]!r}"
                raise ModelError(
                    f"Function {inner[1]!r} is recursive: it calls itself{by}.",
                    hint="ONNX allows no recursion: export the model without functions.",
                )
            elif inner not in sizes:
                path.append(inner)
                open_calls[inner] = iter(dict.fromkeys(calls[inner]))
    return sizes
