"""One rewrite of a rule as *Before* and *Expected*, compared by structure."""

from __future__ import annotations

from typing import ClassVar

from hetero_tvm.host.tvm import relax, te, tvm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from tests.relax_passes.graphs import bindings, fuse, module, names_of


class Rewrite:
    """A rule, the inputs of a small function, and its body before and after the rule.

    A body takes the inputs and returns an expression, or a tuple of results: nested calls become bindings,
    each operand before its user, and an expression that is used twice is bound once.  ``inputs`` are as in
    :func:`tests.relax_passes.graphs.module`.
    """

    rule: ClassVar[GraphPass]
    inputs: ClassVar[dict[str, tuple]] = {"x": (2, 3, 4)}

    def before(self, *inputs):
        raise NotImplementedError

    def expected(self, *inputs):
        raise NotImplementedError

    def test_rewrite(self):
        before, expected = (
            module(self.inputs, lambda emit, *inputs, body=body: body(*inputs))
            for body in (self.before, self.expected)
        )
        after, names, report = fuse(before, self.rule)
        assert report.misses == []
        assert names_of(before) <= set().union(*names.values())
        # The Relax part, in which kernels are free variables, and the contracts of the kernels in order.
        after = relax.transform.CanonicalizeBindings()(after)
        tvm.ir.assert_structural_equal(after["main"], expected["main"], map_free_vars=True)
        assert contracts(after) == contracts(expected)


def bind(value):
    """``value`` bound right here, where a body must say the order of what it computes."""
    return relax.BlockBuilder.current().emit(value)


def kernel(op: FusedOp, *operands):
    """The call of a fused operator."""
    function = relax.BlockBuilder.current().add_func(op.workload(), op.label)
    types = [relax.TensorType(output.shape, output.dtype) for output in op.outputs]
    return relax.call_tir(function, operands, out_ty=types if len(types) > 1 else types[0])


def any_function(shape, dtype, name="any", others=()):
    """A kernel without a contract, of a tensor like its result and ``others``: pairs (shape, dtype)."""
    given = [te.placeholder(s, d, f"x{n}") for n, (s, d) in enumerate([(shape, dtype), *others])]
    return te.create_prim_func([*given, te.compute(shape, lambda *i: given[0](*i), name)])


def any_kernel(name, shape, dtype, *operands):
    """The call of a kernel without a contract, whatever it computes."""
    function = relax.BlockBuilder.current().add_func(any_function(shape, dtype, name), name)
    return relax.call_tir(function, operands, out_ty=relax.TensorType(shape, dtype))


def contracts(mod):
    """The contract of every kernel that ``main`` calls, as JSON."""
    found = (contract(mod, binding.value) for binding in bindings(mod))
    return [op.to_json() for op in found if op is not None]
