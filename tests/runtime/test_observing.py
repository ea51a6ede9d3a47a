"""Layout of the spans that the pool writes (what is observed of a library: ``tests/test_profile.py``)."""

import re

from hetero_tvm.host.native import source_path
from hetero_tvm.runtime.observing import SPAN, Event


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
