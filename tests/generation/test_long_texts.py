"""Texts beyond a model's first context: all of their tokens have other positions then."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError
from hetero_tvm.generation.generate import generate
from hetero_tvm.generation.speculative import speculate
from tests import tiny_llama

SHORT, LONG = [1.0, 1.2, 1.4, 1.6], [1.0, 3.0, 6.0, 9.0]
MOST = 20
SCALING = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.0}
CONFIG = {**tiny_llama.CONFIG, "rope_scaling": SCALING, "original_max_position_embeddings": MOST}
TOKENS = [int(n) for n in np.random.default_rng(0).integers(0, 96, 40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    checkpoint = tiny_llama.write(folder / "checkpoint", CONFIG)
    hetero_tvm.build_language_model(checkpoint, folder / "out", rows=24, page=tiny_llama.PAGE)
    return hetero_tvm.load_language_model(folder / "out", cache_tokens=8 * tiny_llama.PAGE)


def wanted(tokens):
    factors = LONG if len(tokens) > MOST else SHORT
    return tiny_llama.logits(tokens, tiny_llama.weights(CONFIG), CONFIG, np.array(factors))


def close(found, tokens):
    # float32 sums against float64 ones, over two layers
    np.testing.assert_allclose(found, wanted(tokens)[-1], rtol=1e-4, atol=1e-4)


def test_a_text_that_becomes_long_is_long_from_its_beginning(model):
    with model.session() as session:
        close(session.append(TOKENS[:18]), TOKENS[:18])
        for n in range(18, 25):
            close(session.append(TOKENS[n]), TOKENS[: n + 1])
        session.rewind(19)
        close(session.append(TOKENS[19]), TOKENS[:20])  # short again
        close(session.append(TOKENS[20:]), TOKENS)  # several pieces of a step
    with model.session() as session:
        close(session.append(TOKENS), TOKENS)


@pytest.mark.parametrize("guesses", [1, 5])
def test_guesses_are_checked_at_the_positions_that_they_have_alone(model, guesses):
    """A draft that is always right, and one that never is, as the text becomes long."""
    (alone,) = generate(model, [TOKENS[:12]], max_new_tokens=20, stop=())
    other = hetero_tvm.load_language_model(tiny_llama.built())
    for draft in (model, other):
        made = list(speculate(model, draft, TOKENS[:12], max_new_tokens=20, stop=(), guesses=guesses))
        assert made == alone.tokens


def test_short_and_long_texts_together(model):
    sessions = [model.session() for _ in range(3)]
    texts = [TOKENS[:30], TOKENS[5:24], TOKENS[3:9]]
    found = model.step([(session, text[:-2]) for session, text in zip(sessions, texts, strict=True)])
    for logits, text in zip(found, texts, strict=True):
        close(logits, text[:-2])
    # The second becomes long; of the others one is long, one short.
    more = [text[-2:] + [7] * (2 * (text is texts[1])) for text in texts]
    found = model.step(list(zip(sessions, more, strict=True)), last=[2, 1, 2])
    whole = [text[:-2] + new for text, new in zip(texts, more, strict=True)]
    expected = [wanted(whole[0])[-2:], wanted(whole[1])[-1:], wanted(whole[2])[-2:]]
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-4)
    for session in sessions:
        session.close()


def test_a_fork_stays_short(model):
    with model.session() as session:
        session.append(TOKENS[:19])
        with session.fork() as other:
            close(session.append(TOKENS[19:22]), TOKENS[:22])
            close(other.append(TOKENS[30]), [*TOKENS[:19], TOKENS[30]])


def test_a_full_cache_changes_nothing(model):
    free = model.pool.free
    with model.session() as session, model.session() as filling:
        session.append(TOKENS[:20])
        with session.fork() as other:
            filling.append(TOKENS[:16] * (free - 2))
            with pytest.raises(CapacityError):
                session.append(TOKENS[20])  # the pages that it shares would have to be its own
            assert (len(session), len(other)) == (20, 20)
            filling.reset()
            close(session.append(TOKENS[20]), TOKENS[:21])
            close(other.append(TOKENS[30]), [*TOKENS[:20], TOKENS[30]])
    assert model.pool.free == free
