import json

import pytest

import hetero_tvm
from hetero_tvm import bench
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
    assert "10.0 GB/s" in str(measured) and "prompt 20:" in str(measured)
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
