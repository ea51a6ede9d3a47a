"""Lines of the next panel: all of them are asked for, and none behind it."""

from contextlib import contextmanager

import pytest

from hetero_tvm.host.tvm import tirx, tvm
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


class Asked:
    """A kernel that only notes what is asked for."""

    def __init__(self):
        self.places = []

    def view(self, buffer, shape):
        return shape

    @contextmanager
    def unroll(self, extent):
        assert extent == 1
        yield int32(0)

    def prefetch(self, panels, indices):
        self.places.append([number(index) for index in indices])


@pytest.mark.parametrize(("lines", "tiles", "steps"), [(24, 4, 6), (23, 4, 6), (24, 2, 12), (5, 1, 8)])
def test_steps_of_tiles_ask_for_all_lines_and_for_none_behind(lines, tiles, steps):
    kernel, w = Asked(), tirx.decl_buffer((3, lines, 16), "float32")
    for tile in range(tiles):
        ask = next_panel.lines_ahead(kernel, w, int32(1), int32(tile), tiles, steps, lines, 16)
        for step in range(steps):
            ask(int32(step))
    assert {panel for panel, _ in kernel.places} == {2}
    assert {at for _, at in kernel.places} == {16 * line for line in range(lines)}
