"""Lines of the next panel: all of them are asked for, and none behind it."""

import pytest

from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.cpu import next_panel
from hetero_tvm.schedules.emit import int32


def number(expression):
    return int(tvm.sym.Analyzer().simplify(expression))


@pytest.mark.parametrize(("share", "lines", "products"), [(4, 16, 4), (5, 16, 4), (3, 16, 6), (20, 16, 2)])
def test_shares_cover_a_panel_and_end_with_it(share, lines, products):
    starts = [number(next_panel.first_line(int32(n), share, lines)) for n in range(products)]
    asked = {line for start in starts for line in range(start, start + share)}
    assert asked >= set(range(lines))
    assert max(asked) < max(lines, share)


def test_the_last_panel_is_followed_by_itself():
    at = [number(next_panel.following(int32(panel), 3)) for panel in range(3)]
    assert at == [1, 2, 2]
