"""A selection of the damaged libraries, manifests and planning problems: none ends in a fault."""

import pytest

from tests.campaign import damaged_libraries


@pytest.mark.thorough
def test_a_selection_ends_in_errors_or_right_numbers():
    told = []
    ends = damaged_libraries.run(0.05, 1, told.append)
    assert told == []
    assert set(ends) == {"flip", "zeros", "cut off", "manifest", "sidecar", "problem"}
    assert ends["cut off"][damaged_libraries.REFUSED] >= 10
    assert ends["zeros"][damaged_libraries.REFUSED] >= 10
    # What no check covers (symbols for debuggers) is no reason to refuse a library.
    assert ends["flip"][damaged_libraries.REFUSED] and ends["flip"][damaged_libraries.RIGHT]
