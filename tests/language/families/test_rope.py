"""Frequencies against the formulas of the papers, at values that are easily followed."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.families.rope import context_of, rope_of

PLAIN = 10000.0 ** -(np.arange(0, 8, 2) / 8)


def table(config, kind=None):
    rope, rotated = rope_of({"max_position_embeddings": 128, **config}, 8, kind)
    return np.array(rope.inverse), rope.factor, rotated


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rope_theta": 10000.0, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    ],
)
def test_every_spelling_of_the_plain_one(config):
    inverse, factor, rotated = table(config)
    np.testing.assert_allclose(inverse, PLAIN, rtol=1e-6)
    assert (factor, rotated) == (1.0, 8)


def test_part_of_the_channels():
    inverse, _, rotated = table({"partial_rotary_factor": 0.5})
    assert rotated == 4
    np.testing.assert_allclose(inverse, [1.0, 0.01], rtol=1e-6)


def test_scalings():
    linear = table({"rope_scaling": {"type": "linear", "factor": 4.0}})[0]
    np.testing.assert_allclose(linear, PLAIN / 4, rtol=1e-6)
    options = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 = table({"rope_scaling": {**options, "original_max_position_embeddings": 128}})[0]
    np.testing.assert_allclose(llama3[[0, 3]], [PLAIN[0], PLAIN[3] / 8], rtol=1e-6)  # short, long wave
    smooth = (128 / (2 * np.pi / PLAIN[1]) - 1) / 3
    np.testing.assert_allclose(llama3[1], PLAIN[1] * (smooth + (1 - smooth) / 8), rtol=1e-5)
    longrope = {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]}
    config = {
        "max_position_embeddings": 128,
        "rope_scaling": longrope,
        "original_max_position_embeddings": 32,
    }
    rope, _ = rope_of(config, 8)  # texts of up to 32 tokens have the first factors, longer ones the others
    np.testing.assert_allclose(rope.inverse, PLAIN, rtol=1e-6)
    np.testing.assert_allclose(rope.longer, PLAIN / [1, 2, 3, 4], rtol=1e-6)
    assert rope.most == 32 and rope.factor == pytest.approx((1 + np.log(4) / np.log(32)) ** 0.5)
    alone, _ = rope_of({**config, "original_max_position_embeddings": 128}, 8)
    assert (alone.longer, alone.most, alone.factor) == ((), 0, 1.0)
    # Another table only beyond the model's own context, which no text leaves.
    np.testing.assert_allclose(
        table({"rope_scaling": {"type": "dynamic", "factor": 4.0}})[0], PLAIN, rtol=1e-6
    )
    yarn, factor, _ = table({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    assert factor == pytest.approx(0.1 * np.log(4) + 1)
    np.testing.assert_allclose(yarn[-1], PLAIN[-1] / 4, rtol=1e-5)


def test_proportional_angles_are_those_of_whole_heads():
    """The first ones of each half turn, the others stand still."""
    rope, rotated = rope_of(
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}, 16
    )
    want = 10000.0 ** -(np.arange(0, 4, 2) / 16)
    assert rotated == 16 and rope.inverse[2:] == (0.0,) * 6
    np.testing.assert_allclose(rope.inverse[:2], want, rtol=1e-6)


def test_kinds_of_layers():
    config = {
        "rope_parameters": {"sliding_attention": {"rope_theta": 100.0}, "full_attention": {"rope_theta": 1e4}}
    }
    np.testing.assert_allclose(
        table(config, "sliding_attention")[0], 100.0 ** -(np.arange(0, 8, 2) / 8), rtol=1e-6
    )
    np.testing.assert_allclose(table(config, "full_attention")[0], PLAIN, rtol=1e-6)
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    np.testing.assert_allclose(table(older, "sliding_attention")[0], PLAIN, rtol=1e-6)


def test_what_is_not_known_is_refused():
    with pytest.raises(ModelError, match="axial"):
        table({"rope_scaling": {"type": "axial", "factor": 2.0}})
    with pytest.raises(ModelError, match="3 factors"):
        table({"rope_scaling": {"type": "su", "long_factor": [1, 1, 1], "short_factor": [1, 1, 1]}})


def test_a_stretched_context():
    """Qwen's model card adds a scaling to config.json, and leaves the number of positions as it was."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert context_of({"max_position_embeddings": 40, "rope_scaling": yarn}) == 128
    assert context_of({"max_position_embeddings": 256, "rope_scaling": yarn}) == 256
    assert context_of({"max_position_embeddings": 40, "rope_scaling": {"type": "yarn", "factor": 4.0}}) == 40
    linear = {"max_position_embeddings": 32, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert context_of(linear) == 32
    assert context_of({**linear, "max_sequence_length": 128}) == 128  # Vicuna
    assert context_of({"max_position_embeddings": 32, "rope_parameters": {"rope_type": "default"}}) == 32
