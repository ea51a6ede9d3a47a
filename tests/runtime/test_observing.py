"""Layout of the spans that the pool writes (what is observed of a library: ``tests/test_profile.py``)."""

import re
from types import SimpleNamespace

from hetero_tvm.host.native import source_path
from hetero_tvm.runtime.observing import _MARK, SPAN, Event, Observer


def test_spans_are_laid_out_as_in_the_pool():
    text = source_path("runtime/cpp/pool/trace.cc").read_text()
    body = re.search(r"struct Span \{(.*?)\};", text, re.S)[1]
    fields = []
    for kind, names in re.findall(r"int(64|32)_t ([\w, ]+);", body):
        fields += [(name.strip().removesuffix("_ns"), f"i{int(kind) // 8}") for name in names.split(",")]
    assert [(name, SPAN[name].str[1:]) for name in SPAN.names] == fields
    assert SPAN.itemsize == 32


def test_what_is_a_kernel():
    assert Event("vm.builtin.alloc_tensor", 0, 1).builtin and Event("hetero_tvm_constants", 0, 1).builtin
    assert not Event("matmul_1x2x3", 0, 1).builtin
    assert Event("loop_0_round", 0, 1, bytecode=True).builtin


def test_marks_are_laid_out_as_in_the_library():
    text = source_path("runtime/cpp/pool/observe.cc").read_text()
    body = re.search(r"struct Mark \{(.*?)\};", text, re.S)[1]
    fields = re.findall(r"int(64|32)_t ([\w, ]+);", body)
    sizes = [int(bits) // 8 for bits, names in fields for _ in names.split(",")]
    assert sizes == [8, 4, 4] and _MARK.size == 16


def test_marks_become_events_from_the_inside():
    observer = Observer.__new__(Observer)
    observer._events, observer._open = [], []
    observer._native, observer._bytecode = SimpleNamespace(__tvm_ffi_a=1), {}

    def mark(time, before, name):
        return _MARK.pack(time, before, len(name)) + name.encode()

    pairs = [(10, 1, "loop"), (20, 1, "a"), (25, 0, "a"), (40, 0, "loop"), (50, 1, "cut off")]
    observer._read(b"".join(mark(*pair) for pair in pairs))
    assert observer._events == [Event("a", 20, 25), Event("loop", 10, 40, bytecode=True)]
