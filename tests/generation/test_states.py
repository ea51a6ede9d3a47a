"""Texts of models whose layers keep a state: alone and together, forked, rewound, too many of them."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, UsageError
from hetero_tvm.generation.batch import Batch, Request
from hetero_tvm.generation.facts import LanguageFacts
from hetero_tvm.generation.pages import StatePool
from hetero_tvm.generation.speculative import speculate
from tests import tiny_llama

HYBRID = {
    **{key: value for key, value in tiny_llama.CONFIG.items() if key != "rms_norm_eps"},
    "model_type": "lfm2",
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "num_hidden_layers": 3,
    "block_auto_adjust_ff_dim": False,
}
STATES = {
    "model_type": "mamba",
    "vocab_size": 97,
    "hidden_size": 16,
    "state_size": 4,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
}
PROMPTS = ([5, 6, 7], list(range(20, 52)), [90])


def weights_of_hybrid(random):
    """Weights of the hybrid by transformers' names."""
    width, inner = HYBRID["hidden_size"], HYBRID["intermediate_size"]
    kv = width // HYBRID["num_attention_heads"] * HYBRID["num_key_value_heads"]

    def matrix(n, k):
        return (random.standard_normal((n, k)) * 2 / k**0.5).astype(np.float32)

    found = {"model.embed_tokens.weight": matrix(97, width), "model.embedding_norm.weight": np.ones(width)}
    for number, kind in enumerate(HYBRID["layer_types"]):
        base = f"model.layers.{number}."
        found |= {base + f"{norm}_norm.weight": np.ones(width) for norm in ("operator", "ffn")}
        found |= {base + f"feed_forward.w{n}.weight": matrix(inner, width) for n in (1, 3)}
        found[base + "feed_forward.w2.weight"] = matrix(width, inner)
        if kind == "conv":
            found[base + "conv.conv.weight"] = random.standard_normal((width, 1, 3))
            found[base + "conv.in_proj.weight"] = matrix(3 * width, width)
            found[base + "conv.out_proj.weight"] = matrix(width, width)
            continue
        found |= {
            base + f"self_attn.{n}_proj.weight": matrix(width if n == "q" else kv, width) for n in "qkv"
        }
        found[base + "self_attn.out_proj.weight"] = matrix(width, width)
        found |= {base + f"self_attn.{n}_layernorm.weight": np.ones(8) for n in "qk"}
    return {name: np.asarray(array, np.float32) for name, array in found.items()}


def weights_of_states(random):
    """Weights of the Mamba by transformers' names."""
    width, inner, size, steps = 16, 32, 4, 1

    def matrix(*shape):
        return (random.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    found = {"backbone.embeddings.weight": matrix(97, width), "backbone.norm_f.weight": np.ones(width)}
    for number in range(2):
        base = f"backbone.layers.{number}."
        found[base + "norm.weight"] = np.ones(width)
        found[base + "mixer.in_proj.weight"] = matrix(2 * inner, width)
        found[base + "mixer.conv1d.weight"] = matrix(inner, 1, 4)
        found[base + "mixer.conv1d.bias"] = matrix(inner)
        found[base + "mixer.x_proj.weight"] = matrix(steps + 2 * size, inner)
        found[base + "mixer.dt_proj.weight"] = matrix(inner, steps)
        found[base + "mixer.dt_proj.bias"] = matrix(inner)
        found[base + "mixer.A_log"] = np.abs(matrix(inner, size))
        found[base + "mixer.D"] = np.ones(inner)
        found[base + "mixer.out_proj.weight"] = 3 * matrix(width, inner)
    return {name: np.asarray(array, np.float32) for name, array in found.items()}


@functools.cache
def built(kind):
    folder = Path(tempfile.mkdtemp(prefix="hetero_tvm-states-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config, weights = {"hybrid": (HYBRID, weights_of_hybrid), "states": (STATES, weights_of_states)}[kind]
    checkpoint = tiny_llama.write(folder / "made", config, weights(np.random.default_rng(0)))
    hetero_tvm.build_language_model(checkpoint, folder / "out", rows=8, page=tiny_llama.PAGE)
    return folder / "out"


@pytest.fixture(scope="module", params=["hybrid", pytest.param("states", marks=pytest.mark.thorough)])
def model(request):
    return hetero_tvm.load_language_model(built(request.param), cache_tokens=24 * tiny_llama.PAGE)


def whole(model, tokens):
    """Logits after a text that goes through at once."""
    with model.session() as session:
        return session.append(tokens)


def test_texts_in_pieces_and_together_have_the_bits_they_have_at_once(model):
    alone = [whole(model, [*prompt, 8, 9]) for prompt in PROMPTS]
    assert np.ptp(alone[0]) > 0.1
    sessions = [model.session() for _ in PROMPTS]
    model.step(list(zip(sessions, PROMPTS, strict=True)))
    model.step([(session, [8]) for session in reversed(sessions)])
    together = model.step([(session, [9]) for session in sessions])
    np.testing.assert_array_equal(together, alone)
    slots = model.states.free
    for session in sessions:
        session.close()
    assert model.states.free == slots + 3


def test_fork_rewind_and_reset(model):
    tokens = list(range(1, 22))
    slots, pages = model.states.free, model.pool.free
    with model.session() as session:
        session.append(tokens)
        with session.fork() as other:
            assert model.states.free == slots - 1  # shared until one of them changes
            np.testing.assert_array_equal(other.append(70), whole(model, [*tokens, 70]))
            np.testing.assert_array_equal(session.append(71), whole(model, [*tokens, 71]))
            other.rewind(5)
            with other.fork() as third:
                np.testing.assert_array_equal(third.append(3), whole(model, [*tokens[:5], 3]))
            np.testing.assert_array_equal(other.append([4, 2]), whole(model, [*tokens[:5], 4, 2]))
        session.reset()
        np.testing.assert_array_equal(session.append([9, 8]), whole(model, [9, 8]))
    assert (model.states.free, model.pool.free) == (slots, pages)


def test_a_step_that_did_not_end_leaves_the_text_as_it_was(model, monkeypatch):
    with model.session() as session:
        session.append(PROMPTS[1])
        call, calls = type(model)._call, []

        def stopped(self, *arguments):
            calls.append(1)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return call(self, *arguments)

        monkeypatch.setattr(type(model), "_call", stopped)
        with pytest.raises(KeyboardInterrupt):
            session.append(list(range(20)))
        monkeypatch.undo()
        np.testing.assert_array_equal(session.append(3), whole(model, [*PROMPTS[1], 3]))


def test_a_text_too_many_is_told_and_the_others_go_on(model, monkeypatch):
    monkeypatch.setattr(model, "states", StatePool(model.facts, 2))
    first, second, third = (model.session() for _ in range(3))
    first.append([1, 2])
    second.append([3])
    with pytest.raises(CapacityError, match="all 2 are in use"):
        third.append([4])
    np.testing.assert_array_equal(first.append(5), whole_of(model, [1, 2, 5], second))
    third.append([4])
    for session in (first, third):
        session.close()
    assert model.states.free == 2


def whole_of(model, tokens, other):
    other.close()
    return whole(model, tokens)


def test_texts_of_a_batch_wait_for_a_state(model, monkeypatch):
    monkeypatch.setattr(model, "states", StatePool(model.facts, 2))
    batch = Batch(model)
    requests = [batch.submit(Request(prompt, 6)) for prompt in (*PROMPTS, [4, 4])]
    batch.run()
    assert [request.reason for request in requests] == ["length"] * 4
    alone = Batch(model)
    again = alone.submit(Request([4, 4], 6))
    alone.run()
    assert again.tokens == requests[-1].tokens


def test_guesses_that_cannot_be_taken_back_are_refused(model):
    with pytest.raises(UsageError, match="keep a state, which cannot go back"):
        next(speculate(model, model, [1, 2]))


def test_facts_of_before_have_no_state(model):
    data = model.facts.to_json()
    assert LanguageFacts.from_json(data, "x").state == model.facts.state > 0
    del data["state"]
    assert LanguageFacts.from_json(data, "x").state == 0
