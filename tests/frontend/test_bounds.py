"""Ends of ranges that nobody gave."""

from hetero_tvm.frontend.bounds import default_high, within
from hetero_tvm.frontend.signature import Span


def test_ranges_without_an_end_are_cut_at_what_the_model_takes():
    declared = {"x": ["b", "s"], "mask": ["b", "s"]}
    given = {"x": (Span(), Span(2)), "mask": (Span(), Span())}
    found = within(given, declared, {"x": [4, 100], "mask": [None, 100]})
    assert found == {"x": (Span(1, 4), Span(2, 100)), "mask": (Span(1, 4), Span(2, 100))}


def test_what_is_left_as_it_is():
    declared = {"x": ["b", "s"], "mask": ["b", "s"]}
    given = {"x": (3, Span(2, 600)), "mask": (3, Span())}
    assert within(given, declared, {"x": [8, 100], "mask": [8, 100]}) == given  # an end was given
    wide = {"x": (Span(), Span())}
    assert within(wide, declared, {"x": [default_high(0), 4096]}) == wide  # ours come first
    steps = {"x": (1, Span(64, None, 64))}
    assert within(steps, declared, {"x": [None, 100]}) == {"x": (1, Span(64, 100, 64))}
    assert within(steps, declared, {"x": [None, 63]}) == steps  # the importer says what does not fit
