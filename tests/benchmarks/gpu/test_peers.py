"""Peers are timed like kernels; one that cannot take a case does not cost the others theirs."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu import peers, tensors, timing
from benchmarks.gpu.sections import section_named
from tests.benchmarks.gpu.test_timing import FakeClock


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    monkeypatch.setattr(tensors, "EMULATED", False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "_WARM_UP", (0.0, 0.0))
    monkeypatch.setattr(timing, "_SAMPLE", 1e-9)


class Timed(FakeClock):
    """Every sample takes a millisecond, whatever is called."""

    def __init__(self):
        super().__init__(lambda n: 0.0)

    def seconds(self, work):
        work()
        return 1e-3

    def graph(self, work):
        work()
        return work


def test_each_peer_has_a_time_or_a_reason():
    def refuses(op, *tensors):
        raise RuntimeError("no such backend\nlong trace")

    case = section_named("matmul").small[2]
    case = dataclasses.replace(case, peers={**case.peers, "none": refuses})
    found = peers.time_all(case, Timed(), l2=0)
    assert found["none"] == {"seconds": None, "why": "RuntimeError: no such backend"}
    assert found["cublas"]["seconds"] > 0 and found["cublas_linear"]["seconds"] > 0


def test_peers_compute_what_the_contract_says():
    for case in (*section_named("matmul").small[2:3], *section_named("gated_matmul").small[:1]):
        given = [x.float() for x in tensors.random_inputs(case, 1)]
        truth = case.compute(case.op, *tensors.exact(given))
        for make in case.peers.values():
            assert tensors.largest_error(make(case.op, *given)().reshape(truth.shape), truth) < 1e-5


def test_operands_overflow_the_cache():
    case = section_named("softmax").small[0]  # 2000 bytes
    assert len(tensors.input_sets(case, 4000)) == 6
    assert len(tensors.input_sets(case, 1 << 30)) == tensors.MOST_SETS
    first, second = (one[0] for one in tensors.input_sets(case, 0))
    assert not torch.equal(first, second)


def test_copies_count_bytes_read_and_written():
    assert peers.copy_rate(1 << 20, Timed(), 0) == pytest.approx((1 << 20) / (1e-3 / 2))


def test_errors():
    truth = torch.tensor([1.0, -4.0])
    assert tensors.largest_error(torch.tensor([1.0, -3.0]), truth) == 0.25
    assert tensors.largest_error(torch.tensor([1.0, float("nan")]), truth) == float("inf")
    assert tensors.largest_error(torch.tensor([[1.0, -4.0]]), truth) == float("inf")
    scalar = tensors.from_numpy(tensors.to_numpy(torch.tensor(2.5)))
    assert scalar.shape == () and tensors.largest_error(scalar, torch.tensor(2.5)) == 0
    half = torch.randn(5).to(torch.bfloat16)
    assert torch.equal(tensors.from_numpy(tensors.to_numpy(half)), half)
