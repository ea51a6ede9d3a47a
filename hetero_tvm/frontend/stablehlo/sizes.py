"""Programs of open sizes, which ``jax.export.symbolic_shape`` makes, as programs of fixed ones."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.errors import ModelError, ShapeError, last_line
from hetero_tvm.frontend.stablehlo.load import bindings
from hetero_tvm.frontend.stablehlo.open.functions import functions_of, inline_calls, write_windows
from hetero_tvm.frontend.stablehlo.open.marks import mark_open

Dims = list[int | str | None]
"""Dimensions of an input: sizes, names of open ones, None for those without a name."""
_COMPOSITES = "func.func(stablehlo-legalize-composite-to-call)"
_SHAPES = "stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism)"
_UNCALLED = "symbol-dce"
_ARGUMENTS = "stablehlo-refine-arguments{{types={}}}"
_MOST_WINDOWS = 64
"""Windows whose sizes follow from other windows' results, one behind the other."""
_OPEN = re.compile(r"\.shape = \(([^()]*)\)")


def main_of(module: Any) -> Any:
    """The function ``main`` of a module; None where there is none."""
    return functions_of(module).get("main")


def declared_sizes(module: Any, names: Sequence[str]) -> dict[str, Dims]:
    """Dimensions of the inputs of main, whose names are ``names``.

    JAX writes the names of open dimensions into the messages of its assertions, input by input.
    """
    types = [argument.type for argument in main_of(module).regions[0].blocks[0].arguments]
    shapes = [
        [None if extent < 0 else int(extent) for extent in getattr(kind, "shape", ())] for kind in types
    ]
    said = max(
        (_OPEN.findall(text) for text in _messages(module)), key=len, default=[]
    )  # the longest lists all inputs that are open
    found: dict[str, Dims] = {}
    for name, shape in zip(names, shapes, strict=True):
        dims: Dims = list(shape)
        while None in shape and said:
            words = [word.strip() for word in said.pop(0).split(",") if word.strip()]
            if len(words) == len(shape) and all(
                size is None or word == str(size) for word, size in zip(words, shape, strict=True)
            ):
                dims = [
                    size if size is not None else word if word.isidentifier() else None
                    for word, size in zip(words, shape, strict=True)
                ]
                break
        found[name] = dims
    return found


def _messages(module: Any) -> list[str]:
    """Messages of the assertions about sizes in main."""
    found = []
    for op in main_of(module).regions[0].blocks[0].operations:
        if "error_message" in op.attributes:
            found.append(
                str(op.attributes["error_message"]).partition("specifications:")[2].partition("Obtained")[0]
            )
    return found


def sized(module: Any, declared: Mapping[str, Dims], shapes: Mapping[str, Sequence[int]], where: str) -> Any:
    """The module, or where it is open, the module itself refined for inputs of these shapes.

    Raises
    ------
    ShapeError : an input that is unknown, or that has no size yet, or another one than its program takes.
    ModelError : the program does not take these shapes.
    """
    problems = [f"there is no input {name!r}" for name in shapes if name not in declared]
    for name, dims in declared.items():
        given = shapes.get(name)
        if given is None:
            if not all(isinstance(dim, int) for dim in dims):
                problems.append(f"{name} is {_text(dims)}: its open sizes are not given")
        elif len(given) != len(dims) or any(
            isinstance(dim, int) and dim != size for dim, size in zip(dims, given, strict=True)
        ):
            problems.append(f"{name} is {_text(dims)}, not {_text(given)}")
    if problems:
        open_ = any(not isinstance(dim, int) for dims in declared.values() for dim in dims)
        fixed = "Export the function for these shapes, or for open ones: jax.export.symbolic_shape('b, 4')."
        given_ = "Give each size, --shape NAME=1x128, or a range that stays open, --shape NAME=1..8x128."
        raise ShapeError(f"the inputs of {where}", problems=problems, hint=given_ if open_ else fixed)
    if all(isinstance(dim, int) for dims in declared.values() for dim in dims):
        return module
    types = []
    for argument, (name, dims) in zip(
        main_of(module).regions[0].blocks[0].arguments, declared.items(), strict=True
    ):
        extents = "x".join(map(str, [*shapes.get(name, dims), argument.type.element_type]))
        types.append(f"tensor<{extents}>")
    _refine(module, types, where)
    _drop_assertions(module, where)
    return module


def _refine(module: Any, types: Sequence[str], where: str) -> None:
    from jaxlib.mlir import passmanager

    _register()

    def run(passes: str) -> None:
        passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)

    try:
        with module.context as context:
            context.enable_multithreading(False)  # threads of a context outlive its passes
            run(_COMPOSITES)
            inline_calls(module)
            run(_UNCALLED)
            mark_open(module)
            run(f"{_ARGUMENTS.format(','.join(types))},{_SHAPES}")
            for _ in range(_MOST_WINDOWS):
                if not write_windows(module):
                    break
                run(_SHAPES)
    except Exception as error:  # jaxlib raises kinds of its own
        raise ModelError(f"{where} does not take {', '.join(types)}: {last_line(error)}") from error


def _drop_assertions(module: Any, where: str) -> None:
    """Take out the conditions on sizes, which are known now; :class:`ShapeError` where one does not hold."""
    for function in module.body.operations:
        for op in list(function.regions[0].blocks[0].operations):
            if "shape_assertion" not in str(op.attributes.get("call_target_name", "")):
                continue
            made = getattr(op.operands[0].owner, "opview", op.operands[0].owner)
            if "value" in made.attributes and "true" not in str(made.attributes["value"]):
                said = str(op.attributes["error_message"]).strip('"').partition(" Please see")[0]
                raise ShapeError(f"{where} does not take these sizes", problems=[said])
            op.operation.erase()


@functools.cache
def _register() -> None:
    """Make StableHLO's passes known, once per process."""
    _, stablehlo, _ = bindings()
    stablehlo.register_stablehlo_passes()


def _text(dims: Sequence[int | str | None]) -> str:
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "a number"
