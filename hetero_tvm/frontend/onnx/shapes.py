"""Fixing of input shapes; one error lists everything that is missing or contradictory."""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import TensorProto

from hetero_tvm.errors import ModelError, ShapeError
from hetero_tvm.frontend.dimensions import parts_of_total
from hetero_tvm.frontend.onnx.definitions import first_lines
from hetero_tvm.frontend.suggestions import agreeing

#: Symbols that mean "batch" and "sequence length" in what exporters write.
_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SEQUENCE = re.compile(r"seq|len|^(s|l|t)$", re.IGNORECASE)

_TOO_FEW = "less than the requested k"
"""Words of ONNX's for a TopK of more elements than an axis has."""
TRACED_SIZES_HINT = (
    "Where sizes were given: networks that halve images and join them again take multiples of 4 to 32 only, "
    "and exporters that trace write the sizes of their example into the file: give these (--shape; shapes= "
    "in Python), or export it again with open sizes (torch.onnx.export(..., dynamo=True))."
)
"""Hint for a model that is contradictory at the sizes that were asked for; ONNX Runtime refuses it too."""

#: Ranks that NumPy and the compiler's front end can have.
MOST_DIMENSIONS = 32

# A dimension is a number, a symbol, or None (no name, no value).
_Dims = list["int | str | None"]
_Place = tuple[str, int]
_Agreement = Callable[[Mapping[str, Sequence[int]]], "float | None"]
"""Number of a model's values that fit together at these shapes of its inputs, infinity for all of them; None
when it is not to be asked again."""


def contradiction(error: Exception) -> ModelError:
    """Error for what ONNX's inference of shapes says of a model that does not fit together."""
    first = "(op_type:".join(first_lines(error).split("(op_type:")[:2]).strip()  # the others follow from it
    hint = TRACED_SIZES_HINT
    if _TOO_FEW in first:
        hint = (
            "The axis must have as many elements as are asked for: give a larger size, or a range that begins"
            " at one (--shape NAME=16..64x3); the usual range of a size that is left open (?) may end below."
        )
    return ModelError(f"The model's shapes or types contradict each other: {first}", hint=hint)


def fix_input_shapes(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    *,
    batch: int | None = None,
    sequence: int | None = None,
    least: int = 1,
    judge: Callable[[], _Agreement] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Fixed shape of every input; no given dimension is less than ``least``.

    ``judge`` makes what tells whether the model fits together at some shapes, for those that are suggested
    where some are missing.

    A symbol that one given shape fixes is fixed in all inputs, and so are sums and products of such symbols
    (``past_length + 1``); ``batch`` and ``sequence`` fix symbols by their usual names.

    Raises
    ------
    ShapeError : unknown input names, wrong ranks, contradictions (all of them), or dimensions
        that are left without a value (all of them, with the options to add).
    ModelError : an input is not a tensor.
    """
    declared = declared_dimensions(inputs)
    symbols = _symbols_by_role(declared, batch=batch, sequence=sequence)
    problems = _unknown_names(declared, shapes)
    for name, dims in declared.items():
        if name in shapes:
            problems += _bind(name, dims, shapes[name], symbols, least)
    problems += _broken_terms(declared, shapes, symbols)
    if problems:
        raise ShapeError(
            "The given shapes do not fit the model.",
            problems=problems,
            hint="The model's inputs are "
            + ", ".join(f"{n}={_letters(d)}" for n, d in declared.items())
            + ".",
        )
    fixed = {}
    for name, dims in declared.items():
        if name in shapes:
            fixed[name] = tuple(int(size) for size in shapes[name])
        elif dims is not None:
            fixed[name] = tuple(_value(d, symbols) if isinstance(d, str) else d for d in dims)
    _refuse_open(declared, fixed, symbols, judge)
    return fixed


def declared_dimensions(inputs: Sequence[onnx.ValueInfoProto]) -> dict[str, _Dims | None]:
    """Dimensions that a model states for its inputs: numbers, symbols, None; None for an unknown rank.

    Raises :class:`ModelError` for an input that is no tensor.
    """
    return {value.name: _declared(value) for value in inputs}


def _declared(value: onnx.ValueInfoProto) -> _Dims | None:
    """Dimensions that the model states for an input; None when not even their number."""
    if not value.type.HasField("tensor_type"):
        raise ModelError(
            f"Input {value.name!r} is not a tensor.", hint="Export the model with plain tensors as inputs."
        )
    tensor = value.type.tensor_type
    if tensor.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        kind = "has no data type" if tensor.elem_type == TensorProto.UNDEFINED else "holds strings"
        raise ModelError(f"Input {value.name!r} {kind}.", hint="Export the model with numeric inputs.")
    if not tensor.HasField("shape"):
        return None
    if len(tensor.shape.dim) > MOST_DIMENSIONS:
        raise ModelError(
            f"Input {value.name!r} has {len(tensor.shape.dim)} dimensions; at most {MOST_DIMENSIONS} are "
            "supported.",
            hint="Export the model with fewer dimensions, for example by a reshape.",
        )
    # Negative sizes, and zero too, are how older exporters wrote "dynamic": an option may give another size.
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else (dim.dim_param or None)
        for dim in tensor.shape.dim
    ]


def _letters(dims: _Dims | None) -> str:
    """Dimensions as text: ``1xNx?``."""
    return (
        "(any rank)" if dims is None else "x".join("?" if d is None else str(d) for d in dims) or "(scalar)"
    )


def _symbols_by_role(declared: Mapping[str, _Dims | None], **roles: int | None) -> dict[str, int]:
    """Sizes of the symbols whose names say ``batch`` or ``sequence``."""
    symbols: dict[str, int] = {}
    names = {d for dims in declared.values() for d in dims or () if isinstance(d, str)}
    for (role, size), pattern in zip(roles.items(), (_BATCH, _SEQUENCE), strict=True):
        if size is None:
            continue
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ShapeError(f"{role}={size!r} is not a whole number of at least 1.")
        matches = [name for name in names if pattern.search(name)]
        if not matches and _is_fixed_to(role, size, declared):
            continue
        if not matches:
            listed = ", ".join(f"{n}={_letters(d)}" for n, d in declared.items())
            raise ShapeError(
                f"No input has a symbolic {role} dimension that {role}={size} could fix.",
                hint=f"Fix dimensions with --shape; the inputs are {listed}.",
            )
        symbols.update(dict.fromkeys(matches, size))
    return symbols


def _is_fixed_to(role: str, size: int, declared: Mapping[str, _Dims | None]) -> bool:
    """Whether every input has this size already where a batch, or a sequence behind a batch, stands."""
    axis = ("batch", "sequence").index(role)
    return bool(declared) and all(
        dims is not None and dims[axis : axis + 1] == [size] for dims in declared.values()
    )


def _unknown_names(declared: Mapping[str, object], shapes: Mapping[str, object]) -> list[str]:
    problems = []
    for name in shapes:
        if name not in declared:
            close = difflib.get_close_matches(name, declared, n=1)
            problems.append(
                f"there is no input {name!r}" + (f" (did you mean {close[0]!r}?)" if close else "")
            )
    return problems


def _bind(
    name: str, dims: _Dims | None, given: Sequence[int], symbols: dict[str, int], least: int
) -> list[str]:
    """Check one given shape and record the symbols that it fixes; returns the problems."""
    if any(isinstance(size, bool) or not isinstance(size, int) or size < least for size in given):
        return [
            f"{name}: {'x'.join(map(str, given))} has a dimension that is not a whole number of at least 1"
        ]
    if dims is None:
        return []
    if len(dims) != len(given):
        return [f"{name}: {len(given)} dimensions given, the model has {len(dims)} ({_letters(dims)})"]
    problems = []
    for axis, (dim, size) in enumerate(zip(dims, given, strict=True)):
        if isinstance(dim, int) and dim not in (0, size):
            problems.append(f"{name}: dimension {axis} is fixed to {dim} in the model, not {size}")
        elif isinstance(dim, str) and dim.isidentifier() and symbols.setdefault(dim, size) != size:
            problems.append(f"{name}: dimension {axis} ({dim}) is {size} here but {symbols[dim]} elsewhere")
    return problems


_STEPS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Div: lambda a, b: a // b if b else 0,
}
"""Arithmetic in the names of dimensions."""


def _value(dim: str, symbols: Mapping[str, int]) -> int | str:
    """Size of a symbol, or of a term of symbols; the text itself where a symbol has none."""
    if dim in symbols:
        return symbols[dim]
    try:
        return _computed(ast.parse(dim.replace("^", "**"), mode="eval").body, symbols)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return dim


def _computed(term: ast.expr, symbols: Mapping[str, int]) -> int:
    """Value of a term; raises :class:`ValueError` where it is no plain arithmetic of known symbols."""
    if isinstance(term, ast.Constant) and type(term.value) is int:
        return term.value
    if isinstance(term, ast.Name) and term.id in symbols:
        return symbols[term.id]
    if isinstance(term, ast.BinOp) and type(term.op) in _STEPS:
        return _STEPS[type(term.op)](_computed(term.left, symbols), _computed(term.right, symbols))
    raise ValueError(ast.dump(term))


def _broken_terms(
    declared: Mapping[str, _Dims | None], shapes: Mapping[str, Sequence[int]], symbols: Mapping[str, int]
) -> list[str]:
    """Given sizes that contradict a term of the symbols that other sizes fix."""
    problems = []
    for name, dims in declared.items():
        for axis, (dim, size) in enumerate(zip(dims or (), shapes.get(name, ()), strict=False)):
            value = _value(dim, symbols) if isinstance(dim, str) and not dim.isidentifier() else size
            if isinstance(value, int) and value != size:
                problems.append(f"{name}: dimension {axis} ({dim}) is {size} here but {value} by its symbols")
    return problems


def _refuse_open(
    declared: Mapping[str, _Dims | None],
    fixed: Mapping[str, tuple],
    symbols: Mapping[str, int],
    judge: Callable[[], _Agreement] | None,
) -> None:
    """Refuse dimensions that are left without a value, with the options that would fix them.

    The sizes that are suggested give every symbol one value, and agree with each other in the model where
    ``judge`` is given.
    """
    if fixed.keys() >= declared.keys() and all(isinstance(d, int) for dims in fixed.values() for d in dims):
        return
    problems: list[str] = []
    told: dict[str, tuple[int | str, ...]] = {}
    suggested = _suggested(fixed, symbols)
    if judge is not None and None not in declared.values():
        suggested = _agreeing(fixed, symbols, suggested, judge())
    for name, dims in declared.items():
        if name not in fixed:
            problems.append(f"{name}: even the number of dimensions is unknown")
            told[name] = ("A", "B", "C")
            continue
        still_open = [axis for axis, size in enumerate(fixed[name]) if not isinstance(size, int)]
        if still_open:
            listed = ", ".join(
                f"dimension {a} ({dims[a]})" if dims[a] else f"dimension {a}" for a in still_open
            )
            problems.append(f"{name}: {listed} of {_letters(dims)} is open")
        if still_open:
            told[name] = _at(name, fixed[name], suggested)
    if problems:
        options = [f"--shape {name}={'x'.join(map(str, sizes))}" for name, sizes in told.items()]
        python = ", ".join(
            f"{name!r}: ({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"
            for name, sizes in told.items()
        )
        ranges = [
            f"--shape {name}={'x'.join(str(d) if isinstance(d, int) else '?' for d in fixed[name])}"
            for name in told
            if name in fixed
        ]
        whole = f"; or leave sizes open, in one library for a CPU: {' '.join(ranges)}" if ranges else ""
        raise ShapeError(
            "Some input dimensions have no value to compile for; shapes must be fixed before compilation.",
            problems=problems,
            hint=f"Add {' '.join(options)} (with the sizes that you will run; "
            f"in Python: shapes={{{python}}}){whole}.",
        )


def _suggested(fixed: Mapping[str, tuple], symbols: Mapping[str, int]) -> dict[str | _Place, int]:
    """Usual sizes of symbols, and of places (input, axis) without one, beside those that are known."""
    found: dict[str | _Place, int] = dict(symbols)
    for name, dims in fixed.items():
        for axis, dim in enumerate(dims):
            if dim is None:
                found[name, axis] = _suggest(None, axis)
            for symbol in _NAME.findall(dim) if isinstance(dim, str) else ():
                found.setdefault(symbol, _suggest(symbol, axis))
    named = {symbol: size for symbol, size in found.items() if isinstance(symbol, str)}
    for symbol in named:
        if symbol not in symbols and (parts := parts_of_total(symbol, named)) is not None:
            found[symbol] = sum(named[part] for part in parts)
    return found


def _agreeing(
    fixed: Mapping[str, tuple],
    symbols: Mapping[str, int],
    suggested: Mapping[str | _Place, int],
    agreement: _Agreement,
) -> dict[str | _Place, int]:
    """The suggested sizes, as the model can have them."""

    def fit(sizes: Mapping[str | _Place, int]) -> float | None:
        everything = {**symbols, **sizes}
        return agreement({name: _at(name, dims, everything) for name, dims in fixed.items()})

    free = {key: size for key, size in suggested.items() if key not in symbols}
    known = [size for dims in fixed.values() for size in dims if isinstance(size, int)]
    return {**suggested, **agreeing(free, [*symbols.values(), *known], fit)}


def _at(name: str, dims: Sequence[int | str | None], sizes: Mapping[str | _Place, int]) -> tuple[int, ...]:
    """The shape of input ``name`` at these sizes of symbols and of places without one."""
    named = {symbol: size for symbol, size in sizes.items() if isinstance(symbol, str)}
    found = []
    for axis, dim in enumerate(dims):
        value = _value(dim, named) if isinstance(dim, str) else sizes[name, axis] if dim is None else dim
        found.append(value if isinstance(value, int) and value > 0 else _suggest(str(dim), axis))
    return tuple(found)


def _suggest(symbol: str | None, axis: int) -> int:
    """Usual size of an open dimension, for a hint."""
    if symbol and (_SEQUENCE.search(symbol) or "past" in symbol):
        return 128
    if axis == 0 or (symbol and _BATCH.search(symbol)):
        return 1
    return 128 if axis == 1 else 224
