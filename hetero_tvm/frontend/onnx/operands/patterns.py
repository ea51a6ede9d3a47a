"""Patterns of the shapes that operands of a node must have.

A pattern is one extent per axis: a number, a letter that is one extent in all operands of a node, a product
(``3*H``) or a sum (``P+S``) of such, or ``...`` first or last for any axes; ``|`` parts alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx

from hetero_tvm.errors import ModelError

Shape = tuple[int | None, ...]
ShapeOf = Callable[[str], Shape | None]
"""Shape of a tensor as far as it is known (None for dimensions that are not)."""
Known = Mapping[str, int]
"""Extent by letter."""


def refuse_unfit(node: onnx.NodeProto, patterns: Mapping[int, str], shape_of: ShapeOf, known: Known) -> None:
    """Refuse a node whose operands, as far as their shapes are known, do not fit each other.

    ``patterns`` : pattern of the shape of each input by number, and what letters are ``known`` to be.

    Raises
    ------
    ModelError : they do not; names the node, its operands and their shapes.
    """
    inputs = {n: node.input[n] for n in patterns if n < len(node.input) and node.input[n]}
    shapes = {n: shape for n, name in inputs.items() if (shape := shape_of(name)) is not None}
    if _fit([(patterns[n], shape) for n, shape in shapes.items()], known, []):
        return
    raise unfit(node, {inputs[n]: shape for n, shape in shapes.items()})


def unfit(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> ModelError:
    """Error on a node whose operands do not go together."""
    listed = ", ".join(f"{name} {list(shape)}".replace("None", "?") for name, shape in shapes.items())
    return ModelError(
        f"Node {node.name!r} ({node.op_type}) has operands of shapes that do not go together: {listed}.",
        hint="Check the program that wrote the file; the documentation of the operator says which shapes go.",
    )


def _fit(operands: list[tuple[str, Shape]], known: Known, later: list[tuple[str, int]]) -> bool:
    """Whether shapes match alternatives of their patterns; ``later`` : terms that are compared at the end."""
    if not operands:
        values = [(_value(term, known), extent) for term, extent in later]
        return all(value in (None, extent) for value, extent in values)
    (pattern, shape), *rest = operands
    for alternative in pattern.split("|"):
        terms = alternative.split()
        extents = shape
        if terms[:1] == ["..."]:
            terms = terms[1:]
            extents = shape[max(0, len(shape) - len(terms)) :]
        elif terms[-1:] == ["..."]:
            terms = terms[:-1]
            extents = shape[: len(terms)]
        if len(terms) != len(extents):
            continue
        bound, waiting, fits = dict(known), list(later), True
        for term, extent in zip(terms, extents, strict=True):
            if extent is None:
                continue
            value = _value(term, bound)
            if value is None and (solved := _solved(term, bound)) and solved[1]:
                letter, factor = solved
                fits = fits and extent % factor == 0
                bound[letter] = extent // factor
            elif value is None:
                waiting.append((term, extent))
            else:
                fits = fits and value == extent
        if fits and _fit(rest, bound, waiting):
            return True
    return False


def _solved(term: str, known: Known) -> tuple[str, int] | None:
    """The one unknown letter of a product, and what it is multiplied with; None for other terms."""
    factors = term.split("*")
    unknown = [factor for factor in factors if _value(factor, known) is None]
    if "+" in term or len(unknown) != 1:
        return None
    factors.remove(unknown[0])
    return unknown[0], math.prod(_value(factor, known) or 0 for factor in factors)


def _value(term: str, known: Known) -> int | None:
    """Extent that a term says, as far as its letters are known."""
    total = 0
    for product in term.split("+"):
        factors = [int(f) if f.isdigit() else known.get(f) for f in product.split("*")]
        if None in factors:
            return None
        total += math.prod(f for f in factors if f is not None)
    return total
