"""Bodies of operators that have no name anywhere: expressions in NumPy's terms, read without running them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.frontend.kernels.description import Operator
from hetero_tvm.frontend.kernels.operators import OPERATORS
from hetero_tvm.frontend.nodes import Nodes

_INFIX = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "RealDiv",
    ast.Pow: "Pow",
    ast.MatMult: "MatMul",
    ast.Gt: "Greater",
    ast.GtE: "GreaterEqual",
    ast.Lt: "Less",
    ast.LtE: "LessEqual",
    ast.Eq: "Equal",
    ast.NotEq: "NotEqual",
    ast.BitAnd: "LogicalAnd",
    ast.BitOr: "LogicalOr",
}
_PREFIX = {ast.USub: "Neg", ast.Invert: "LogicalNot"}
_FUNCTIONS = {
    **{name: name.capitalize() for name in ("abs", "ceil", "cos", "erf", "exp", "floor", "log", "maximum")},
    **{name: name.capitalize() for name in ("minimum", "reciprocal", "round", "rsqrt", "sigmoid", "sign")},
    **{name: name.capitalize() for name in ("sin", "sqrt", "square", "tanh")},
    "matmul": "MatMul",
    "power": "Pow",
    "where": "Select",
}
_REDUCTIONS = {name: f"Reduce{name.capitalize()}" for name in ("max", "mean", "min", "prod", "sum")}

Apply = Callable[[Operator, Sequence[Any]], Any]


class BodyError(ValueError):
    """A body that is no expression of the inputs; says which part."""


def evaluate(
    op: Operator, values: Mapping[str, Any], constant: Callable[[float, str], Any], apply: Apply
) -> Any:
    """Walk a body from its leaves: ``values`` are its variables, ``apply`` computes one operator.

    One walk serves NumPy, where a value is an array, and ONNX, where it is a name.

    Raises
    ------
    BodyError : a syntax error, an unknown name or function, or whatever is no expression.
    """
    try:
        tree = ast.parse(op.body or "", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BodyError(f"{op.body!r} is no expression: {error}") from error
    dtype = next((t.dtype for t in op.inputs if t.dtype != "bool"), "float32")

    def call(kind: str, *operands: Any, **attributes: Any) -> Any:
        return apply(Operator(kind, (), op.output, attributes, op.path), operands)

    def visit(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            if node.id in values:
                return values[node.id]
            number = op.attributes.get(node.id)
            if isinstance(number, int | float):
                return constant(number, dtype)
            raise BodyError(f"{node.id} is neither an input nor a number among the attributes")
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return constant(node.value, dtype)
        if isinstance(node, ast.BinOp) and type(node.op) in _INFIX:
            return call(_INFIX[type(node.op)], visit(node.left), visit(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _PREFIX:
            return call(_PREFIX[type(node.op)], visit(node.operand))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _INFIX:
            return call(_INFIX[type(node.ops[0])], visit(node.left), visit(node.comparators[0]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return function(node.func.id, node)
        raise BodyError(f"{ast.unparse(node)!r} cannot be part of a body")

    def function(name: str, node: ast.Call) -> Any:
        operands = [visit(argument) for argument in node.args]
        if name in _FUNCTIONS and not node.keywords:
            kind = _FUNCTIONS[name]
            least, most = OPERATORS[kind].count
            if least <= len(operands) <= most:
                return call(kind, *operands)
            raise BodyError(f"{name} takes {least} operands, not {len(operands)}")
        if name in _REDUCTIONS and len(operands) == 1:
            try:
                options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            except ValueError as error:
                raise BodyError(f"the options of {name} are numbers") from error
            axis, keepdims = options.pop("axis", None), bool(options.pop("keepdims", False))
            axis = list(axis) if isinstance(axis, tuple) else axis
            if not options:
                return call(_REDUCTIONS[name], operands[0], axis=axis, keep_dims=keepdims)
        known = ", ".join(sorted({*_FUNCTIONS, *_REDUCTIONS}))
        raise BodyError(f"{ast.unparse(node)!r}: there are {known}; reductions take axis and keepdims")

    try:
        return visit(tree)
    except RecursionError as error:
        raise BodyError("the body is nested too deeply") from error


def _variables(op: Operator) -> list[str]:
    """Names of the inputs in a body: their roles, else their own names."""
    return [tensor.role or tensor.name for tensor in op.inputs]


def compute(op: Operator, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Value of a body in NumPy, in the type of its inputs."""
    wide = any(array.dtype == np.float64 for array in arrays)

    def apply(one: Operator, operands: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(OPERATORS[one.kind].compute(one, operands))

    def constant(value: float, dtype: str) -> np.ndarray:
        return np.asarray(value, "float64" if wide and np.dtype(dtype).kind == "f" else dtype)

    return evaluate(op, dict(zip(_variables(op), arrays, strict=True)), constant, apply)


def build(nodes: Nodes, op: Operator, names: Sequence[str]) -> str:
    """Name of a body's result in ONNX."""

    def apply(one: Operator, operands: Sequence[str]) -> str:
        return OPERATORS[one.kind].build(nodes, one, operands)

    return evaluate(op, dict(zip(_variables(op), names, strict=True)), nodes.constant, apply)
