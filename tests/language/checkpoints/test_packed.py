"""Integers packed by others are read without rounding; what cannot be kept as integers becomes floats."""

import json

import ml_dtypes
import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import ModelError
from hetero_tvm.language.build import open_checkpoint
from hetero_tvm.language.checkpoints.packed import Mxfp4Folder, PackedFolder
from hetero_tvm.ops.decoding.storage import QuantizedWeight
from tests import tiny_llama

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
SIZES = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 96, "eos_token_id": 95}
CONFIG = {**tiny_llama.CONFIG, **SIZES}
PLANS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
    "gptq8": {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False},
    "gptq_v2": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "checkpoint_format": "gptq_v2",
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "symmetric": True}}},
    },
}


def words(values, bits):
    """int32 of the last axis, low bits first, in the plainest way."""
    per = 32 // bits
    out = np.zeros((*values.shape[:-1], values.shape[-1] // per), np.uint32)
    for place in range(per):
        out |= values[..., place::per].astype(np.uint32) << np.uint32(bits * place)
    return out.view(np.int32)


def awq_words(values):
    order = [8 * block + column for block in range(values.shape[1] // 8) for column in AWQ_COLUMNS]
    return words(values[:, order], 4)


def random_parts(generator, n, k, bits, symmetric, group=32):
    """Integers [N, K], scales and zeros [N, groups]."""
    q = generator.integers(0, 1 << bits, (n, k))
    scale = (generator.uniform(0.01, 0.05, (n, -(-k // group))) * 8 / (1 << (bits - 1))).astype(np.float16)
    middle = np.full(scale.shape, 1 << (bits - 1))
    return q, scale, middle if symmetric else generator.integers(0, 1 << bits, scale.shape)


def weight_of(q, scale, zero, group=32):
    order = np.arange(q.shape[1]) // group
    return ((q - zero[:, order]) * scale.astype(np.float64)[:, order]).astype(np.float32)


def tensors_of(name, base, q, scale, zero):
    """Tensors as the method stores them."""
    bits = 8 if name == "gptq8" else 4
    if name == "compressed":
        return {
            base + ".weight_packed": words(q, bits),
            base + ".weight_scale": scale,
            base + ".weight_shape": np.array(q.shape, np.int64),
        }
    if name == "awq":
        return {
            base + ".qweight": awq_words(q.T),
            base + ".qzeros": awq_words(zero.T),
            base + ".scales": scale.T.copy(),
        }
    stored = zero if name == "gptq_v2" else (zero - 1) % (1 << bits)
    return {
        base + ".qweight": words(q, bits).T.copy(),
        base + ".qzeros": words(stored.T, bits),
        base + ".scales": scale.T.copy(),
        base + ".g_idx": (np.arange(q.shape[1]) // 32).astype(np.int32),
    }


def write(folder, name, tensors, plan=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": plan or PLANS[name]}))
    tiny_llama.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def parts_for(name, n, k, seed=0):
    symmetric = name in ("gptq_v2", "compressed")
    return random_parts(np.random.default_rng(seed), n, k, 8 if name == "gptq8" else 4, symmetric)


@pytest.mark.parametrize("name", PLANS)
def test_integers_stay_as_they_are(tmp_path, name):
    q, scale, zero = parts_for(name, 24, 96)
    read = PackedFolder(write(tmp_path / "c", name, tensors_of(name, "a", q, scale, zero)))
    assert "a.weight" in read and "a.bias" not in read and "quantization_config" not in read.config
    weight = read.matrix("a.weight")
    assert isinstance(weight, QuantizedWeight) and weight.storage.group == 32
    np.testing.assert_array_equal(weight.q, q)
    np.testing.assert_array_equal(weight.scale, scale)
    assert weight.zero is None if name in ("gptq_v2", "compressed") else (weight.zero == zero).all()
    np.testing.assert_array_equal(read.array("a.weight"), weight_of(q, scale, zero))


@pytest.mark.parametrize(("group", "kept"), [(-1, 64), (64, 64), (256, 128), (16, None), (48, None)])
def test_groups_of_other_sizes(tmp_path, group, kept):
    k = {-1: 192, 256: 512}.get(group, 192)
    size = k if group == -1 else group
    q, scale, zero = random_parts(np.random.default_rng(1), 8, k, 4, False, size)
    plan = {**PLANS["awq"], "group_size": group}
    read = PackedFolder(write(tmp_path / "c", "awq", tensors_of("awq", "a", q, scale, zero), plan))
    weight = read.matrix("a.weight")
    assert (weight.storage.group if isinstance(weight, QuantizedWeight) else None) == kept
    np.testing.assert_array_equal(read.array("a.weight"), weight_of(q, scale, zero, size))


def quark(dtype, scheme, **options):
    """A configuration as AMD Quark exports it."""
    weight = {"dtype": dtype, "qscheme": scheme, "is_dynamic": False, "ch_axis": 0, **options}
    layers = {"bias": None, "input_tensors": {"dtype": dtype}, "output_tensors": None, "weight": weight}
    export = {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []}
    whole = {"global_quant_config": layers, "layer_quant_config": {}, "layer_type_quant_config": {}}
    return {"quant_method": "quark", "exclude": ["lm_head"], "export": export, **whole}


def test_columns_in_the_order_of_activations_become_floats(tmp_path):
    q, scale, zero = parts_for("gptq", 16, 64)
    order = np.random.default_rng(2).permutation(np.arange(64) // 32).astype(np.int32)
    tensors = {**tensors_of("gptq", "a", q, scale, zero), "a.g_idx": order}
    weight = PackedFolder(write(tmp_path / "c", "gptq", tensors)).matrix("a.weight")
    np.testing.assert_array_equal(weight, ((q - zero[:, order]) * scale.astype(np.float32)[:, order]))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"quant_method": "hqq"}, ("hqq", "known methods")),
        ({**PLANS["gptq"], "bits": 3, "group_size": 0}, ("3 bits", "group_size is 0")),
        ({**PLANS["awq"], "version": "marlin"}, ("marlin",)),
        (
            {**PLANS["compressed"], "format": "marlin-24", "config_groups": {}},
            ("marlin-24", "pack-quantized"),
        ),
        (
            {
                **PLANS["compressed"],
                "format": "int-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            ("4 bits",),
        ),
        ({"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"}, ("llm_compressor",)),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, ("W4A8_AWQ",)),
        ({**PLANS["gptq"], "dynamic": {"+:.*down": {"bits": 3}}}, ("3 bits",)),
        ({"quant_method": "fp8", "fmt": "e5m2"}, ("e5m2",)),
        (quark("int4", "per_group", group_size=32), ("int4 per_group",)),
        (
            {**quark("int8", "per_channel"), "export": {"weight_format": "fake_quantized"}},
            ("fake_quantized",),
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_all_reasons(tmp_path, plan, words):
    with pytest.raises(ModelError) as caught:
        PackedFolder(write(tmp_path / "c", "", {"a.weight": np.zeros((2, 2), np.float32)}, plan))
    assert all(word in str(caught.value) for word in words)


EIGHT = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "symmetric": True}}}}


@pytest.mark.parametrize(
    ("plan", "name", "dtype", "shape", "block"),
    [
        ({"quant_method": "fp8", "weight_block_size": [16, 32]}, "weight_scale_inv", "fp8", (2, 3), (16, 32)),
        (quark("fp8_e4m3", "per_tensor"), "weight_scale", "fp8", (), (24, 96)),
        (quark("fp8_e4m3", "per_channel"), "weight_scale", "fp8", (24,), (1, 96)),
        (quark("int8", "per_channel"), "weight_scale", "int8", (24,), (1, 96)),
        ({"format": "float-quantized", **EIGHT}, "weight_scale", "fp8", (24, 1), (1, 96)),
        ({"format": "float-quantized", **EIGHT}, "weight_scale", "fp8", (1,), (24, 96)),
        ({"format": "int-quantized", **EIGHT}, "weight_scale", "int8", (24, 1), (1, 96)),
        ({"format": "int-quantized", **EIGHT}, "weight_scale", "int8", (24, 3), (1, 32)),
    ],
)
def test_eight_bits_that_are_not_packed(tmp_path, plan, name, dtype, shape, block):
    random = np.random.default_rng(3)
    q = random.integers(-127, 128, (24, 96)).astype(np.int8)
    if dtype == "fp8":
        q = q.astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    scale = np.asarray(random.uniform(0.01, 0.1, shape), np.float32)
    tensors = {"a.weight": q, f"a.{name}": scale, "b.weight": np.ones((2, 2), np.float32)}
    plan = {"quant_method": "compressed-tensors", **plan}
    read = PackedFolder(write(tmp_path / "c", "", tensors, plan))
    grid = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    rows, columns = np.arange(24)[:, None] // block[0], np.arange(96)[None] // block[1]
    np.testing.assert_array_equal(read.matrix("a.weight"), q.astype(np.float32) * grid[rows, columns])
    np.testing.assert_array_equal(read.matrix("b.weight"), 1)
    wrong = {**tensors, f"a.{name}": np.ones((5, 7), np.float32)}
    with pytest.raises(ModelError, match="do not fit"):
        PackedFolder(write(tmp_path / "d", "", wrong, plan)).matrix("a.weight")


def scheme(bits, group, symmetric=True, **more):
    weights = {"num_bits": bits, "group_size": group, "symmetric": symmetric, "type": "int", **more}
    return {"weights": weights}


def test_compressed_groups_with_zeros_of_their_own(tmp_path):
    q, scale, zero = random_parts(np.random.default_rng(5), 20, 96, 4, False)
    padded = np.zeros((24, 3), zero.dtype)
    padded[:20] = zero
    plan = {**PLANS["compressed"], "config_groups": {"group_0": scheme(4, 32, False)}}
    tensors = tensors_of("compressed", "a", q, scale, zero)
    for kept in (words(padded.T, 4).T.copy(), (zero - 8).astype(np.int8)):
        read = PackedFolder(write(tmp_path / "c", "", {**tensors, "a.weight_zero_point": kept}, plan))
        weight = read.matrix("a.weight")
        np.testing.assert_array_equal(weight.zero, zero)
        np.testing.assert_array_equal(weight.dequantized(), weight_of(q, scale, zero))


def test_compressed_columns_in_the_order_of_activations(tmp_path):
    q, scale, zero = parts_for("compressed", 16, 96)
    order = np.random.default_rng(2).permutation(np.arange(96) // 32).astype(np.int32)
    plan = {**PLANS["compressed"], "config_groups": {"group_0": scheme(4, 32, actorder="group")}}
    tensors = tensors_of("compressed", "a", q, scale, zero)
    read = PackedFolder(write(tmp_path / "c", "", {**tensors, "a.weight_g_idx": order}, plan))
    wanted = (q - zero[:, order]) * scale.astype(np.float32)[:, order]
    np.testing.assert_array_equal(read.array("a.weight"), wanted)
    none = np.full(96, -1, np.int32)
    read = PackedFolder(write(tmp_path / "d", "", {**tensors, "a.weight_g_idx": none}, plan))
    np.testing.assert_array_equal(read.array("a.weight"), weight_of(q, scale, zero))


def test_groups_of_layers_of_other_bits_and_formats(tmp_path):
    """``mixed-precision`` of compressed-tensors: a format for each group of layers."""
    random = np.random.default_rng(6)
    four, eight = random_parts(random, 8, 64, 4, True), random_parts(random, 8, 64, 8, True, 64)
    groups = {
        "group_0": {**scheme(4, 32), "format": "pack-quantized"},
        "group_1": {**scheme(8, None), "format": "pack-quantized"},
        "group_2": {**scheme(8, None, type="float"), "format": "float-quantized"},
    }
    plan = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    fp8 = random.standard_normal((8, 64)).astype(ml_dtypes.float8_e4m3fn)
    tensors = {
        **tensors_of("compressed", "a", *four),
        "b.weight_packed": words(eight[0], 8),
        "b.weight_scale": eight[1],
        "b.weight_shape": np.array([8, 64], np.int64),
        "c.weight": fp8,
        "c.weight_scale": np.full((8, 1), 0.5, np.float32),
    }
    read = PackedFolder(write(tmp_path / "c", "", tensors, plan))
    np.testing.assert_array_equal(read.array("a.weight"), weight_of(*four))
    np.testing.assert_array_equal(read.array("b.weight"), weight_of(*eight, 64))
    np.testing.assert_array_equal(read.array("c.weight"), fp8.astype(np.float32) / 2)


def test_eight_bits_with_zeros(tmp_path):
    random = np.random.default_rng(8)
    q = random.integers(-128, 128, (6, 32)).astype(np.int8)
    scale, zero = random.uniform(0.1, 1, (6, 1)).astype(np.float32), random.integers(-9, 9, (6, 1))
    groups = {"group_0": scheme(8, None, False)}
    plan = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups}
    tensors = {"a.weight": q, "a.weight_scale": scale, "a.weight_zero_point": zero.astype(np.int8)}
    read = PackedFolder(write(tmp_path / "c", "", tensors, plan))
    np.testing.assert_array_equal(
        read.matrix("a.weight"), (q.astype(np.float32) - zero.astype(np.float32)) * scale
    )


@pytest.mark.parametrize(
    ("kind", "offset"),
    [("auto_round:auto_gptq", 1), ("auto_round:gptqmodel", 0), ("auto_round", 0), ("auto_round:auto_awq", 0)],
)
def test_the_layouts_of_auto_round(tmp_path, kind, offset):
    random = np.random.default_rng(9)
    q, scale, zero = random_parts(random, 16, 64, 4, False)
    wide = random_parts(random, 16, 64, 4, False, 64)
    name = "awq" if "awq" in kind else "gptq" if offset else "gptq_v2"
    other = tensors_of(name, "model.b", *wide)
    tensors = {
        n: t for n, t in {**tensors_of(name, "a", q, scale, zero), **other}.items() if "g_idx" not in n
    }
    plan = {"quant_method": "auto-round", "packing_format": kind, "bits": 4, "group_size": 32, "sym": False}
    plan["extra_config"] = {"model.b": {"group_size": 64}, "lm_head": {"bits": 16}}
    read = PackedFolder(write(tmp_path / "c", "", tensors, plan))
    np.testing.assert_array_equal(read.array("a.weight"), weight_of(q, scale, zero))
    np.testing.assert_array_equal(read.array("model.b.weight"), weight_of(*wide, 64))


def test_matrices_of_gptq_that_differ_by_name(tmp_path):
    random = np.random.default_rng(10)
    four, eight = random_parts(random, 16, 64, 4, True), random_parts(random, 16, 64, 8, True)
    tensors = tensors_of("gptq", "layers.0.up", *four) | tensors_of("gptq8", "layers.0.down", *eight)
    dynamic = {"+:.*\\.down": {"bits": 8}, "-:.*lm_head": {}}
    read = PackedFolder(write(tmp_path / "c", "", tensors, {**PLANS["gptq"], "dynamic": dynamic}))
    np.testing.assert_array_equal(read.array("layers.0.up.weight"), weight_of(*four))
    np.testing.assert_array_equal(read.array("layers.0.down.weight"), weight_of(*eight))


@pytest.mark.parametrize("kind", ["compressed", "modelopt", "mx", "quark"])
def test_numbers_of_four_bits(tmp_path, kind):
    random = np.random.default_rng(11)
    packed = random.integers(0, 256, (6, 32)).astype(np.uint8)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(6, 64)
    numbers = numbers.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    size = 32 if kind in ("mx", "quark") else 16
    scale = random.uniform(1, 200, (6, 64 // size)).astype(ml_dtypes.float8_e4m3fn)
    plan = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    if size == 32:
        exponents = random.integers(118, 132, (6, 2)).astype(np.uint8)
        tensors, wide = (
            {"a.weight_packed": packed, "a.weight_scale": exponents},
            2.0 ** (exponents.astype(np.float64) - 127),
        )
        plan["format"] = "mxfp4-pack-quantized"
        if kind == "quark":
            tensors["a.weight"] = tensors.pop("a.weight_packed")
            plan = quark("fp4", "per_group", group_size=32, scale_format="e8m0")
    elif kind == "compressed":
        tensors = {"a.weight_packed": packed, "a.weight_scale": scale}
        tensors["a.weight_global_scale"] = np.array([64.0], np.float32)
        wide, plan["format"] = scale.astype(np.float64) / 64, "nvfp4-pack-quantized"
    else:
        tensors = {"a.weight": packed, "a.weight_scale": scale, "a.input_scale": np.float32([1])}
        tensors["a.weight_scale_2"] = np.array(0.25, np.float32)
        wide, plan = scale.astype(np.float64) / 4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    read = PackedFolder(write(tmp_path / "c", "", tensors, plan))
    assert "a.weight" in read
    np.testing.assert_array_equal(read.matrix("a.weight"), numbers * np.repeat(wide, size, 1))


@pytest.mark.parametrize("kind", ["bitlinear", "autobitlinear"])
def test_weights_of_three_values(tmp_path, kind):
    """The example of transformers' ``unpack_weights``: 0b10100001 holds 0, -1, 1, 1 of rows 0, 2, 4, 6."""
    packed = np.array([[0b10100001, 0b00011000], [0b10010000, 0b00001010]], np.uint8)
    numbers = np.array([[0, -1], [-1, 1], [-1, 1], [-1, 1], [1, 0], [0, -1], [1, -1], [1, -1]])
    plan = {"quant_method": "bitnet", "linear_class": kind}
    scale = np.array([0.25], np.float32)
    read = PackedFolder(write(tmp_path / "c", "", {"a.weight": packed, "a.weight_scale": scale}, plan))
    factor = 4 if kind == "bitlinear" else 0.25
    np.testing.assert_array_equal(read.matrix("a.weight"), numbers * np.float32(factor))
    with pytest.raises(ModelError, match="norms of their own"):
        PackedFolder(write(tmp_path / "d", "", {}, {**plan, "use_rms_norm": True}))


def test_what_modelopt_says_in_a_file_of_its_own(tmp_path):
    fp8 = np.random.default_rng(12).standard_normal((8, 64)).astype(ml_dtypes.float8_e4m3fn)
    tensors = {"a.weight": fp8, "a.weight_scale": np.array(0.5, np.float32)}
    folder = tiny_llama.write(tmp_path / "c", CONFIG, tensors)
    with pytest.raises(ModelError, match="has scales .*no quantization_config"):
        open_checkpoint(folder).matrix("a.weight")
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))
    np.testing.assert_array_equal(open_checkpoint(folder).matrix("a.weight"), fp8.astype(np.float32) / 2)


def test_exponents_as_scales(tmp_path):
    fp8 = np.random.default_rng(13).standard_normal((8, 64)).astype(ml_dtypes.float8_e4m3fn)
    exponents = np.full((8, 2), 126, np.uint8)
    plan = {"quant_method": "mxfp8"}
    read = PackedFolder(write(tmp_path / "c", "", {"a.weight": fp8, "a.weight_scale": exponents}, plan))
    np.testing.assert_array_equal(read.matrix("a.weight"), fp8.astype(np.float32) / 2)
    bare = PackedFolder(write(tmp_path / "d", "", {"a.weight": exponents}, plan))
    with pytest.raises(ModelError, match="integers without scales"):
        bare.matrix("a.weight")


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales", "g_idx"])
def test_parts_that_do_not_fit_or_are_missing(tmp_path, part):
    tensors = tensors_of("gptq", "a", *parts_for("gptq", 16, 64))
    wrong = {**tensors, f"a.{part}": tensors[f"a.{part}"][..., :1].copy()}
    with pytest.raises(ModelError, match="do not fit"):
        PackedFolder(write(tmp_path / "c", "gptq", wrong)).matrix("a.weight")
    if part in ("qzeros", "scales"):
        del wrong[f"a.{part}"]
        with pytest.raises(ModelError, match=f"no tensor 'a.{part}'"):
            PackedFolder(write(tmp_path / "d", "gptq", wrong)).matrix("a.weight")


def test_experts_in_mxfp4(tmp_path):
    random = np.random.default_rng(3)
    packed = random.integers(0, 256, (2, 5, 3, 16)).astype(np.uint8)
    exponents = random.integers(120, 130, (2, 5, 3)).astype(np.uint8)
    tensors = {"e.up_blocks": packed, "e.up_scales": exponents, "e.up_bias": np.ones((2, 5), np.float32)}
    config = {**CONFIG, "quantization_config": {"quant_method": "mxfp4"}}
    folder = Mxfp4Folder(tiny_llama.write(tmp_path / "c", config, tensors))
    halves = np.stack([packed & 15, packed >> 4], -1).reshape(2, 5, 3, 32)
    numbers = halves.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    want = numbers * 2.0 ** (exponents[..., None].astype(np.int64) - 127)
    np.testing.assert_array_equal(folder.matrix("e.up"), want.reshape(2, 5, 96).transpose(0, 2, 1))
    assert "e.up" in folder and "e.down" not in folder and "quantization_config" not in folder.config
    np.testing.assert_array_equal(folder.array("e.up_bias"), 1)
    wrong = {**tensors, "e.up_scales": exponents[:, :4]}
    with pytest.raises(ModelError, match="do not fit together"):
        Mxfp4Folder(tiny_llama.write(tmp_path / "d", config, wrong)).matrix("e.up")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANS)
def test_a_model_of_them_continues_texts(tmp_path, name):
    tensors, floats = {}, {}
    for number, (full, array) in enumerate(tiny_llama.weights(CONFIG).items()):
        if array.ndim == 2 and "proj" in full:
            q, scale, zero = parts_for(name, *array.shape, seed=number)
            tensors |= tensors_of(name, full.removesuffix(".weight"), q, scale, zero)
            floats[full] = weight_of(q, scale, zero)
        else:
            tensors[full] = floats[full] = array
    out = tmp_path / "out"
    hetero_tvm.build_language_model(
        write(tmp_path / "c", name, tensors), out, precision="int4", rows=24, page=tiny_llama.PAGE
    )
    with hetero_tvm.load_language_model(out).session() as session:
        made = session.append([5, 6, 7])
    wanted = tiny_llama.logits([5, 6, 7], floats, CONFIG)[-1]
    # Embeddings and logits are rounded to 4 bits by the build, rows to 8 beside them.
    cosine = made @ wanted / np.linalg.norm(made) / np.linalg.norm(wanted)
    assert cosine > 0.98
