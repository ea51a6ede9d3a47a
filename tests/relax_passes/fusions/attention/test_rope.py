"""Rotary embedding in its spellings, near misses with reasons, random shapes against the unfused module."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.rope import Rope
from hetero_tvm.relax_passes.fusions.attention.rope import FuseRope
from tests.relax_passes.graphs import calls, constant, contracts, fuse, module, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite, kernel

B, S, H, D = 2, 4, 3, 8


def cut(emit, x, start, stop, step=1):
    return emit(op.strided_slice(x, [-1], [start], [stop], [step]))


def rotated(emit, x, interleaved=False, negate=lambda emit, x: emit(op.negative(x))):
    shape = [int(e) for e in x.ty.shape]
    rotary = shape[-1]
    if interleaved:
        first, second = cut(emit, x, 0, 2**63 - 1, 2), cut(emit, x, 1, 2**63 - 1, 2)
        parts = [emit(op.expand_dims(p, -1)) for p in (negate(emit, second), first)]
        return emit(op.reshape(emit(op.concat(parts, -1)), shape))
    first, second = cut(emit, x, 0, rotary // 2), cut(emit, x, rotary // 2, 2**63 - 1)
    return emit(op.concat([negate(emit, second), first], -1))


def rope(emit, x, cos, sin, interleaved=False, **more):
    turned = emit(op.multiply(rotated(emit, x, interleaved, **more), sin))
    return emit(op.add(emit(op.multiply(x, cos)), turned))


def by_parts(emit, x, cos, sin, interleaved=False):
    """RotaryEmbedding as ONNX defines it: tables of one value per pair."""
    shape = [int(e) for e in x.ty.shape]
    half = shape[-1] // 2
    ends = ((0, half, 1), (half, shape[-1], 1)) if not interleaved else ((0, 2**63 - 1, 2), (1, 2**63 - 1, 2))
    first, second = (cut(emit, x, *end) for end in ends)
    product = lambda a, b: emit(op.multiply(a, b))  # noqa: E731
    real = emit(op.subtract(product(cos, first), product(sin, second)))
    imaginary = emit(op.add(product(sin, first), product(cos, second)))
    if not interleaved:
        return emit(op.concat([real, imaginary], -1))
    parts = [emit(op.expand_dims(p, -1)) for p in (real, imaginary)]
    return emit(op.reshape(emit(op.concat(parts, -1)), shape))


def heads(emit, x):
    return emit(op.permute_dims(emit(op.reshape(x, (B, S, H, -1))), [0, 2, 1, 3]))


def fused(inputs, body):
    before = module(inputs, body)
    after, _, report = fuse(before, FuseRope())
    assert report.fusions == {"rope": 1} and not report.misses
    same_numbers(before, after)
    (found,) = contracts(after, "rope")
    return found, calls(after)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("spelling", [rope, by_parts])
def test_both_spellings_read_the_projection_in_place(spelling, interleaved):
    width = D if spelling is rope else D // 2
    inputs = {"x": (B, S, H * D), "cos": (1, 1, S, width), "sin": (1, 1, S, width)}
    found, kinds = fused(inputs, lambda e, x, c, s: spelling(e, heads(e, x), c, s, interleaved))
    assert kinds == {"rope": 1} and found.interleaved == interleaved
    assert found.per_pair == (spelling is by_parts)
    assert found.source == (B, S, H * D) and found.place == (0, S * H * D, D, H * D)


def test_constant_tables_are_halved():
    half = weights(1, 1, S, D // 2)
    table = constant(np.concatenate([half, half], -1))
    found, kinds = fused({"x": (B, S, H * D)}, lambda e, x: rope(e, heads(e, x), table, table))
    assert found.per_pair and kinds == {"rope": 1}


def test_tables_of_positions_computed_at_run_time():
    def body(emit, x, angles):
        both = emit(op.expand_dims(emit(op.concat([angles, angles], -1)), 1))
        return rope(emit, heads(emit, x), emit(op.cos(both)), emit(op.sin(both)))

    found, kinds = fused({"x": (B, S, H * D), "angles": (B, S, D // 2)}, body)
    assert found.table == (B, 1, S, D) and kinds["concat"] == 1


def test_heads_behind_positions():
    inputs = {"x": (B, S, H * D), "cos": (1, S, 1, D), "sin": (1, S, 1, D)}
    found, _ = fused(inputs, lambda e, x, c, s: rope(e, e(op.reshape(x, (B, S, H, D))), c, s, True))
    assert found.shape == (B, S, H, D) and found.table == (1, S, 1, D)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_rest_of_a_head_is_taken_in(interleaved):
    def body(emit, x, c, s):
        x = heads(emit, x)
        turned = rope(emit, cut(emit, x, 0, 4), c, s, interleaved)
        return emit(op.concat([turned, cut(emit, x, 4, 2**63 - 1)], -1))

    found, kinds = fused({"x": (B, S, H * D), "cos": (1, 1, S, 4), "sin": (1, 1, S, 4)}, body)
    assert found.rotary == 4 and found.shape[-1] == D and kinds == {"rope": 1}


def test_another_tensor_appended_stays_outside():
    def body(emit, x, y, c, s):
        turned = rope(emit, heads(emit, x), c, s)
        return emit(op.concat([turned, y], -1))

    inputs = {"x": (B, S, H * D), "y": (B, H, S, 2), "cos": (1, 1, S, D), "sin": (1, 1, S, D)}
    found, kinds = fused(inputs, body)
    assert found.rotary == found.shape[-1] == D and kinds == {"rope": 1, "concat": 1}


def test_a_negation_written_as_a_product():
    minus = lambda emit, x: emit(op.multiply(x, constant(-1.0)))  # noqa: E731
    inputs = {"x": (B, S, H * D), "cos": (S, D), "sin": (S, D)}
    fused(inputs, lambda e, x, c, s: rope(e, heads(e, x), c, s, negate=minus))


def miss(inputs, body):
    before = module(inputs, body)
    after, _, report = fuse(before, FuseRope())
    assert not report.fusions
    same_numbers(before, after)
    return report.misses[0]["reason"] if report.misses else None


TABLES = {"cos": (S, D), "sin": (S, D)}


def test_halves_in_the_wrong_order():
    def body(emit, x, c, s):
        x = heads(emit, x)
        first, second = cut(emit, x, 0, D // 2), cut(emit, x, D // 2, D)
        turned = emit(op.concat([emit(op.negative(first)), second], -1))
        return emit(op.add(emit(op.multiply(x, c)), emit(op.multiply(turned, s))))

    reason = "the two halves are not the halves of one tensor that lies in rows"
    assert miss({"x": (B, S, H * D), **TABLES}, body) == reason


def test_another_tensor_with_the_cosines():
    def body(emit, x, y, c, s):
        turned = emit(op.multiply(rotated(emit, heads(emit, x)), s))
        return emit(op.add(emit(op.multiply(heads(emit, y), c)), turned))

    assert "halves" in miss({"x": (B, S, H * D), "y": (B, S, H * D), **TABLES}, body)


def test_tables_that_differ_by_head_are_fine_and_of_other_widths_are_not():
    inputs = {"x": (B, S, H * D), "cos": (1, H, S, D), "sin": (1, H, S, D)}
    assert fused(inputs, lambda e, x, c, s: rope(e, heads(e, x), c, s))[0].table == (1, H, S, D)
    inputs = {"x": (B, S, H * D), "cos": (1, 1, S, 1), "sin": (1, 1, S, 1)}
    assert "halves" in miss(inputs, lambda e, x, c, s: rope(e, heads(e, x), c, s))


def test_a_rotated_half_that_is_not_added():
    reason = "a negated and a plain part are joined, but no product with it is added to another"
    assert miss({"x": (B, S, H * D)}, lambda e, x: rotated(e, heads(e, x))) == reason


def test_other_concatenations_are_no_near_misses():
    assert miss({"x": (B, S), "y": (B, S)}, lambda e, x, y: e(op.concat([x, y], -1))) is None
    assert miss({"x": (B, S), "y": (B, S)}, lambda e, x, y: e(op.concat([e(op.sin(x)), y, x], -1))) is None


def test_pairs_without_another_axis_are_no_near_misses():
    def body(emit, x, y):
        return emit(op.reshape(emit(op.concat([x, y], 0)), (1, 2)))

    assert miss({"x": (1,), "y": (1,)}, body) is None


@settings(max_examples=25)
@given(st.data())
def test_random_shapes(data):
    draw = data.draw
    batch, length, count = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rotary, rest = 2 * draw(st.integers(1, 4)), draw(st.integers(0, 3))
    interleaved, spelling = draw(st.booleans()), draw(st.sampled_from((rope, by_parts)))
    dim = rotary + rest
    width = rotary if spelling is rope else rotary // 2
    packed = draw(st.booleans())

    def body(emit, x, c, s):
        if packed:
            x = cut(emit, x, count * dim, 2 * count * dim)
        x = emit(op.permute_dims(emit(op.reshape(x, (batch, length, count, dim))), [0, 2, 1, 3]))
        turned = spelling(emit, cut(emit, x, 0, rotary) if rest else x, c, s, interleaved)
        if not rest:
            return turned
        return emit(op.concat([turned, cut(emit, x, rotary, dim)], -1))

    inputs = {"x": (batch, length, (2 if packed else 1) * count * dim)}
    if rotary == 2 and interleaved:
        return  # the parts have one element each: either pairing is the same
    fused({**inputs, "cos": (length, width), "sin": (length, width)}, body)


class TestFuseRope(Rewrite):
    rule = FuseRope()
    inputs = {"x": (2, 3, 4, 8), "cos": (4, 8), "sin": (4, 8)}

    def before(self, x, cos, sin):
        first = op.strided_slice(x, [3], [0], [4], [1])
        second = op.strided_slice(x, [3], [4], [8], [1])
        turned = op.multiply(op.concat([op.negative(second), first], 3), sin)
        return op.add(op.multiply(x, cos), turned)

    def expected(self, x, cos, sin):
        cos, sin = op.reshape(cos, (1, 1, 4, 8)), op.reshape(sin, (1, 1, 4, 8))
        shape = (2, 3, 4, 8)
        return kernel(Rope(shape, 8, False, (1, 1, 4, 8), shape, (0, 96, 32, 8)), x, cos, sin)
