"""Operators on complex numbers as operators on their parts, which PyTorch's exporter can translate.

The exporter holds a complex tensor as a real one with a last axis of two, and knows few operators on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_PARTWISE = (
    "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar", "neg.default",
    "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default",
    "view.default", "reshape.default", "_unsafe_view.default", "permute.default", "transpose.int",
    "t.default", "numpy_T.default", "mT.default", "movedim.int", "movedim.intlist", "flatten.using_ints",
    "unflatten.int", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
    "expand.default", "expand_as.default", "repeat.default", "tile.default", "flip.default", "roll.default",
    "slice.Tensor", "select.int", "narrow.default", "index.Tensor", "index_select.default", "gather.default",
    "take_along_dim.default", "diagonal.default", "diag_embed.default", "unfold.default", "tril.default",
    "triu.default", "cat.default", "stack.default", "split.Tensor", "split_with_sizes.default",
    "chunk.default", "unbind.int", "constant_pad_nd.default", "where.self", "where.ScalarOther",
    "where.ScalarSelf", "masked_fill.Scalar", "masked_fill.Tensor", "index_put.default", "index_copy.default",
    "index_add.default", "scatter.src", "scatter_add.default", "select_scatter.default",
    "slice_scatter.default", "copy.default", "clone.default", "contiguous.default", "alias.default",
    "detach.default", "lift_fresh_copy.default", "resolve_conj.default", "resolve_neg.default",
    "fft_fftshift.default", "fft_ifftshift.default", "slice_backward.default", "select_backward.default",
    "diagonal_backward.default", "unfold_backward.default",
)  # fmt: skip
"""Operators that do the same to both parts, or nothing but move elements."""

_PRODUCTS = (
    "mul.Tensor", "mul.Scalar", "mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default",
    "outer.default",
)  # fmt: skip
"""Operators that are linear in each of two operands."""


def decompositions(torch: ModuleType, program: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Operators of a program with complex numbers; on real tensors they are as they were.

    Composite ones of the program (``einsum``, norms) become what PyTorch makes of them.
    """
    aten, tree = torch.ops.aten, torch.utils._pytree

    def is_complex(value: Any) -> bool:
        return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())

    def real(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.view_as_real(value).select(-1, 0) if value.is_complex() else value
        return value.real if isinstance(value, complex) else value

    def imaginary(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                return torch.view_as_real(value).select(-1, 1)
            return torch.zeros_like(value) if value.is_floating_point() else value  # positions, masks
        if isinstance(value, complex):
            return value.imag
        return 0.0 if isinstance(value, float) else value

    def joined(re: Tensor, im: Tensor) -> Tensor:
        return torch.view_as_complex(torch.stack([re, im], -1))

    def only(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` for complex operands; NotImplemented, which keeps the operator, for others."""

        def chosen(*args: Any, **named: Any) -> Any:
            leaves = tree.tree_leaves((args, {k: v for k, v in named.items() if k != "dtype"}))
            kind = named.get("dtype")
            if not any(map(is_complex, leaves)) and not (kind is not None and kind.is_complex):
                return NotImplemented
            return function(operator, *args, **named)

        return chosen

    def partwise(operator: Any, *args: Any, **named: Any) -> Any:
        """The operator on real and on imaginary parts; a number that is added is real."""
        if named.get("dtype") is not None:
            named["dtype"] = named["dtype"].to_real()
        # Sizes, axes and alpha stay what they are; numbers that are added or filled in have no second part.
        schema = operator._schema.arguments
        filled = [a.name != "alpha" and str(a.type) in ("number", "Scalar", "Tensor") for a in schema]
        second = [
            0 if fills and isinstance(value, int | float) and not isinstance(value, bool) else value
            for value, fills in zip(args, filled, strict=False)
        ]
        re = operator(*tree.tree_map(real, args), **named)
        im = operator(*tree.tree_map(imaginary, tuple(second)), **named)
        if isinstance(re, torch.Tensor):
            return joined(re, im)
        return [joined(*parts) for parts in zip(re, im, strict=True)]

    def product(operator: Any, x: Any, y: Any) -> Tensor:
        if not is_complex(y):
            return joined(operator(real(x), y), operator(imaginary(x), y))
        if not is_complex(x):
            return joined(operator(x, real(y)), operator(x, imaginary(y)))
        a, b, c, d = real(x), imaginary(x), real(y), imaginary(y)
        return joined(operator(a, c) - operator(b, d), operator(a, d) + operator(b, c))

    def added_product(
        operator: Any, x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Any:
        return x * beta + torch.matmul(a, b) * alpha

    def reciprocal(_: Any, x: Tensor) -> Tensor:
        re, im = real(x), imaginary(x)
        # By the larger part, so that squares neither overflow nor vanish.
        scale = torch.maximum(re.abs(), im.abs())
        re, im = re / scale, im / scale
        size = (re * re + im * im) * scale
        return joined(re / size, -im / size)

    def quotient(operator: Any, x: Any, y: Any) -> Tensor:
        return (
            x * (1.0 / y)
            if isinstance(y, complex)
            else x * y.reciprocal()
            if is_complex(y)
            else (joined(real(x) / y, imaginary(x) / y))
        )

    def length(_: Any, x: Tensor) -> Tensor:
        return torch.hypot(real(x), imaginary(x))

    def exponential(_: Any, x: Tensor) -> Tensor:
        size, angle = real(x).exp(), imaginary(x)
        return joined(size * angle.cos(), size * angle.sin())

    def logarithm(_: Any, x: Tensor) -> Tensor:
        return joined(x.abs().log(), x.angle())

    def root(_: Any, x: Tensor) -> Tensor:
        size, half = x.abs().sqrt(), x.angle() / 2
        return joined(size * half.cos(), size * half.sin())

    def power(_: Any, x: Any, exponent: Any) -> Any:
        if isinstance(exponent, int) and 0 < abs(exponent) <= 64:
            result, base, n = None, x, abs(exponent)
            while n:
                if n & 1:
                    result = base if result is None else result * base
                base, n = (base * base if n > 1 else base), n >> 1
            return result.reciprocal() if exponent < 0 else result
        if not isinstance(x, torch.Tensor):
            return torch.exp(exponent * complex(math.log(x)))
        return torch.exp(torch.log(x if x.is_complex() else x.to(exponent.dtype)) * exponent)

    def direction(_: Any, x: Tensor) -> Tensor:
        size = x.abs()
        size = torch.where(size == 0, 1.0, size)
        return joined(real(x) / size, imaginary(x) / size)

    def conjugate(_: Any, x: Any) -> Tensor:
        if isinstance(x, complex):
            return joined(*(torch.full((), part, dtype=torch.float64) for part in (x.real, -x.imag)))
        return joined(real(x), -imaginary(x))

    def hermitian_spectrum(x: Tensor, n: Any = None, dim: int = -1, norm: str | None = None) -> Tensor:
        """``ihfft``, whose own conjugate is one in name only, which has no parts to read."""
        turned = {"forward": "backward", "ortho": "ortho"}.get(norm or "backward", "forward")
        return conjugate(None, torch.fft.rfft(x, n, dim, turned))

    def inner_product(_: Any, x: Tensor, y: Tensor) -> Tensor:
        """Sums over the last axes, for all rows of one beside all rows of the other."""
        if not x.dim() or not y.dim():
            return x * y
        rows = x.reshape(-1, x.shape[-1]) @ y.reshape(-1, y.shape[-1]).transpose(0, 1)
        return rows.reshape(*x.shape[:-1], *y.shape[:-1])

    def converted(operator: Any, x: Tensor, *args: Any, **named: Any) -> Any:
        kind = named.get("dtype")
        if kind is None or kind.is_complex:
            part = x.dtype.to_real() if kind is None else kind.to_real()
            re = real(x).to(part)
            return joined(re, imaginary(x).to(part) if x.is_complex() else torch.zeros_like(re))
        return real(x).to(kind)

    def filled(operator: Any, *args: Any, **named: Any) -> Any:
        """A tensor of one number."""
        kind = named.pop("dtype", None)
        name, rest = operator._schema.name, list(args[1:])
        sizes = args[0].shape if isinstance(args[0], torch.Tensor) else args[0]
        if "::new_" in name:
            sizes = rest.pop(0)
        value = rest[0] if "full" in name else 1.0 if "ones" in name else 0.0
        kind = kind or (args[0].dtype if isinstance(args[0], torch.Tensor) else torch.complex64)
        if not kind.is_complex:
            return torch.full(sizes, value, dtype=kind)
        value, part = complex(value), kind.to_real()
        return joined(*(torch.full(sizes, p, dtype=part) for p in (value.real, value.imag)))

    def equal(operator: Any, x: Any, y: Any) -> Tensor:
        same = (real(x) == real(y)) & (imaginary(x) == imaginary(y))
        return same if "eq" in operator._schema.name else ~same

    def of(names: tuple[str, ...] | str, function: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
        found = {}
        for name in names if isinstance(names, tuple) else (names,):
            family, _, overload = name.partition(".")
            operator = getattr(getattr(aten, family, None), overload or "default", None)
            if operator is not None:
                found[operator] = only(operator, function)
        return found

    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    targets = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    return {
        **{
            # Not by decompose(), which asks the very table that is made here.
            operator: only(
                operator, lambda operator, *args, **named: operator._op_dk(composite, *args, **named)
            )
            for operator in targets
            if operator.has_kernel_for_dispatch_key(composite)
        },
        **of(_PARTWISE, partwise),
        **of(_PRODUCTS, product),
        **of(("addmm.default", "baddbmm.default"), added_product),
        **of(("div.Tensor", "div.Scalar", "true_divide.Tensor"), quotient),
        **of("reciprocal", reciprocal),
        **of("abs", length),
        **of("exp", exponential),
        **of("log", logarithm),
        **of("sqrt", root),
        **of("square", lambda _, x: x * x),
        **of(("pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor_Tensor"), power),
        **of("sgn", direction),
        **of(("conj", "_conj", "conj_physical", "_conj_physical"), conjugate),
        aten.fft_ihfft.default: hermitian_spectrum,
        **of("vdot", lambda _, x, y: (conjugate(None, x) * y).sum()),
        **of("inner", inner_product),
        **of("real", lambda _, x: real(x)),
        **of("imag", lambda _, x: imaginary(x)),
        **of("complex", lambda _, x, y: joined(x, y)),
        **of(("_to_copy", "to.dtype"), converted),
        **of(
            (
                *("full", "zeros", "ones", "empty.memory_format", "full_like", "ones_like", "zeros_like"),
                *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "empty_like"),
            ),
            filled,
        ),
        **of(("eq.Tensor", "ne.Tensor"), equal),
    }
