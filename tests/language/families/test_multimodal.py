"""Text parts of models that see and hear."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.families.defaults import DEFAULTS
from hetero_tvm.language.weights import DecoderWeights, expert_matrices
from hetero_tvm.ops.decoding.contracts import Growth
from hetero_tvm.ops.decoding.storage import Storage
from tests import tiny_llama
from tests.tiny_llama import CONFIG

MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "rope_theta": 1e6}
LLAMA4 = {
    **CONFIG,
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "head_dim": 8,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
}


def test_a_part_and_a_model_that_has_its_words_among_its_own():
    text = {**CONFIG, **MROPE, "model_type": "qwen2_5_vl_text"}
    outer = {"model_type": "qwen2_5_vl", "eos_token_id": [7, 8], "tie_word_embeddings": True}
    flat = {**CONFIG, **MROPE, "model_type": "qwen2_5_vl", "vision_config": {}}
    ours, names = describe({**outer, "text_config": text})
    same, others = describe(flat)
    assert ours.ropes == same.ropes and ours.rotated == 8
    assert ours.tied and not same.tied
    assert {"model.language_model.", "model."} <= set(names.prefixes) & set(others.prefixes)
    assert describe(text)[0].layers == ours.layers
    apart = {**outer, "tie_word_embeddings": False, "text_config": {**text, "tie_word_embeddings": True}}
    assert not describe(apart)[0].tied  # what the whole model says counts


GEMMA = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
LLAVA = {"max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32064}


def test_values_that_a_part_leaves_out():
    """Files of Gemma 3 and LLaVA say of their parts what differs from the classes of transformers alone."""
    scaling = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text"}
    gemma = describe({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {**GEMMA, **scaling}})[
        0
    ]
    assert (gemma.heads, gemma.kv_heads, gemma.dim, gemma.vocab) == (8, 4, 256, 262208)
    assert gemma.stop == (1, 106) and gemma.activation == "gelu_tanh" and gemma.context == 131072
    assert [layer.window for layer in gemma.layers[:6]] == [1024] * 5 + [0]
    full, local = gemma.ropes[gemma.layers[5].rope], gemma.ropes[gemma.layers[0].rope]
    assert full.inverse[0] == 0.125 and local.inverse[0] == 1.0
    assert local.inverse[64] == pytest.approx(1e-2) and full.inverse[64] == pytest.approx(1e-3 / 8)
    llava = describe({"model_type": "llava", "text_config": LLAVA})[0]
    assert (llava.heads, llava.dim, len(llava.layers), llava.inner) == (32, 128, 32, 11008)
    assert llava.stop == (2,) and llava.eps == 1e-5
    with pytest.raises(ModelError, match="num_attention_heads"):
        describe(LLAVA)  # no part


@pytest.mark.thorough
@pytest.mark.parametrize("kind", DEFAULTS)
def test_they_are_those_of_transformers(kind):
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    part = {"model_type": "several", "text_config": {"model_type": kind}}
    if kind == "gemma3n_text":  # what its class makes of these
        made = mapping[kind]().to_dict()
        lists = ("layer_types", "activation_sparsity_pattern", "intermediate_size")
        part["text_config"] |= {name: made[name] for name in lists}
    whole = {"model_type": "several", "text_config": mapping[kind]().to_dict()}
    ours, theirs = (dataclasses.replace(describe(one)[0], tied=False) for one in (part, whole))
    assert ours == theirs


def test_a_part_of_what_thinks():
    text = {**CONFIG, **MROPE, "model_type": "qwen2_5_omni_text"}
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": text}
    decoder, names = describe({"model_type": "qwen2_5_omni", "thinker_config": thinker})
    assert decoder.architecture == "qwen2_5_omni_text" and "thinker." in names.prefixes


@pytest.mark.parametrize(
    ("config", "tensor"),
    [
        ({"model_type": "smolvlm", "text_config": CONFIG}, "model.text_model.layers.0.mlp.up_proj"),
        ({"model_type": "internvl_chat", "llm_config": CONFIG}, "language_model.model.layers.0.mlp.up_proj"),
        ({**CONFIG, "model_type": "minicpmv", "version": 2.6}, "llm.model.layers.0.mlp.up_proj"),
        ({**CONFIG, "model_type": "llava"}, "model.layers.0.mlp.up_proj"),
    ],
)
def test_names_begin_as_makers_wrote_them(config, tensor):
    decoder, names = describe(config)
    weights = DecoderWeights(decoder, names, {f"{tensor}.weight"}, Storage("f32"))
    assert weights.find("layers.0.mlp.up_proj") == f"{tensor}.weight"


def test_a_part_whose_names_have_a_beginning_of_their_own():
    text = {"model_type": "opt", "num_hidden_layers": 1}
    names = describe({"model_type": "blip-2", "text_config": text})[1]
    assert "language_model.model.decoder." in names.prefixes


def test_a_minicpmv_of_another_version_is_refused():
    with pytest.raises(ModelError, match=r"version 2\.0"):
        describe({**CONFIG, "model_type": "minicpmv", "version": "2.0"})


def test_a_part_that_is_not_known_is_refused_by_its_name():
    with pytest.raises(ModelError, match="'deaf'"):
        describe({"model_type": "ears", "text_config": {"model_type": "deaf"}})


def test_layers_that_texts_leave_out():
    config = {**CONFIG, "model_type": "mllama_text_model", "num_hidden_layers": 5}
    across = describe({**config, "cross_attention_layers": [1, 3]})[0]
    assert [layer.attends for layer in across.layers] == [True, False, True, False, True]
    assert across.attending == 3 and across.spare_tokens == 8
    assert [layer.feeds for layer in describe(config)[0].layers] == [True, True, True, False, True]


def test_spare_rows_of_a_table(tmp_path):
    tiny_llama.write(tmp_path)
    decoder, names = describe(CONFIG)
    weights = DecoderWeights(decoder, names, SafetensorsFolder(tmp_path), Storage("f32"))
    name = weights.embeddings()
    whole = weights.table(name, decoder.vocab, decoder.width)
    fewer = weights.table(name, decoder.vocab - 8, decoder.width, spare=8)
    np.testing.assert_array_equal(fewer, whole[:-8])
    with pytest.raises(ModelError, match="expected"):
        weights.table(name, decoder.vocab - 8, decoder.width, spare=7)


def test_a_llama4():
    decoder, names = describe(LLAMA4)
    layers = decoder.layers
    assert [layer.mixed for layer in layers] == [False, True, False, True]
    assert [layer.chunk for layer in layers] == [8192, 8192, 8192, 0]
    assert [layer.bare_heads for layer in layers] == [False, False, False, True]
    assert layers[3].growth == Growth(0.1, 8192, ahead=1) and layers[0].growth is None
    assert decoder.experts.scaled_rows and decoder.experts.inner == CONFIG["intermediate_size"]
    assert decoder.inner == 96 and decoder.head_norms and decoder.plain_head_norms
    assert names.expert_transposed
    plain = describe({**LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False})[0]
    assert not plain.head_norms and plain.layers[3].growth is None


def test_scores_of_a_ministral3_grow_beyond_the_first_context():
    told = {"rope_type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
    decoder = describe({**CONFIG, "model_type": "ministral3", "rope_parameters": told})[0]
    assert {layer.growth for layer in decoder.layers} == {Growth(0.1, 16)}
    assert decoder.context == CONFIG["max_position_embeddings"]


@pytest.mark.parametrize("turned", [False, True])
def test_experts_of_one_array_lie_either_way(turned):
    class Arrays(dict):
        config = {}

        def matrix(self, name):
            return self[name]

    decoder, names = describe(
        {**LLAMA4, "model_type": "qwen3_vl_moe_text", "num_experts": 4, "moe_intermediate_size": 6}
    )
    whole = np.random.default_rng(0).standard_normal((4, 12, 32)).astype(np.float32)
    stored = np.ascontiguousarray(whole.swapaxes(1, 2)) if turned else whole
    base = "layers.0."
    checkpoint = Arrays({f"model.language_model.{base}mlp.experts.gate_up_proj": stored})
    weights = DecoderWeights(decoder, names, checkpoint, Storage("f32"))
    parts, biases = expert_matrices(weights, base, names.expert_up, 12, 32)
    assert biases is None
    np.testing.assert_array_equal(np.stack(parts), whole)


def test_matrices_beside_which_there_are_adapters():
    decoder, names = describe({**CONFIG, "model_type": "phi4mm"})
    base = "model.layers.0.self_attn."
    stored = {f"{base}qkv_proj.base_layer.weight", f"{base}qkv_proj.lora_A.vision.weight"}
    weights = DecoderWeights(decoder, names, stored, Storage("f32"))
    assert weights.find("layers.0.self_attn.qkv_proj") == f"{base}qkv_proj.base_layer.weight"
