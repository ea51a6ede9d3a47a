"""Weights as MLX stores them, against the plainest way to read them."""

import json

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.build import open_checkpoint
from hetero_tvm.language.checkpoints.mlx import MlxFolder
from tests import tiny_llama

N, K = 5, 128


def packed(bits, group, seed=0):
    """Tensors of a weight, and its numbers: one integer after the other as a row of bits."""
    random = np.random.default_rng(seed)
    q = random.integers(0, 1 << bits, (N, K))
    rows = [sum(int(value) << (bits * place) for place, value in enumerate(row)) for row in q]
    words = [[row >> (32 * place) & 0xFFFFFFFF for place in range(K * bits // 32)] for row in rows]
    scales, biases = random.standard_normal((2, N, K // group)).astype(np.float16)
    tensors = {"weight": np.array(words, np.uint32), "scales": scales, "biases": biases}
    wide = (np.repeat(part.astype(np.float32), group, 1) for part in (scales, biases))
    scale, bias = wide
    return tensors, q * scale + bias


def write(folder, tensors, plan, **others):
    folder.mkdir()
    config = {**tiny_llama.CONFIG, "quantization": plan, **others}
    (folder / "config.json").write_text(json.dumps(config))
    tiny_llama.write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (2, 32), (3, 64), (5, 32), (6, 128), (8, 32)])
def test_numbers(tmp_path, bits, group):
    """Others than the plan's are of matrices that it names."""
    parts, want = packed(bits, group)
    others, wanted = packed(4, 32, 1)
    tensors = {f"a.{name}": part for name, part in parts.items()}
    tensors |= {f"b.{name}": part for name, part in others.items()} | {"norm.weight": np.ones(4, np.float32)}
    plan = {"bits": bits, "group_size": group, "b": {"bits": 4, "group_size": 32}, "c": False}
    checkpoint = open_checkpoint(write(tmp_path / "m", tensors, plan, quantization_config=plan))
    assert isinstance(checkpoint, MlxFolder)
    assert not {"quantization", "quantization_config"} & set(checkpoint.config)
    np.testing.assert_allclose(checkpoint.matrix("a.weight"), want, rtol=1e-6)
    np.testing.assert_allclose(checkpoint.array("b.weight"), wanted, rtol=1e-6)
    np.testing.assert_array_equal(checkpoint.matrix("norm.weight"), np.ones(4))


def test_what_cannot_be_read_is_named(tmp_path):
    parts, _ = packed(4, 64)
    tensors = {f"a.{name}": part for name, part in parts.items()}
    plan = {"bits": 4, "group_size": 64}
    with pytest.raises(ModelError, match="'mxfp4'"):
        open_checkpoint(write(tmp_path / "a", tensors, {**plan, "mode": "mxfp4"}))
    with pytest.raises(ModelError, match="7 bits"):
        open_checkpoint(write(tmp_path / "b", tensors, {**plan, "bits": 7})).matrix("a.weight")
    with pytest.raises(ModelError, match="its scales are"):
        open_checkpoint(write(tmp_path / "c", tensors, {**plan, "group_size": 32})).matrix("a.weight")
    del tensors["a.biases"]
    with pytest.raises(ModelError, match="a.biases"):
        open_checkpoint(write(tmp_path / "d", tensors, plan)).matrix("a.weight")
