"""Target texts, architectures, what is missing, and that nothing unscheduled passes."""

import pytest

from hetero_tvm.errors import TargetError
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.registry import parse_target


def test_architectures():
    target = parse_target("cuda:sm_80,sm_90a")
    assert [variant.machine.arch for variant in target.variants] == ["sm_80", "sm_90a"]
    assert [variant.entry for variant in target.variants] == ["main_sm_80", "main_sm_90a"]
    assert target.describe()["archs"] == ["sm_80", "sm_90a"]
    assert parse_target("cuda: sm_80 , sm_90a,").describe() == target.describe()
    assert parse_target("cuda:sm_86").machine.shared_per_block < target.machine.shared_per_block


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda:sm_12", "no architecture 'sm_12'"),
        ("cuda:sm_52", "no architecture 'sm_52'"),
        ("cuda:SM_80", "no architecture 'SM_80'"),
        ("cuda:sm_80;sm_90", "no architecture"),
        ("cuda:sm_80, sm_80", "twice"),
        ("cuda:80", "no architecture"),
        ("cuda:sm_80,sm_80", "twice"),
    ],
)
def test_wrong_architectures(text, message):
    with pytest.raises(TargetError, match=message):
        parse_target(text)


def test_detection_without_a_gpu():
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(TargetError, match="GPU: Not found") as caught:
        parse_target("cuda")
    assert "--target cuda:sm_80" in caught.value.hint
    assert "library" not in caught.value.problems[0]  # there is none yet
    lines = parse_target("cuda:sm_80").findings()
    assert "CUDA compiler: " in lines[0] and lines[1].startswith("GPU: Not found (")


def test_detection_of_a_gpu(emulated, monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_ARCH", "86")
    assert parse_target("cuda").machine.arch == "sm_86"
