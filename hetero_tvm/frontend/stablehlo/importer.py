"""Import of StableHLO programs, through the ONNX front end: what is fused in models is fused in them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.nodes import Nodes, Untranslatable, onnx_type
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.frontend.stablehlo import complexes
from hetero_tvm.frontend.stablehlo.control import CONTROL
from hetero_tvm.frontend.stablehlo.idioms import mean_of, softmax_of
from hetero_tvm.frontend.stablehlo.load import bindings, read_program, written_numbers
from hetero_tvm.frontend.stablehlo.op import Op, Written, dtype_of, narrow_of, shape_of
from hetero_tvm.frontend.stablehlo.open.functions import functions_of
from hetero_tvm.frontend.stablehlo.operators import SEVERAL, TRANSLATIONS
from hetero_tvm.frontend.stablehlo.run import StableHloProgram
from hetero_tvm.frontend.stablehlo.sizes import Dims, declared_sizes, main_of, sized

_OPSET, _OPSET_OF_BITS = 20, 26
_DEEPEST = 64
"""Calls inside calls that are inlined."""
_KEEPING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim", "concatenate", "convert", "optimization_barrier", "reshape", "reverse",
        "select", "slice", "transpose",
    )
) | {"sdy.sharding_constraint"}  # fmt: skip
"""Operators that do not compute with numbers whose type others carry, or that round them."""
_PASSED_ON = frozenset({"stablehlo.optimization_barrier", "sdy.sharding_constraint"})
"""Operators that give what they take: they say in what order, or on which devices."""


def import_stablehlo(
    source: str | Path | Any, *, shapes: Mapping[str, Sequence[int]] | None = None, name: str | None = None
) -> ImportedModel:
    """Import a program.

    Parameters
    ----------
    source : path of a ``.mlir`` (text or bytecode), ``.mlirbc`` or ``.stablehlo`` file, or of one of any name
        that ``jax.export`` has serialised; or what ``jax.export.export`` gives.
    shapes : of inputs whose sizes the program leaves open, by name.
    name : of the result; by default the stem of the file, or the function's name.

    Raises
    ------
    UsageError : jaxlib, whose MLIR reads programs, is not installed.
    ModelError : the file is no StableHLO program.
    ShapeError : sizes that the program does not take, or that are missing.
    UnsupportedOperatorError : operators without a translation (all are listed, with their places).
    """
    return open_stablehlo(source, name=name)[1](shapes or {})


def open_stablehlo(
    source: str | Path | Any, *, name: str | None = None
) -> tuple[dict[str, Dims], Callable[[Mapping[str, Sequence[int]]], ImportedModel]]:
    """Read a program, to import it at several sizes; the rest is as :func:`import_stablehlo` has it.

    Returns
    -------
    Dimensions of its inputs, by name, and what imports it with given shapes.
    """
    source = Path(source) if isinstance(source, str) else source
    first = [read_program(source)]
    if main_of(first[0]) is None:
        raise ModelError("this StableHLO module has no function main")
    names = _input_names(main_of(first[0]).regions[0].blocks[0])
    declared = declared_sizes(first[0], names)
    default = source.stem if isinstance(source, Path) else getattr(source, "fun_name", "program")

    where = str(source) if isinstance(source, Path) else "the program"
    is_open = any(not isinstance(dim, int) for dims in declared.values() for dim in dims)

    def at(shapes: Mapping[str, Sequence[int]]) -> Any:
        module = first.pop() if first else read_program(source)  # which is changed
        return sized(module, declared, shapes, where)

    def load(shapes: Mapping[str, Sequence[int]]) -> ImportedModel:
        module = at(shapes)
        with module.context:
            model = _Translation(module, names).model()
        imported = import_onnx(model, name=name or re.sub(r"\W", "_", default))
        others = (lambda sizes: at(dict(zip(names, sizes, strict=True)))) if is_open else None
        return dataclasses.replace(imported, original=StableHloProgram(module, model, others))

    return declared, load


_REASONS = {
    "stablehlo.rng_bit_generator": "random bits of XLA's own generators; threefry, the default, is taken",
    "stablehlo.rng": "random numbers without a key; those of keys of threefry are taken",
}
"""Reasons why an operator has no translation, with what to take instead."""


class _Translation:
    """One module on its way to ONNX."""

    def __init__(self, module: Any, names: Sequence[str]):
        self._names = names
        self._ir, self._dialects, _ = bindings()
        self._nodes = Nodes()
        self._functions = functions_of(module)
        self._faults: list[str] = []
        self._values: ChainMap[Any, str] = ChainMap()
        self._written: dict[str, Written] = {}
        self._parts: dict[str, complexes.Parts] = {}

    def model(self) -> onnx.ModelProto:
        """The program as ONNX."""
        block = self._functions["main"].regions[0].blocks[0]
        try:
            types = [(shape_of(kind), _end_dtype(kind)) for kind in (a.type for a in block.arguments)]
        except Untranslatable as error:
            raise ModelError(
                f"an input of main has {error}",
                hint="export the function for fixed shapes; take complex numbers as two inputs",
            ) from error
        inputs = [(name, *kind) for name, kind in zip(self._names, types, strict=True)]
        results = self._block(block, ChainMap(_of(block, [name for name, _, _ in inputs])), 0)
        if self._faults:
            raise UnsupportedOperatorError(
                "this program has operators that cannot be translated.",
                problems=list(dict.fromkeys(self._faults))[:50],
                hint="Export the function up to them, and compute what they give before or behind the model.",
            )
        kinds = [value.type for value in self._returned]
        try:
            ends = [(onnx_type(_end_dtype(kind)), shape_of(kind)) for kind in kinds]
        except Untranslatable as error:
            hint = "convert it in the function: to float32, or to int8; return complex numbers as two results"
            raise ModelError(f"a result of main has {error}", hint=hint) from error
        outputs = [f"output_{i}" for i in range(len(results))] if len(results) != 1 else ["output"]
        made = self._nodes.nodes
        made += [helper.make_node("Identity", [r], [o], o) for r, o in zip(results, outputs, strict=True)]
        graph = helper.make_graph(
            made,
            "stablehlo",
            [helper.make_tensor_value_info(n, onnx_type(d), s) for n, s, d in inputs],
            [helper.make_tensor_value_info(o, *end) for o, end in zip(outputs, ends, strict=True)],
            self._nodes.constants,
        )
        has_bits = any(node.op_type == "BitCast" for node in all_nodes(graph))
        version = _OPSET_OF_BITS if has_bits else _OPSET
        opset = helper.make_opsetid("", version)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)

    def _block(self, block: Any, values: ChainMap[Any, str], depth: int) -> Sequence[str]:
        """Translate the operators of a function's body; names of what it returns."""
        outside, self._values = self._values, values
        try:
            return self._operators(block, values, depth)
        finally:
            self._values = outside

    def _operators(self, block: Any, values: ChainMap[Any, str], depth: int) -> Sequence[str]:
        for raw in block.operations:
            kind = str(raw.operation.name)
            operands = [values.get(operand, "") for operand in raw.operands]
            if kind in ("func.return", "stablehlo.return"):
                if depth == 0:
                    self._returned = list(raw.operands)
                return operands
            self._nodes.at = place = f"{_place(raw)}.{kind.partition('.')[2]}"
            try:
                results = self._translate(raw, kind, operands, depth)
            except (Untranslatable, KeyError, IndexError, TypeError) as error:
                said = (
                    str(error) if isinstance(error, Untranslatable) else f"a form that is not known ({error})"
                )
                self._faults.append(f"{kind} at {place}: {said}")
                results = ["" for _ in raw.results]
            values.update(zip(raw.results, results, strict=True))
        return []

    def _translate(self, raw: Any, kind: str, operands: Sequence[str], depth: int) -> Sequence[str]:
        if kind == "stablehlo.constant":
            return [self._constant(raw)]
        called = {"func.call": "callee", "stablehlo.composite": "decomposition"}.get(kind)
        if called is not None:
            function = self._functions.get(str(raw.attributes[called]).lstrip("@").strip('"'))
            if function is None or depth >= _DEEPEST:
                raise Untranslatable("a call of what is not there, or that never ends")
            block = function.regions[0].blocks[0]
            return self._block(block, ChainMap(_of(block, operands)), depth + 1)
        outside = self._values

        def region(index: int, given: Sequence[str]) -> Sequence[str]:
            block = raw.regions[index].blocks[0]
            values = ChainMap(
                dict(zip(block.arguments, given, strict=True)), *getattr(outside, "maps", [outside])
            )
            return self._block(block, values, depth + 1)

        narrow = [
            str(r.type.element_type)
            for r in raw.results
            if hasattr(r.type, "element_type") and narrow_of(r.type)
        ]
        if narrow and kind not in _KEEPING:
            raise Untranslatable(f"numbers of type {narrow[0]}")
        op = Op(raw, operands, self._nodes, self._dialects, region, self._written)
        if complexes.has_complex(raw) and kind not in _PASSED_ON:
            return complexes.translated(op, self._parts, TRANSLATIONS, SEVERAL)
        if (softmax := softmax_of(raw)) is not None:
            return [self._nodes.emit("Softmax", self._values[softmax[0]], axis=softmax[1])]
        if (mean := mean_of(raw)) is not None:
            axes = self._nodes.constant(mean[1], "int64")
            made = self._nodes.emit("ReduceMean", self._values[mean[0]], axes, keepdims=0)
            shape = self._nodes.constant(shape_of(raw.results[0].type), "int64")
            return [self._nodes.emit("Reshape", made, shape)]
        if kind in _PASSED_ON:
            return operands
        if kind in TRANSLATIONS:
            if 0 in op.result:  # ONNX would read the 0 of its shape as "as it was"
                return [op.const(np.zeros(op.result), op.result_dtype)]
            return [TRANSLATIONS[kind](op)]
        several = CONTROL.get(kind) or SEVERAL.get(kind)
        if several is None:
            raise Untranslatable(_REASONS.get(kind, "no translation"))
        return several(op)

    def _constant(self, raw: Any) -> str:
        kind = raw.results[0].type
        shape = shape_of(kind)
        if complexes.is_complex(kind):
            return self._complex_constant(raw, kind, shape)
        dtype, value = dtype_of(kind), raw.attributes["value"]
        import ml_dtypes

        numpy_type = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        if narrow_of(kind) or (dtype == "bfloat16" and not value.is_splat):  # jaxlib has no arrays of these
            number = written_numbers(str(value), narrow_of(kind) or dtype).astype(numpy_type)
            number = number.reshape(() if value.is_splat else shape)
        elif value.is_splat:
            number = np.full((), value.get_splat_value().value)
        else:
            number = np.asarray(value).reshape(shape)
        full = np.broadcast_to(number.astype(numpy_type), shape) if number.ndim == 0 else number
        return self._nodes.constant(np.array(full), numpy_type)

    def _complex_constant(self, raw: Any, kind: Any, shape: tuple[int, ...]) -> str:
        """A complex constant; jaxlib has no arrays of these, and gives only their words."""
        words = re.search(r"\bdense<.*>(?= : tensor)", str(raw))
        if words is None:
            raise Untranslatable("a complex constant that is not written out")
        numbers = written_numbers(words[0], complexes.part_dtype(kind)).reshape(-1, 2).T
        if numbers.shape[1] == 1:
            numbers = np.broadcast_to(numbers, (2, math.prod(shape)))
        return complexes.constant(self._nodes, self._parts, numbers.reshape(2, *shape))


def _end_dtype(kind: Any) -> str:
    """NumPy name of the type of an input or a result."""
    if narrow_of(kind):
        raise Untranslatable(f"numbers of type {kind.element_type}")
    return dtype_of(kind)


def _of(block: Any, names: Sequence[str]) -> dict[Any, str]:
    """Arguments of a block, by what they are."""
    return dict(zip(block.arguments, names, strict=True))


def _input_names(block: Any) -> list[str]:
    """Names of the parameters of main, each once."""
    names = [_input_name(argument, i) for i, argument in enumerate(block.arguments)]
    return [name if names.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(names)]


def _input_name(argument: Any, index: int) -> str:
    """Name of a parameter, as the exporter noted it."""
    found = re.match(r'loc\("([^"]+)"', str(getattr(argument, "location", "")))
    return re.sub(r"\W+", "_", found[1]).strip("_") if found else f"arg{index}"


def _place(raw: Any) -> str:
    """Name that the exporter gave an operator's place in the program, or its own result's."""
    found = [name for name in re.findall(r'"([^"]+)"', str(raw.location)) if name != "<stdin>"]
    return found[0] if found else "program"
