"""Bodies of functions, which most passes leave as they are."""

from __future__ import annotations

from hetero_tvm.host.tvm import PrimFunc, Stmt


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """``func`` with another body; ``func`` itself where it is its own.

    To make a function takes TVM milliseconds, several times as long as a search of its body.
    """
    return func if body.same_as(func.body) else func.with_body(body)
