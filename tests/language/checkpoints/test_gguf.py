"""GGUF files that the package gguf writes."""

import numpy as np
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.gguf import GgufFile
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage
from tests import tiny_llama
from tests.tiny_llama import CONFIG, weights

gguf = pytest.importorskip("gguf")

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
} | {f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"}
NAMES |= {"block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp"}
NAMES |= {f"experts.{n}": f"ffn_{n}_exps" for n in ("gate", "up", "down")}


def interleaved(weight, heads):
    """Rows of queries or keys as the converter of llama.cpp stores them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, tensors, kind="F32", config=CONFIG, raw=(), more=(), split=0):
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_eos_token_id(config["eos_token_id"])
    for add, value in dict(more).items():
        getattr(writer, add)(value)
    kind = gguf.GGMLQuantizationType[kind]
    for name, array in tensors.items():
        base = name.removesuffix(".weight")
        layer = base.removeprefix("model.layers.").partition(".") if "layers" in base else None
        if base.endswith(("q_proj", "k_proj")):
            role = "num_attention_heads" if base.endswith("q_proj") else "num_key_value_heads"
            array = interleaved(array, config[role])
        stored = f"blk.{layer[0]}.{NAMES[layer[2]]}" if layer else NAMES[base]
        if name in raw:
            writer.add_tensor(stored + ".weight", raw[name][1], raw_dtype=raw[name][0])
        elif array.ndim == 2 and array.shape[1] % 32 == 0 and kind.name != "F32":
            writer.add_tensor(stored + ".weight", gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored + ".weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_names_configuration_and_order_of_the_heads(tmp_path):
    tensors = weights()
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors))
    decoder, names = describe(file.config)
    assert decoder == describe(CONFIG)[0]
    assert file.names(names) == names
    for name, array in tensors.items():
        assert name in file
        np.testing.assert_array_equal(file.array(name), array)
    assert "model.layers.0.self_attn.q_proj.bias" not in file
    with pytest.raises(ModelError, match=r"blk\.9"):
        file.array("model.layers.9.mlp.up_proj.weight")


@pytest.mark.parametrize(("kind", "storage"), [("Q4_0", Storage("int4", 32)), ("Q8_0", Storage("int8", 32))])
def test_integers_stay_as_they_are(tmp_path, kind, storage):
    tensors = weights()
    path = write_gguf(tmp_path / "m.gguf", tensors, kind)
    file = GgufFile(path)
    decoder, names = describe(file.config)
    given = DecoderWeights(decoder, names, file, Storage("f32"))
    for name in ("self_attn.q_proj", "mlp.up_proj"):
        got = given.matrix([f"layers.1.{name}"], 32 if "q_proj" in name else 40, 32)
        assert isinstance(got, QuantizedWeight) and got.storage == storage
        array = tensors[f"model.layers.1.{name}.weight"]
        quantization = gguf.GGMLQuantizationType[kind]
        want = gguf.quants.dequantize(gguf.quants.quantize(array, quantization), quantization)
        np.testing.assert_array_equal(got.dequantized(), want)


@pytest.mark.parametrize(
    ("kind", "layers", "dim"), [("gemma2", 42, 16), ("gemma2", 46, 12), ("gemma3", 62, 12)]
)
def test_what_files_of_gemma_leave_unsaid(tmp_path, kind, layers, dim):
    """The largest ones scale queries by the width over the heads, 48 / 4; early files name no softcaps."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", kind)
    writer.add_context_length(64)
    writer.add_embedding_length(48)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("token_embd.weight", np.zeros((8, 48), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    decoder, _ = describe(GgufFile(tmp_path / "m.gguf").config)
    assert decoder.scale == pytest.approx(dim**-0.5)
    caps = (50.0, 30.0) if kind == "gemma2" else (0.0, 0.0)
    assert (decoder.softcap, decoder.logits_softcap) == caps
    assert max(layer.window or 0 for layer in decoder.layers) == (4096 if kind == "gemma2" else 0)


def test_other_types_become_floats(tmp_path):
    tensors = weights()
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, "Q5_1"))
    name = "model.layers.0.mlp.gate_proj.weight"
    got = file.matrix(name)
    assert got.dtype == np.float32
    assert np.abs(got - tensors[name]).max() < 0.1


def test_what_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 40)
    with pytest.raises(ModelError, match="no GGUF file"):
        GgufFile(path)
    writer = gguf.GGUFWriter(path, "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="rwkv6"):
        GgufFile(path)


def random_blocks(kind, rows, columns, random):
    """A matrix in a type that the package reads and does not write: blocks of 256 with small scales."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = random.integers(0, 256, (rows, columns // block, size), np.uint8)
    scales = {"Q4_K": (0, 2), "Q6_K": (size - 2,), "Q5_K": (0, 2)}[kind]
    for place in scales:
        values = random.uniform(0.5, 1.5, (*data.shape[:2], 1)) * (2e-3 if kind != "Q6_K" else 5e-4)
        data[:, :, place : place + 2] = values.astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.thorough
def test_a_file_of_many_types_continues_texts(tmp_path):
    """Types differ by tensor, as in the files that llama.cpp's quantize writes; also within one product."""
    import hetero_tvm

    config = {**CONFIG, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    random, kinds = np.random.default_rng(0), gguf.GGMLQuantizationType
    tensors = weights(config)
    by_role = {
        "q_proj": "Q4_K",
        "k_proj": "Q4_0",
        "v_proj": "Q6_K",
        "o_proj": "Q5_0",
        "gate_proj": "Q4_1",
        "up_proj": "Q8_0",
        "down_proj": "Q5_K",
        "embed_tokens": "Q6_K",
        "lm_head": "BF16",
    }
    raw = {}
    for name, array in tensors.items():
        kind = by_role.get(name.removesuffix(".weight").rpartition(".")[2])
        if kind is None:
            continue
        if kind.endswith("_K"):
            raw[name] = kinds[kind], random_blocks(kind, *array.shape, random)
        else:
            role = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
            heads = role.get(name.removesuffix(".weight").rpartition(".")[2])
            lying = interleaved(array, config[heads]) if heads else array
            raw[name] = kinds[kind], gguf.quants.quantize(lying, kinds[kind])
    path = write_gguf(tmp_path / "m.gguf", tensors, config=config, raw=raw)
    file = GgufFile(path)
    meant = {name: file.array(name) for name in tensors}
    for name, (kind, data) in raw.items():
        if name.removesuffix(".weight").rpartition(".")[2] not in ("q_proj", "k_proj"):
            np.testing.assert_array_equal(meant[name], gguf.quants.dequantize(data, kind))
    hetero_tvm.build_language_model(path, tmp_path / "out", rows=16, page=16)
    model = hetero_tvm.load_language_model(tmp_path / "out")
    tokens = [5, 6, 7, 90, 14]
    wanted = tiny_llama.logits(tokens, meant, config)[-1]
    with model.session() as session:
        found = session.append(tokens)
    # Where weights stay 4 and 8 bits their products round rows to 8 and 16 bits.
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
    assert int(found.argmax()) == int(wanted.argmax())


def mixture(experts=3, inner=32):
    """Tensors of a Llama whose MLPs are mixtures, those of all experts in one."""
    random = np.random.default_rng(5)
    tensors = {name: array for name, array in weights().items() if "mlp" not in name}
    for layer in range(CONFIG["num_hidden_layers"]):
        base, width = f"model.layers.{layer}.", CONFIG["hidden_size"]
        shapes = {"block_sparse_moe.gate": (experts, width), "experts.down": (experts, width, inner)}
        shapes |= {f"experts.{name}": (experts, inner, width) for name in ("gate", "up")}
        tensors |= {base + n + ".weight": random.standard_normal(s).astype("f") for n, s in shapes.items()}
    return tensors


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_1"])
def test_a_mixture_of_experts(tmp_path, kind):
    tensors, of = mixture(), gguf.GGMLQuantizationType[kind]
    raw = {n: (of, gguf.quants.quantize(a, of)) for n, a in tensors.items() if "experts" in n}
    more = {"add_expert_count": 3, "add_expert_used_count": 2}
    raw = {} if kind == "F32" else raw
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, raw=raw, more=more))
    decoder, names = describe(file.config)
    assert decoder.architecture == "mixtral" and decoder.experts.count == 3 and decoder.experts.top == 2
    base = "model.layers.1.block_sparse_moe."
    np.testing.assert_array_equal(file.array(base + "gate.weight"), tensors[base + "gate.weight"])
    for name, stored in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        whole = tensors[f"model.layers.1.experts.{stored}.weight"]
        if raw:
            whole = gguf.quants.dequantize(raw[f"model.layers.1.experts.{stored}.weight"][1], of)
        for expert in range(3):
            full = f"{base}experts.{expert}.{name}.weight"
            assert full in file
            assert isinstance(file.matrix(full), QuantizedWeight) == (kind == "Q4_0")
            np.testing.assert_array_equal(file.array(full), whole[expert])
    with pytest.raises(ModelError, match="no expert 3"):
        file.matrix(base + "experts.3.w1.weight")


def written(path, kind, tensors, **facts):
    """A file of an architecture, tensors by their names in the file."""
    writer = gguf.GGUFWriter(path, kind)
    sizes = {"embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "context_length": 64}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    for name, value in (sizes | facts).items():
        writer.add_uint32(f"{kind}.{name}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, (array, of) in tensors.items():
        writer.add_tensor(name, array if of is None else gguf.quants.quantize(array, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_a_gpt_oss(tmp_path):
    """Gate and up are two tensors, experts have biases, and MXFP4 becomes floats."""
    random, of = np.random.default_rng(8), gguf.GGMLQuantizationType.MXFP4
    tensors = {
        "token_embd.weight": (random.standard_normal((9, 32)).astype("f"), None),
        "blk.0.attn_sinks.weight": (random.standard_normal(4).astype("f"), None),
        "blk.0.post_attention_norm.weight": (np.ones(32, "f"), None),
        "blk.0.ffn_gate_inp.bias": (np.ones(3, "f"), None),
        "blk.0.ffn_gate_exps.weight": (random.standard_normal((3, 32, 32)).astype("f"), of),
        "blk.0.ffn_gate_exps.bias": (random.standard_normal((3, 32)).astype("f"), None),
        "blk.0.ffn_up_exps.weight": (random.standard_normal((3, 32, 32)).astype("f"), of),
    }
    facts = {"expert_count": 3, "expert_used_count": 2, "attention.sliding_window": 8}
    file = written(tmp_path / "m.gguf", "gpt-oss", tensors, **facts)
    decoder, names = describe(file.config)
    store = DecoderWeights(decoder, file.names(names), file, Storage("f32"))
    assert decoder.sinks and decoder.experts.limit == 7.0 and decoder.layers[0].window == 8
    base = "model.layers.0."
    np.testing.assert_array_equal(store.sinks(base), tensors["blk.0.attn_sinks.weight"][0])
    assert store.find(base + store.names.mlp_norm) and store.find(base + store.names.router, ".bias")
    gate, up = (base + store.names.expert.format(2) + name for name in store.names.expert_up)
    stacked = store.matrix([gate, up], 64, 32)
    for half, name in zip(np.split(stacked, 2), ("gate", "up"), strict=True):
        whole = tensors[f"blk.0.ffn_{name}_exps.weight"][0]
        np.testing.assert_array_equal(half, gguf.quants.dequantize(gguf.quants.quantize(whole, of), of)[2])
    bias = tensors["blk.0.ffn_gate_exps.bias"][0]
    np.testing.assert_array_equal(file.array(gate + ".bias"), bias[2])


def test_norms_behind_the_blocks_of_an_olmo2(tmp_path):
    names = ("post_attention_norm", "post_ffw_norm", "attn_q_norm")
    tensors = {f"blk.0.{name}.weight": (np.full(32, n + 1, "f"), None) for n, name in enumerate(names)}
    tensors |= {"token_embd.weight": (np.zeros((9, 32), "f"), None)}
    file = written(tmp_path / "m.gguf", "olmo2", tensors)
    decoder, words = describe(file.config)
    assert decoder.wide_head_norms and not decoder.pre_norms
    found = [words.attention_post_norm, words.mlp_post_norm, words.head_norms[0]]
    assert [file.array(f"model.layers.0.{name}.weight")[0] for name in found] == [1, 2, 3]


def test_all_tokens_that_end_a_turn(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", weights(), more={"add_eot_token_id": 7, "add_eom_token_id": 9})
    assert describe(GgufFile(path).config)[0].stop == (96, 7, 9)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_attention_heads": 0}, "m.gguf is damaged"),
        ({"num_hidden_layers": 1 << 31}, "no model has more than"),
    ],
)
def test_sizes_that_no_model_has(tmp_path, change, match):
    table = {"model.embed_tokens.weight": weights()["model.embed_tokens.weight"]}
    path = write_gguf(tmp_path / "m.gguf", table, config={**CONFIG, **change})
    with pytest.raises(ModelError, match=match):
        describe(GgufFile(path).config)


def test_a_model_in_several_files(tmp_path):
    tensors = weights()
    write_gguf(tmp_path / "m.gguf", tensors, split=5)
    first, second, *_ = sorted(tmp_path.iterdir())
    file = GgufFile(first)
    for name, array in tensors.items():
        np.testing.assert_array_equal(file.array(name), array)
    with pytest.raises(ModelError, match=f"give the first: {first.name}"):
        GgufFile(second)
    second.unlink()
    with pytest.raises(ModelError, match=f"missing: {second.name}"):
        GgufFile(first)


def test_a_lfm2(tmp_path):
    """Layers without attention are those without heads of keys; a convolution has two axes."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "lfm2")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(40)
    writer.add_head_count(4)
    writer.add_head_count_kv([0, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_shortconv_l_cache(3)
    taps = np.arange(96, dtype="f").reshape(32, 3)
    writer.add_tensor("token_embd.weight", np.zeros((9, 32), "f"))
    writer.add_tensor("token_embd_norm.weight", np.full(32, 7, "f"))
    writer.add_tensor("blk.0.shortconv.conv.weight", taps)
    writer.add_tensor("blk.1.attn_output.weight", np.ones((32, 32), "f"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    decoder, names = describe(file.config)
    assert [(layer.attends, layer.recurs) for layer in decoder.layers] == [(False, True), (True, False)]
    assert (decoder.inner, decoder.kv_heads, decoder.dim, decoder.tied) == (40, 2, 8, True)
    np.testing.assert_array_equal(file.array("model.layers.0.conv.conv.weight")[:, 0], taps)
    assert file.array(f"model.{names.norm}.weight")[0] == 7
    assert f"model.layers.1.{names.out}.weight" in file
