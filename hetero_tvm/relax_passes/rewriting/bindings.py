"""Rewriting a Relax function binding by binding, branches included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import RelaxFunction, relax

Each = Callable[[relax.Binding], "list[relax.Binding]"]


def map_bindings(function: RelaxFunction, each: Each, first: Sequence[relax.Binding] = ()) -> RelaxFunction:
    """``function`` (without dataflow blocks) with ``each(binding)`` in the place of every binding.

    ``first`` are bindings to put before all others.  The branches of an ``If`` are rewritten before
    the binding that it belongs to.
    """
    body = _body(function.body, each)
    blocks = [relax.BindingBlock(list(first)), *body.blocks] if first else list(body.blocks)
    body = relax.SeqExpr(blocks, body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _body(body: relax.SeqExpr, each: Each) -> relax.SeqExpr:
    blocks = []
    for block in body.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                branches = (_body(branch, each) for branch in (value.true_branch, value.false_branch))
                binding = relax.VarBinding(binding.var, relax.If(value.cond, *branches))
            bindings += each(binding)
        blocks.append(relax.BindingBlock(bindings))
    return relax.SeqExpr(blocks, body.body)
