"""Architectures of GGUF files: names beside those of llama.cpp, and what their metadata mean."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.gguf import GgufFile
from hetero_tvm.language.checkpoints.gguf_families import FAMILIES, MIXTURES
from hetero_tvm.language.families.architectures import ARCHITECTURES, describe
from hetero_tvm.language.families.decoder import Recurrence

gguf = pytest.importorskip("gguf")
KINDS = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
SPLIT_ELSEWHERE = {"granitemoe": "shared_mlp", "mamba": "mixer.norm", "falcon-h1": "dt_bias"}
"""Names that the package does not know: parts of matrices, and what an architecture has not."""


@pytest.mark.parametrize("kind", FAMILIES)
def test_names_are_those_of_the_package(kind):
    known = gguf.get_tensor_name_map(KINDS[kind], 2)
    stored = {gguf.TENSOR_NAMES[one] for one in gguf.MODEL_TENSORS[KINDS[kind]]}
    unknown = SPLIT_ELSEWHERE.get(kind, "none of them")
    found = 0
    for theirs, ours in FAMILIES[kind].words.items():
        inner = f"blk.{{bid}}.{ours}".removesuffix(".bias")
        if theirs.startswith(unknown) or theirs.endswith(unknown) or not {ours, inner} & stored:
            continue
        places = ("model.layers.1.", "model.", "", "backbone.layers.1.", "backbone.", "transformer.h.1.")
        places += ("transformer.",)
        names = (known.get_name(place + theirs) for place in places)
        names = {name.removesuffix(".bias") for name in names if name}
        expected = ours.removesuffix(".bias")
        if names:
            assert names & {f"blk.1.{expected}", expected}, (theirs, ours, names)
            found += 1
    assert found > 5


@pytest.mark.parametrize("kind", FAMILIES)
def test_there_is_an_architecture_for_each(kind):
    assert FAMILIES[kind].model_type in ARCHITECTURES
    assert kind not in MIXTURES or MIXTURES[kind][0] in ARCHITECTURES


def file_of(path, kind, values, tensors):
    writer = gguf.GGUFWriter(path, kind)
    for name, value in values.items():
        full = f"{kind}.{name}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, str):
            writer.add_string(full, value)
        else:
            writer.add_float32(full, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


SIZES = {
    "block_count": 4,
    "embedding_length": 32,
    "context_length": 64,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
EMBEDDINGS = {"token_embd.weight": np.zeros((40, 32))}


def test_the_scales_of_granite(tmp_path):
    scales = {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.2, "logit_scale": 3.0}
    decoder, _ = describe(file_of(tmp_path / "m.gguf", "granite", SIZES | scales, EMBEDDINGS).config)
    assert decoder.scale == 0.2 and decoder.final_scale == pytest.approx(1 / 3)
    assert decoder.embed_scale == pytest.approx(12 / 0.22)


def test_windows_of_exaone(tmp_path):
    values = SIZES | {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [True, True, True, False],
    }
    decoder, _ = describe(file_of(tmp_path / "m.gguf", "exaone4", values, EMBEDDINGS).config)
    assert [layer.window for layer in decoder.layers] == [8, 8, 8, 0] and not decoder.pre_norms


def test_positions_of_ministral(tmp_path):
    values = SIZES | {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.1,
    }
    decoder, _ = describe(file_of(tmp_path / "m.gguf", "mistral3", values, EMBEDDINGS).config)
    assert decoder.context == 64 and decoder.ropes[0].factor == 1.0
    assert decoder.layers[0].growth.every == 16 and decoder.layers[0].growth.share == pytest.approx(0.1)
    decoder, _ = describe(file_of(tmp_path / "n.gguf", "mistral3", SIZES, EMBEDDINGS).config)
    assert decoder.architecture == "mistral" and decoder.context == 64


def test_the_state_of_mamba(tmp_path):
    random = np.random.default_rng(0)
    rates, weight = -random.uniform(1, 3, (64, 6)), random.standard_normal((64, 4))
    sizes = {"ssm.inner_size": 64, "ssm.conv_kernel": 4, "ssm.state_size": 6, "ssm.time_step_rank": 2}
    sizes |= {name: SIZES[name] for name in ("block_count", "embedding_length")}
    sizes["attention.layer_norm_rms_epsilon"] = 1e-5
    tensors = EMBEDDINGS | {"blk.0.ssm_a": rates, "blk.0.ssm_conv1d.weight": weight}
    file = file_of(tmp_path / "m.gguf", "mamba", sizes, tensors)
    decoder, _ = describe(file.config)
    assert decoder.recurrence.inner == 64 and decoder.eps == 1e-5 and decoder.recurrence.eps == 0
    base = "backbone.layers.0.mixer"
    np.testing.assert_allclose(-np.exp(file.array(f"{base}.A_log")), rates, rtol=1e-6)
    np.testing.assert_array_equal(file.array(f"{base}.conv1d.weight")[:, 0], weight.astype(np.float32))
    sizes["ssm.dt_b_c_rms"] = True
    other = file_of(tmp_path / "n.gguf", "mamba", sizes, tensors)
    assert describe(other.config)[0].recurrence.eps == 1e-6


def test_mixtures_of_what_is_none_are_refused(tmp_path):
    with pytest.raises(ModelError, match="mixture of experts of type 'gemma2'"):
        file_of(tmp_path / "m.gguf", "gemma2", SIZES | {"expert_count": 4}, EMBEDDINGS)


def test_layers_of_gemma4(tmp_path):
    """Angles that stand still have huge factors; layers that share keys have wider MLPs."""
    slides = [True, False, True, False]
    more = {
        "attention.sliding_window_pattern": slides,
        "attention.sliding_window": 8,
        "attention.key_length": 32,
        "attention.key_length_swa": 16,
        "attention.head_count_kv": [2, 1, 2, 1],
        "attention.shared_kv_layers": 2,
        "feed_forward_length": [48, 48, 96, 96],
        "embedding_length_per_layer_input": 4,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": 32,
        "final_logit_softcapping": 30.0,
    }
    tensors = {
        "token_embd.weight": np.zeros((9, 32)),
        "rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12),
        "blk.0.attn_v.weight": np.zeros((32, 32)),
    }
    checkpoint = file_of(tmp_path / "m.gguf", "gemma4", SIZES | more, tensors)
    decoder, names = describe(checkpoint.config)
    assert [layer.dim for layer in decoder.layers] == [16, 32] * 2
    assert [layer.kv_heads for layer in decoder.layers] == [2, 1] * 2
    assert [layer.keys_of for layer in decoder.layers] == [-1, -1, 0, 1]
    assert [layer.inner for layer in decoder.layers] == [48, 48, 96, 96]
    assert [layer.shares_keys for layer in decoder.layers] == [False, True] * 2
    assert [np.count_nonzero(rope.inverse) for rope in decoder.ropes] == [8, 4]
    assert (decoder.layer_inputs, decoder.logits_softcap, decoder.norm_offset) == (4, 30.0, 0.0)
    assert checkpoint.names(names).layer_factor == "layer_scalar.weight"


def test_streams_of_gemma3n(tmp_path):
    """Matrices of the streams lie in one tensor; shares of channels are told as deviations."""
    more = {
        "attention.sliding_window_pattern": [True, False, True, False],
        "attention.sliding_window": 8,
        "attention.shared_kv_layers": 2,
        "activation_sparsity_scale": [1.6448536, -float("inf"), -float("inf"), -float("inf")],
        "feed_forward_length": [48, 48, 96, 96],
        "embedding_length_per_layer_input": 4,
        "altup.num_inputs": 4,
    }
    streams = np.random.default_rng(0).standard_normal((3, 32, 32))
    tensors = {
        "token_embd.weight": np.zeros((9, 32)),
        "blk.0.laurel_l.weight": np.zeros((5, 32)),
        "blk.0.altup_correct_scale.weight": np.ones(32),
        "altup_proj.weight": streams,
    }
    checkpoint = file_of(tmp_path / "m.gguf", "gemma3n", SIZES | more, tensors)
    decoder, names = describe(checkpoint.config)
    cuts = [layer.cut for layer in decoder.layers]
    assert cuts == [pytest.approx(1.6448536, abs=1e-6), None, None, None]
    assert [layer.keys_of for layer in decoder.layers] == [-1, -1, 0, 1]
    assert [layer.inner for layer in decoder.layers] == [48, 48, 96, 96]
    assert (decoder.low_rank, decoder.scaled_streams, decoder.logits_softcap) == (5, True, 30.0)
    weight = checkpoint.array("model." + names.streams[0].format(1) + ".weight")
    np.testing.assert_array_equal(weight, streams[1].astype(np.float32))
    scale = names.layer.format(0) + names.streams[-1]
    np.testing.assert_array_equal(checkpoint.array("model." + scale), np.ones(32))


def test_linear_attention_of_qwen3_next(tmp_path):
    """Norms have the offset added, but for the gated one; decays are as the kernel reads them."""
    more = {
        "ssm.conv_kernel": 4,
        "ssm.state_size": 6,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 4,
        "ssm.inner_size": 20,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 8,
        "expert_shared_feed_forward_length": 8,
        "rope.dimension_count": 2,
    }
    tensors = {
        "token_embd.weight": np.zeros((9, 32)),
        "blk.0.ssm_norm.weight": np.full(5, 3.0),
        "blk.0.attn_norm.weight": np.full(32, 3.0),
        "blk.0.ssm_a": np.full(4, -2.0),
    }
    checkpoint = file_of(tmp_path / "m.gguf", "qwen3next", SIZES | more, tensors)
    decoder, names = describe(checkpoint.config)
    assert decoder.recurrence == Recurrence("delta", 20, 4, 4, 6, 2, eps=decoder.eps)
    assert [layer.attends for layer in decoder.layers] == [False, True, True, True]
    assert decoder.experts.normalised and decoder.experts.shared_gated and decoder.rotated == 2
    names = checkpoint.names(names)
    assert names.recurrent_in == ("in_proj_qkv", "in_proj_z") and not names.recurrent_rows
    base = "model.layers.0."
    assert checkpoint.array(base + "linear_attn.norm.weight")[0] == 3
    assert checkpoint.array(base + "input_layernorm.weight")[0] == 2
    np.testing.assert_allclose(checkpoint.array(base + "linear_attn.A_log"), np.log(2))


def test_the_scales_of_minicpm(tmp_path):
    values = {"embedding_scale": 12.0, "residual_scale": 0.25, "logit_scale": 9.0}
    tensors = {"token_embd.weight": np.zeros((9, 32))}
    checkpoint = file_of(tmp_path / "m.gguf", "minicpm", SIZES | values, tensors)
    decoder, _ = describe(checkpoint.config)
    assert (decoder.scale, decoder.embed_scale) == (8**-0.5, 48.0)
    assert decoder.final_scale == pytest.approx(1 / 9)


def latent_file(path, **changes):
    """A file of latent attention, as llama.cpp's converter writes a tiny DeepSeek V3."""
    values = {
        "attention.key_length": 20,  # of the few channels and those that are rotated
        "attention.value_length": 16,
        "attention.key_length_mla": 12,
        "attention.value_length_mla": 6,
        "attention.kv_lora_rank": 16,
        "attention.head_count_kv": 1,
        "rope.dimension_count": 4,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": 24,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "expert_group_count": 2,
        "expert_group_used_count": 1,
        "leading_dense_block_count": 1,
    }
    random = np.random.default_rng(0)
    tensors = EMBEDDINGS | {
        "blk.1.ffn_gate_inp.weight": np.zeros((4, 32)),
        "blk.1.exp_probs_b.bias": np.zeros(4),
        "blk.0.attn_k_b.weight": random.standard_normal((4, 16, 8)),
        "blk.0.attn_v_b.weight": random.standard_normal((4, 6, 16)),
        "blk.1.attn_kv_b.weight": random.standard_normal((56, 16)),
    }
    values = {name: value for name, value in ({**values, **changes}).items() if value is not None}
    return file_of(path, "deepseek2", SIZES | {"block_count": 2} | values, tensors), tensors


def test_latent_attention(tmp_path):
    """Files have keys and values apart, older ones together."""
    checkpoint, tensors = latent_file(tmp_path / "m.gguf")
    decoder, _ = describe(checkpoint.config)
    latent = decoder.latent
    assert (decoder.architecture, decoder.dim, decoder.values, decoder.rotated) == ("deepseek_v3", 12, 6, 4)
    assert (latent.queries, latent.keys, latent.shared, decoder.kv_heads) == (0, 16, 4, 4)
    assert [layer.mixed for layer in decoder.layers] == [False, True]
    experts = decoder.experts
    assert (experts.groups, experts.kept, experts.scale, experts.sigmoid) == (2, 1, 2.5, True)
    assert (experts.normalised, experts.shared, decoder.ropes[0].factor) == (True, 24, 1.0)
    name = "model.layers.{}.self_attn.kv_b_proj.weight"
    joined = checkpoint.array(name.format(0)).reshape(4, 14, 16)
    assert name.format(0) in checkpoint and name.format(2) not in checkpoint
    keys, values = (tensors[f"blk.0.attn_{half}_b.weight"].astype(np.float32) for half in "kv")
    np.testing.assert_array_equal(joined[:, :8], keys.swapaxes(1, 2))
    np.testing.assert_array_equal(joined[:, 8:], values)
    np.testing.assert_array_equal(
        checkpoint.array(name.format(1)), tensors["blk.1.attn_kv_b.weight"].astype(np.float32)
    )
    plain, _ = latent_file(tmp_path / "n.gguf", expert_count=None)
    assert describe(plain.config)[0].architecture == "youtu"
