"""``custom_call``: functions of LAPACK, which JAX calls on the CPU, and approximate selections.

Matrices are bounded in size: most functions write each row or column as a step of plain operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from hetero_tvm.frontend.nodes import Untranslatable
from hetero_tvm.frontend.stablehlo import matrices, sorting, spectra
from hetero_tvm.frontend.stablehlo.op import Op

_MOST_ROWS = 64
"""Rows or columns of a matrix."""


def called(op: Op) -> Sequence[str]:
    """``custom_call``: a function of LAPACK or a selection; :class:`Untranslatable` names any other."""
    target = op.text("call_target_name").strip('"')
    if target == "Sharding":
        return op.inputs
    if target == "ApproxTopK":
        return sorting.nearly_largest(op)
    found = re.fullmatch(r"lapack_[sd](\w+?)(_ffi)?", target)
    if found is None or found[1] not in _CALLS or found[2] is None:
        raise Untranslatable(
            f"no translation of the call {target}{_NAMED.get(found[1] if found else target, '')}"
        )
    shape = op.shape()
    if max(shape[-2:]) > _MOST_ROWS:
        raise Untranslatable(f"the call {target} of a matrix of more than {_MOST_ROWS} rows or columns")
    if 0 in shape:
        raise Untranslatable(f"the call {target} of no matrices")
    return _CALLS[found[1]](op)


_CALLS: Mapping[str, Callable[[Op], Sequence[str]]] = {
    "geqrf": matrices.householder,
    "gesdd": spectra.singular_values,
    "getrf": matrices.lu,
    "orgqr": matrices.reflections,
    "potrf": matrices.cholesky,
    "syevd": spectra.eigenvectors,
    "trsm": matrices.triangular,
}
_NAMED = {
    "cheevd": " (eigenvalues of a complex matrix)",
    "cgesdd": " (singular values of a complex matrix)",
    "gebal": " (balancing of a matrix)",
    "geev": " (eigenvalues of any matrix; jax.numpy.linalg.eigh takes symmetric ones)",
    "gees": " (Schur's form)",
    "gehrd": " (Hessenberg's form)",
    "gesvd": " (singular values by QR; jax.lax.linalg.svd's own choice of an algorithm is taken)",
    "sytrd": " (tridiagonal form)",
}
