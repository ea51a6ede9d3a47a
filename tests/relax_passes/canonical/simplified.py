"""What rules of the canonical form leave of a small module."""

from tests.relax_passes.graphs import calls, fuse, module, names_of, same_numbers

X = {"x": (2, 3, 4)}


def simplified(body, *rules, inputs=X):
    """The calls that the rules leave; numbers and names are checked, and that nothing is counted."""
    before = module(inputs, body)
    after, names, report = fuse(before, *rules)
    assert not report.fusions and not report.misses
    assert names_of(before) <= set().union(*names.values())
    same_numbers(before, after)
    return dict(calls(after))
