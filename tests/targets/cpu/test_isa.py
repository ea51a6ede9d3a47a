"""Names of CPUs and of their instructions."""

import pytest

from hetero_tvm.errors import TargetError
from hetero_tvm.targets.cpu.isa import CODEGEN_FEATURES, check_architecture, cpuinfo_name


def test_names_of_features():
    assert cpuinfo_name("amx-bf16") == "amx_bf16" and cpuinfo_name("avx2") == "avx2"
    assert len({cpuinfo_name(name) for name in CODEGEN_FEATURES}) == len(CODEGEN_FEATURES)


def test_another_architecture_is_refused_with_those_like_it():
    check_architecture("znver3")
    with pytest.raises(TargetError, match="LLVM knows no CPU 'zenver3'") as caught:
        check_architecture("zenver3")
    assert "znver3" in caught.value.hint
