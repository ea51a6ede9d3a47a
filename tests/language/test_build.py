"""Building; most numbers are in ``tests/generation/``, all architectures in a campaign."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import ModelError, TargetError, UsageError
from hetero_tvm.generation.generate import stream
from hetero_tvm.generation.rules import TextRules
from hetero_tvm.generation.sampling import Sampling
from hetero_tvm.generation.speculative import speculate
from hetero_tvm.host.cpu import cpu_features
from hetero_tvm.language.build import build_language_model, is_checkpoint
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from tests import tiny_llama


def test_the_library_runs_without_the_compiler():
    code = (
        "import sys, hetero_tvm; m = hetero_tvm.load_language_model(sys.argv[1]); s = m.session();"
        "print(int(s.append([5, 6, 7]).argmax()), 'tvm' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_llama.built())], capture_output=True, text=True, env=os.environ
    )
    assert done.stdout.split() == [str(tiny_llama.greedy([5, 6, 7], 1)[0]), "False", "False"], done.stderr


def test_what_is_a_checkpoint(tmp_path):
    assert not is_checkpoint(tmp_path)
    assert is_checkpoint(tiny_llama.write(tmp_path))
    assert is_checkpoint("model.gguf")
    assert not is_checkpoint("zoo:bert")


def test_an_adapter_is_told_from_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "meta/base"}')
    assert is_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="adapter .*of meta/base") as caught:
        build_language_model(tmp_path, tmp_path / "out")
    assert "merge_and_unload" in caught.value.hint


@pytest.mark.thorough
def test_repetitions_are_punished_as_the_checkpoint_says(tmp_path):
    """Qwen2.5's ``generation_config.json`` has 1.05 to 1.1, and transformers' greedy search heeds it."""
    checkpoint = tiny_llama.write(tmp_path / "model")
    told = {"repetition_penalty": 1.5, "temperature": 0.7, "bad_words_ids": [[90, 91, 92]]}
    (checkpoint / "generation_config.json").write_text(json.dumps(told))
    build_language_model(checkpoint, tmp_path / "out", rows=8, page=tiny_llama.PAGE)
    model, tokens = hetero_tvm.load_language_model(tmp_path / "out"), [5, 6, 7]
    assert model.facts.rules == TextRules(bad_words=((90, 91, 92),))
    for _ in range(24):
        scores = tiny_llama.logits(tokens)[-1]
        seen = sorted(set(tokens))
        scores[seen] = np.where(scores[seen] < 0, scores[seen] * 1.5, scores[seen] / 1.5)
        tokens.append(int(scores.argmax()))
    assert list(stream(model, [5, 6, 7], max_new_tokens=24, stop=())) == tokens[3:]
    assert list(speculate(model, model, [5, 6, 7], max_new_tokens=24, stop=())) == tokens[3:]
    plain = list(stream(model, [5, 6, 7], max_new_tokens=24, stop=(), sampling=Sampling(1.0)))
    assert plain == tiny_llama.greedy([5, 6, 7], 24) != tokens[3:]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"precision": "int3"}, UsageError, "int3"),
        ({"cache": "int3", "rows": 0, "page": 20, "context": 999}, UsageError, "cannot have"),
        ({"target": "npu:mobile"}, TargetError, "npu"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, error, match):
    checkpoint = tiny_llama.write(tmp_path / "model")
    with pytest.raises(error, match=match) as caught:
        build_language_model(checkpoint, tmp_path / "out", **options)
    if "rows" in options:
        assert len(caught.value.problems) == 4
    assert not (tmp_path / "out").exists()


def test_a_classifier_is_no_language_model(tmp_path):
    """Logits were taken from the table of embeddings, without a word."""
    tensors = {name: array for name, array in tiny_llama.weights().items() if "lm_head" not in name}
    config = {
        **tiny_llama.CONFIG,
        "tie_word_embeddings": False,
        "architectures": ["LlamaForSequenceClassification"],
    }
    checkpoint = tiny_llama.write(tmp_path / "model", config, tensors)
    with pytest.raises(ModelError, match="lm_head.weight.* generates none") as caught:
        build_language_model(checkpoint, tmp_path / "out")
    assert "LlamaForSequenceClassification" in str(caught.value)


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    tensors = tiny_llama.weights()
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-1]
    with pytest.raises(ModelError, match="down_proj"):
        build_language_model(tiny_llama.write(tmp_path / "a", tensors=tensors), tmp_path / "out")
    del tensors[name]
    with pytest.raises(ModelError, match=name):
        build_language_model(tiny_llama.write(tmp_path / "b", tensors=tensors), tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_bfloat16_are_what_the_checkpoint_has(tied, tmp_path):
    """A checkpoint of bfloat16 loses nothing; a tied table is read as packed words."""
    tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in tiny_llama.weights().items()}
    if tied:
        del tensors["lm_head.weight"]
    folder = tiny_llama.write(tmp_path / "model", tensors=tensors)
    out = build_language_model(folder, tmp_path / "out", precision="bf16", cache="f32").parent
    model = hetero_tvm.load_language_model(out)
    tokens = list(range(3, 43))
    with model.session() as session:
        got = np.stack([session.append(tokens), session.append([4])])
    floats = {name: array.astype(np.float32) for name, array in tensors.items()}
    floats.setdefault("lm_head.weight", floats["model.embed_tokens.weight"])
    np.testing.assert_allclose(got, tiny_llama.logits([*tokens, 4], floats)[-2:], rtol=2e-4, atol=2e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("precision", "least"), [("f16", 0.99999), ("bf16", 0.99999), ("int8", 0.99999), ("int4", 0.998)]
)
def test_stored_forms_compute_what_their_weights_say(precision, least):
    """Cosine with the logits of the weights as they are stored; x is rounded to 8 bits beside int4."""
    model = hetero_tvm.load_language_model(tiny_llama.built(precision))
    tokens = [5, 6, 7, 80, 3, 19]
    with model.session() as session:
        got = np.stack([session.append(tokens), session.append([4])])
    tensors = tiny_llama.weights()
    for name, array in tensors.items():
        if array.ndim == 2:
            form = "f16" if "embed" in name and precision.startswith("int") else precision
            weight = stored(array, Storage.named(form))
            exact = weight.dequantized() if isinstance(weight, QuantizedWeight) else weight
            tensors[name] = exact.astype(np.float32)
    want = tiny_llama.logits([*tokens, 4], tensors)[-2:]
    cosine = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosine.min() > least


def test_rows_of_another_type_than_the_weights_allow_are_refused(tmp_path):
    folder = tiny_llama.write(tmp_path / "model")
    with pytest.raises(UsageError, match="weights of 8 bits"):
        build_language_model(folder, tmp_path / "out", precision="int4", activations="int8")
    with pytest.raises(UsageError, match="weights of bf16"):
        build_language_model(folder, tmp_path / "out", precision="f16", activations="bf16")
    with pytest.raises(TargetError, match="AMX"):
        build_language_model(folder, tmp_path / "out", "cpu:x86-64-v3", precision="bf16", activations="bf16")
    with pytest.raises(UsageError, match="'int7'"):
        build_language_model(folder, tmp_path / "out", precision="int8", activations="int7")
    with pytest.raises(TargetError, match="VNNI"):
        build_language_model(folder, tmp_path / "out", "cpu:x86-64-v3", precision="int8", activations="int8")


@pytest.mark.thorough
def test_rows_of_8_bits_are_an_option(tmp_path):
    if not {"avx512_vnni", "avx512bw"} <= cpu_features():
        pytest.skip("no AVX-512 VNNI")
    folder = tiny_llama.write(tmp_path / "model")
    out = build_language_model(folder, tmp_path / "out", precision="int8", activations="int8").parent
    model = hetero_tvm.load_language_model(out)
    assert model.facts.precision == "int8 in groups of 128, rows in int8"
    tokens = [5, 6, 7, 80, 3, 19]
    with model.session() as session:
        got = session.append(tokens)
    want = tiny_llama.logits(tokens)[-1]
    # Two roundings of 1 / 254 of the largest each, through random layers that keep no direction.
    assert got @ want / np.linalg.norm(got) / np.linalg.norm(want) > 0.996


@pytest.mark.exhaustive
def test_keys_and_values_of_8_bits(tmp_path):
    """A quarter of the memory and scales; forks, rewinds, pieces and company change no bit."""
    path = build_language_model(
        tiny_llama.write(tmp_path / "model"), tmp_path / "out", cache="int8", rows=24, page=16
    )
    model = hetero_tvm.load_language_model(path)
    plain = hetero_tvm.load_language_model(tiny_llama.built())
    dim = 8
    assert model.facts.page_bytes * 4 * dim == plain.facts.page_bytes * (dim + 4)
    tokens = [n % 97 for n in range(3, 40)]
    with model.session() as one, model.session() as two:
        got = one.append(tokens), one.append(5)
        want = tiny_llama.logits([*tokens, 5])[-2:]
        for a, b in zip(got, want, strict=True):
            assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.999
        with one.fork() as other:
            one.rewind(20)
            again = [one.append(token) for token in (*tokens[20:], 5)]
            np.testing.assert_array_equal(again[-1], got[1])
            other.rewind(len(tokens))
            two.append([7, 8])
            together = model.step([(two, [9]), (other, [5])])
            np.testing.assert_array_equal(together[1], got[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    [
        "apertus",
        "deepseek_v3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "gemma4_moe",
        "gpt2",
        "gpt_oss",
        "granite",
        "kimi_linear",
        "olmo_hybrid",
        "phi",
    ],
)
def test_tokens_are_those_of_transformers(kind, tmp_path):
    """64 tokens, one text and three with padding; all are in ``tests/campaign/language_models.py``."""
    from tests.campaign.language_models import compare

    assert compare(kind, tmp_path) == []


def test_manifest_tells_what_it_is():
    manifest = json.loads((tiny_llama.built() / "model.manifest.json").read_text())
    assert manifest["language"]["architecture"] == "llama"
    assert manifest["language"]["stop"] == [96]
    assert [spec["name"] for spec in manifest["signature"]["inputs"]][0] == "ids"
