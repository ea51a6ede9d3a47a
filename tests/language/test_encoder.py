"""Whole encoder-decoders beside transformers; all kinds are in ``tests/campaign/encoder_decoders.py``."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, UsageError


@pytest.mark.exhaustive
def test_tokens_are_those_of_transformers(tmp_path):
    from tests.campaign.encoder_decoders import compare

    assert compare("t5", tmp_path) == []


@pytest.mark.exhaustive
def test_sessions_about_sources(tmp_path):
    """One build: forks, two sources at once, a source that is closed, models that need one."""
    from tests.campaign.encoder_decoders import reference

    sources, _ = reference("bart", tmp_path / "bart")
    model = hetero_tvm.load_language_model(
        hetero_tvm.build_language_model(tmp_path / "bart", tmp_path / "out", page=16, rows=8)
    )
    with pytest.raises(UsageError, match="needs a source"):
        model.session()
    free = model.sources.pool.free
    first, second = model.encode(sources[0]), model.encode(sources[2])
    with model.session(first) as one, model.session(second) as two:
        first.close()  # the text holds it
        alone = one.append([2, 5]), two.append([2, 5])
        assert np.abs(alone[0] - alone[1]).max() > 1e-3
        with one.fork() as other:
            one.rewind(1)
            np.testing.assert_array_equal(one.append([5]), alone[0])
            together = model.step([(one, [6]), (two, [7]), (other, [6])])
            np.testing.assert_array_equal(together[0], together[2])
    second.close()
    assert model.sources.pool.free == free
    held = [model.encode([5] * 64) for _ in range(32)]
    with pytest.raises(CapacityError):
        model.encode([5])
    assert len(held) == 32
