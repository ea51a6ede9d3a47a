"""The GPU benchmark's sections: no design space without rows, each computing what PyTorch computes."""

import numpy as np
import pytest

from hetero_tvm.targets.cuda.spaces import CUDA_SPACES
from hetero_tvm.targets.registry import parse_target

torch = pytest.importorskip("torch")

from benchmarks.gpu import tensors
from benchmarks.gpu.sections import SECTIONS, section_named

SMALL = [(section.name, case) for section in SECTIONS for case in section.small]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["small", "cases"])
def test_every_space_has_rows(arch, kind):
    base, served = parse_target(f"cuda:{arch}"), set()
    for section in SECTIONS:
        for case in getattr(section, kind):
            space, reasons = case.target(base).space_for(case.op)
            assert space is not None, f"{case.label}: {reasons}"
            served.add(space.name)
    missing = {space.name for space in CUDA_SPACES} - served
    assert not missing, f"add a section for {missing} (benchmarks/gpu/sections)"


def test_labels_name_rows():
    for section in SECTIONS:
        assert section_named(section.name) is section
        for cases in (section.small, section.cases):
            labels = [case.label for case in cases]
            assert len(set(labels)) == len(labels), section.name
            assert all(set(case.goals) <= {*case.peers, "copy"} for case in cases)


@pytest.mark.parametrize(("section", "case"), SMALL, ids=[f"{name}-{case.label}" for name, case in SMALL])
def test_pytorch_computes_the_contract(section, case, monkeypatch):
    """In float64 against the operator's own reference; the peers give the same numbers."""
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    given = tensors.random_inputs(case, 3)
    truth = tensors.as_tuple(case.compute(case.op, *tensors.exact(given)))
    wide = [tensors.to_numpy(x) for x in tensors.exact(given)]
    if case.op.kind == "tensor_program":  # the contract's reference computes in the dtypes of the kernel
        wide = [tensors.to_numpy(x) for x in given]
    expected = tensors.as_tuple(case.op.reference(*wide))
    half = case.op.kind == "tensor_program" and case.op.output.dtype == "float16"
    for found, want in zip(truth, expected, strict=True):
        assert tuple(found.shape) == want.shape
        np.testing.assert_allclose(
            found.double().numpy(), want.astype("float64"), 2e-3 if half else 1e-5, 2e-3 if half else 1e-6
        )
