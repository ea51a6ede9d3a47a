"""Text of command streams: the faults of a text, and comments."""

import pytest

from hetero_tvm.targets.npu.isa.assembler import assemble
from hetero_tvm.targets.npu.isa.encoding import StreamError


def test_every_wrong_line_of_a_text_is_named():
    with pytest.raises(StreamError) as error:
        assemble('.slot input x "a"\nbarrier\nfly high=1\nset_flag source=move\nbarrier level=2\n.need l9 5')
    text = str(error.value)
    for part in (
        "line 1: ",
        "line 3: there is no instruction 'fly'",
        "line 4: set_flag needs target",
        "line 5: barrier has no field 'level'",
        "line 6: there is no scratchpad 'l9'",
    ):
        assert part in text
    for wrong, reason in [
        ('.slot input -5 "x"', "-5 is not a number of 64 bits"),
        (".slot input 1 x", "'x' is not a name in double quotes"),
        (".slot input", "'' is not a name"),
        ('.tag "a" b', "is not a name"),
        (".need l1 0x100000000", "4294967296 is not a number of 32 bits"),
        (".need l1", "'' is not a whole number"),
        (".events -1", "-1 is not a number of 32 bits"),
        ("barrier #5", "line 1: barrier: there is no .tag 5"),
        ('.tag "a\\u0000b"', "no place in a stream"),
        ('.tag "\\ud800"', "no place in a stream"),
    ]:
        with pytest.raises(StreamError, match=reason):
            assemble(wrong)


def test_comments_may_follow_anything():
    plain = '.need l1 8\n.events 2\n.slot input 8 "a ; b"\n.tag "t"\nbarrier #1\n'
    assert assemble(plain.replace("\n", " ; why\n")) == assemble(plain)
