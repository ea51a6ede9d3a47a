import json

import pytest

import hetero_tvm
from hetero_tvm import bench, profile
from hetero_tvm.benchmarking import decode
from hetero_tvm.errors import UsageError
from tests import tiny_llama


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """The real one reads half a gigabyte each time."""
    monkeypatch.setattr(decode, "measure_bandwidth", lambda threads: 10.0)


@pytest.mark.thorough
def test_shares_follow_from_bytes_and_times():
    model = hetero_tvm.load_language_model(tiny_llama.built())
    measured = decode.measure_decoding(model, tokens=4, rounds=2, context=5, prompts=[20])
    assert measured.weights == model.facts.read
    assert len(measured.shares) == 2 and min(measured.shares) > 0
    assert "10.0 GB/s" in str(measured) and "prompt of 20 tokens:" in str(measured)
    assert model.pool.free == model.pool.pages
    for bad in ({"context": 200}, {"rounds": 0}, {"prompts": [0]}, {"prompts": [129]}):
        with pytest.raises(UsageError):
            decode.measure_decoding(model, **bad)


@pytest.mark.thorough
def test_the_command(capsys):
    assert (
        bench.main([str(tiny_llama.built()), "--decode", "--json", "--rounds", "1", "--prompts", "8,9"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert set(document["prompt_tokens_per_second"]) == {"8", "9"}
    assert document["tokens_per_second"] == pytest.approx(1 / document["seconds_per_token"])


@pytest.mark.thorough
def test_one_token_is_one_call_at_the_same_place():
    model = hetero_tvm.load_language_model(tiny_llama.built())
    with decode.one_token(model, context=8) as call:
        found = model.library.profile_call(call, seconds=0.05)
        call()
    assert any(kernel.name.startswith("linear") for kernel in found.kernels)
    assert len({call.kernel for call in found.calls}) + 1 == len(found.kernels)
    with decode.one_token(model, context=10_000) as call:  # as many as there is room for
        call()


@pytest.mark.thorough
def test_a_language_model_is_profiled_at_a_token_and_benched_by_decode(capsys):
    assert profile.main([str(tiny_llama.built()), "--seconds", "0.05", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["calls"] and document["call_ms"] > 0
    products = [row for row in document["kernels"] if row["kernel"].startswith("linear_")]
    assert products and all(row["gflops"] > 0 and row["gbs"] > 0 for row in products)
    assert any(row["kernel"].endswith("_32x97") for row in products)  # the head: a row of 32, 97 words
    assert bench.main([str(tiny_llama.built())]) == 2
    assert "--decode" in capsys.readouterr().err
