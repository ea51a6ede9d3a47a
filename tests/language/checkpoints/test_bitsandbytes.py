"""Weights as bitsandbytes stores them, against the plainest way to read them."""

import json

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.build import open_checkpoint
from hetero_tvm.language.checkpoints.bitsandbytes import BitsAndBytesFolder
from tests import tiny_llama

PLAN = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
N, K, BLOCK = 6, 40, 64


def write(folder, tensors):
    folder.mkdir()
    config = {**tiny_llama.CONFIG, "quantization_config": PLAN}
    (folder / "config.json").write_text(json.dumps(config))
    tiny_llama.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def state(**more):
    text = json.dumps({"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [N, K], **more})
    return np.frombuffer(text.encode(), np.uint8)


def four_bits(nested):
    """Tensors of a weight, and its numbers."""
    random = np.random.default_rng(0)
    q = random.integers(0, 16, N * K)
    levels = np.linspace(-1, 1, 16, dtype=np.float32) ** 3
    blocks = -(-N * K // BLOCK)
    peaks = random.uniform(0.1, 2, blocks).astype(np.float32)
    tensors = {
        "a.weight": np.array([16 * first + second for first, second in q.reshape(-1, 2)], np.uint8)[:, None],
        "a.weight.quant_map": levels,
        "a.weight.absmax": peaks,
        "a.weight.quant_state.bitsandbytes__nf4": state(),
    }
    if nested:
        codes, wide = np.linspace(-1, 1, 256, dtype=np.float32), np.array([0.7, 0.9], np.float32)
        chosen = random.integers(0, 256, blocks).astype(np.uint8)
        peaks = np.array(
            [codes[c] * wide[i // 2] + np.float32(1.5) for i, c in enumerate(chosen)], np.float32
        )
        tensors |= {
            "a.weight.absmax": chosen,
            "a.weight.nested_absmax": wide,
            "a.weight.nested_quant_map": codes,
            "a.weight.quant_state.bitsandbytes__nf4": state(nested_blocksize=2, nested_offset=1.5),
        }
    numbers = [levels[value] * peaks[place // BLOCK] for place, value in enumerate(q)]
    return tensors, np.array(numbers, np.float32).reshape(N, K)


@pytest.mark.parametrize("nested", [False, True])
def test_four_bits(tmp_path, nested):
    tensors, wanted = four_bits(nested)
    plain = np.ones((2, 3), np.float32)
    read = open_checkpoint(write(tmp_path / "c", {**tensors, "b.weight": plain}))
    assert isinstance(read, BitsAndBytesFolder) and "quantization_config" not in read.config
    np.testing.assert_allclose(read.matrix("a.weight"), wanted, rtol=1e-6)
    np.testing.assert_array_equal(read.array("b.weight"), plain)


def test_eight_bits(tmp_path):
    q = np.random.default_rng(1).integers(-127, 128, (N, K)).astype(np.int8)
    scale = np.random.default_rng(2).uniform(0.1, 2, N).astype(np.float32)
    read = open_checkpoint(write(tmp_path / "c", {"a.weight": q, "a.SCB": scale}))
    np.testing.assert_allclose(read.array("a.weight"), q * (scale / 127)[:, None], rtol=1e-6)


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ("a.weight.absmax", "absmax"),
        ("a.weight.quant_map", "quant_map"),
        ("a.weight.quant_state.bitsandbytes__nf4", "without what says"),
    ],
)
def test_parts_that_are_missing_or_do_not_fit(tmp_path, part, match):
    tensors, _ = four_bits(False)
    del tensors[part]
    with pytest.raises(ModelError, match=match):
        open_checkpoint(write(tmp_path / "c", tensors)).matrix("a.weight")
    tensors, _ = four_bits(False)
    tensors["a.weight"] = tensors["a.weight"][:-1].copy()
    with pytest.raises(ModelError, match="do not fit together"):
        open_checkpoint(write(tmp_path / "d", tensors)).matrix("a.weight")
