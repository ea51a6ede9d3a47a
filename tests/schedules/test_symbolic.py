"""Numbers at several sizes become expressions of the sizes; what is none is told."""

import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.runtime.signature import size_of
from hetero_tvm.schedules.extents import Extent, Unfit, quotient
from hetero_tvm.schedules.fitting import fit, telling
from hetero_tvm.schedules.symbolic import Witnesses, lifted, rebased

SIZES = ({"b": 8, "s": 256}, {"b": 7, "s": 256}, {"b": 8, "s": 211}, {"b": 5, "s": 163})


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda b, s: 3, "3"),
        (lambda b, s: b * s * 384, "384*b*s"),
        (lambda b, s: s * s, "s*s"),
        (lambda b, s: 12 * b * s * s, "12*b*s*s"),
        (lambda b, s: s - 1, "s - 1"),
        (lambda b, s: b + s, "b + s"),
        (lambda b, s: b * (2 * s + 1), "2*b*s + b"),
        (lambda b, s: 3 * b * s + 1, "3*b*s + 1"),
    ],
)
def test_a_polynomial_is_found_and_holds_at_other_sizes(of, text):
    found = fit([of(**sizes) for sizes in SIZES], SIZES)
    assert str(found) == text
    value = found.at({"b": 3, "s": 10}) if isinstance(found, Extent) else found
    assert value == of(3, 10)


@pytest.mark.parametrize("of", [lambda b, s: -(-s // 16), lambda b, s: s % 7, lambda b, s: b * b * b * s])
def test_what_is_no_polynomial_is_refused(of):
    with pytest.raises(Unfit, match="no polynomial"):
        fit([of(**sizes) for sizes in SIZES], SIZES)


def test_tuples_are_lifted_item_by_item_and_other_things_must_be_equal():
    assert lifted([(1, s["s"], "x") for s in SIZES], SIZES, str) == (1, "s", "x")
    with pytest.raises(Unfit, match="as the sizes are"):
        lifted([0.5, 0.5, 0.25, 0.5], SIZES, str)
    with pytest.raises(Unfit, match="items"):
        lifted([(1,), (1,), (1, 2), (1,)], SIZES, str)


def test_a_contract_is_known_at_every_size():
    def op(b, s):
        return Attention(b, 4, s, s, 32, 0.5, 2, mask=(b, 1, 1, s))

    witnesses = Witnesses(tuple(op(**sizes) for sizes in SIZES), SIZES)
    assert witnesses.at({"b": 3, "s": 17}) == op(3, 17)


def of_sizes(*values):
    """The polynomial that has these values at the sizes."""
    return fit(values, SIZES)


def test_sums_and_products_mix():
    sizes = ({"b": 5, "p": 64, "s": 16}, {"b": 3, "p": 64, "s": 16}, {"b": 5, "p": 53, "s": 16})
    sizes += ({"b": 5, "p": 64, "s": 13}, {"b": 2, "p": 41, "s": 11})
    found = fit([at["b"] * (at["p"] + at["s"]) for at in sizes], sizes)
    assert str(found) == "b*p + b*s"
    assert found.at({"b": 3, "p": 0, "s": 7}) == 21


def test_a_kernel_counts_in_what_its_operands_tell():
    b, s = (of_sizes(*(at[name] for at in SIZES)) for name in "bs")
    longer = of_sizes(*(at["s"] + 1 for at in SIZES))
    both = of_sizes(*(at["b"] * at["s"] for at in SIZES))
    area = of_sizes(*(3 * at["b"] * at["s"] * at["s"] for at in SIZES))
    assert str(rebased([b, s]).of(longer)) == "s + 1"
    own = rebased([b, longer])  # the kernel's s is the model's s + 1
    assert (str(own.of(longer)), str(own.of(s))) == ("s", "s - 1")
    assert str(own.of(both)) == "b*s - b"
    own = rebased([both])
    assert own.products == (("b", "s"),)
    assert str(own.of(both)) == "b_x_s" and str(own.of(area)) == "3*b_x_s*s"


def test_a_product_with_a_quotient_is_one_symbol():
    """Rows of an image in strides of 16 times columns that are computed: neither is told alone."""
    rows = quotient(Extent(((("h",), 1),)), 16)
    area = Extent(tuple(((*names, "w"), factor) for names, factor in rows.terms))
    own = rebased([area])
    assert own.of(area).symbol == "h_16_x_w"
    twice = Extent(tuple((names, 2 * factor) for names, factor in area.terms))
    assert str(own.of(twice)) == "2*h_16_x_w" and own.of(twice).at({"h_16_x_w": 15}) == 30
    assert rebased([area, Extent(((("h",), 1),))]).of(area).at({"h_16_x_w": 6, "h": 32}) == 6


def test_a_multiple_of_a_symbol_is_one():
    images, pairs, b = (of_sizes(*(count * at["b"] for at in SIZES)) for count in (16, 24, 1))
    own = rebased([images, pairs])
    assert own.of(images).symbol == "b_x_16"
    assert str(own.of(b)) == "(b_x_16//16)" and str(own.of(pairs)) == "24*(b_x_16//16)"
    half = quotient(Extent((((("b",), 1)), ((), 1))), 2)
    assert own.of(half).at({"b_x_16": 16 * 5}) == 3
    assert rebased([images, b]).multiples == {}


def test_a_sum_of_two_is_one_symbol():
    total = of_sizes(*(at["b"] + at["s"] for at in SIZES))
    own = rebased([total])
    assert own.of(total).symbol == "b"
    assert str(own.of(of_sizes(*(2 * (at["b"] + at["s"]) + 1 for at in SIZES)))) == "2*b + 1"


def test_a_symbol_that_nothing_tells_is_named():
    (extent,) = [of_sizes(*(at["s"] for at in SIZES))]
    with pytest.raises(Unfit, match="no operand has the extent s alone"):
        extent.expression({}, "int64")


def test_a_quotient_is_one_of_another_that_is_told_apart_by_whole_steps():
    """Convolutions of stride 4 and then 2, with pads: the second tells its image by that of the first."""
    first, second, other = (quotient(Extent(((("h",), 1), ((), n))), d) for n, d in ((3, 4), (7, 8), (6, 8)))
    own = rebased([first])
    assert str(own.of(second)) == "((h_3_4 + 1)//2)"
    assert own.of(other) == other  # (h + 6)//8 is no quotient of (h + 3)//4
    for h in range(100):
        assert own.of(second).at({"h_3_4": (h + 3) // 4}) == second.at({"h": h}) == (h + 7) // 8


def test_half_of_a_quotient_rounded_up_is_a_symbol():
    """It may be told as the quotient without its half rounded down, and then tells neither of them."""
    h = Extent(((("h",), 1), ((), 15)))
    half = Extent(((quotient(h, 16).terms[0][0], 1), (quotient(h, 32).terms[0][0], -1)))
    assert half.at({"h": 65}) == 3 and half.at({"h": 16}) == 1
    assert rebased([half]).of(half).symbol == "h_15_16"
    larger = quotient(Extent(((("h",), 1), ((), 3))), 4)
    own = rebased([half, larger])
    assert [own.of(extent).symbol for extent in (half, larger)] == ["h_15_16", "h_3_4"]


def test_quotients_of_quotients_are_one_and_their_texts_are_read_again():
    half = quotient(Extent((((("n",), 1)), ((), 3))), 2)
    assert str(half) == "((n + 1)//2) + 1"
    third = quotient(half, 3)
    assert str(third) == "((n + 3)//6)"
    for n in range(40):
        assert half.at({"n": n}) == (n + 3) // 2
        assert third.at({"n": n}) == (n + 3) // 2 // 3
        assert size_of(str(half), {"n": n}) == (n + 3) // 2


def test_numbers_are_sums_of_a_symbol_and_its_quotients():
    names = ["((n + 3)//4)"]
    sizes = telling({"n": 64}, names, {"n": [63, 53, 41, 47, 37]})
    padded = fit([4 * -(-at["n"] // 4) - at["n"] for at in sizes], sizes)
    assert all(padded.at({"n": n}) == -n % 4 for n in range(1, 80))


def test_sums_of_areas_are_found():
    """Pixels of two levels of a pyramid, and a token; times a batch too."""
    levels = ["((h + 3)//4)", "((h + 7)//8)", "((w + 3)//4)", "((w + 7)//8)"]
    others = {name: [79, 61, 89, 74, 38, 48, 34] for name in ("h", "w")} | {"b": [3, 2, 4]}

    def of(at):
        first, second = (-(-at["h"] // d) * -(-at["w"] // d) for d in (4, 8))
        return at["b"] * (9 * first + 9 * second + 1)

    sizes = telling({"b": 5, "h": 97, "w": 97}, levels, others)
    found = fit([of(at) for at in sizes], sizes)
    for at in ({"b": 1, "h": 17, "w": 90}, {"b": 2, "h": 32, "w": 31}):
        assert found.at(at) == of(at)
