import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.targets.npu.regions import sites
from hetero_tvm.targets.npu.regions.codegen import generate
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import machine

OPS = [
    Attention(1, 3, 40, 200, 16, 0.25, 1, mask=(1, 1, 40, 200), causal=True, window=70),
    Conv2d(1, 20, 30, 30, 24, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=("bias", "silu")),
    Matmul((65,), 130, 100, ("bias", "residual", "gelu_erf")),
]


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind)
def test_patched_instructions_are_those_that_are_encoded(op, monkeypatch):
    mach = machine("edge")
    space = next(s for s in NPU_SPACES if s.refuses(op, mach) is None)
    point = space.knobs(op, mach)[0].choices[-1]
    function = space.emit(op, {space.knobs(op, mach)[0].name: point}, mach)
    monkeypatch.setattr(sites, "_LEAST_ALIKE", 1 << 30)
    encoded = generate(function, mach.spec).instrs
    monkeypatch.setattr(sites, "_LEAST_ALIKE", 1)
    calls = []
    plain = sites.Site._encoded
    monkeypatch.setattr(sites.Site, "_encoded", lambda *args: calls.append(1) or plain(*args))
    made = generate(function, mach.spec).instrs
    assert len(calls) < len(made) - 20
    for one, other in zip(encoded, made, strict=True):
        for name in one.__slots__:
            assert getattr(one, name) == getattr(other, name)
