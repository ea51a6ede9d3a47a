import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, InputError, UsageError
from hetero_tvm.generation.batch import Batch, Request
from hetero_tvm.generation.generate import generate, stream
from hetero_tvm.generation.sampling import Sampling
from tests import tiny_llama

PROMPTS = ([5, 6, 7], list(range(20, 50)), [90], [1, 2])


@pytest.fixture(scope="module")
def model():
    return hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=8 * tiny_llama.PAGE)


@pytest.fixture(scope="module")
def greedy():
    return [tiny_llama.greedy(prompt, 12) for prompt in PROMPTS]


def test_texts_are_continued_as_each_would_be_alone(model, greedy):
    """More texts than the cache has room for at once: some wait."""
    made = generate(model, PROMPTS, max_new_tokens=12, stop=())
    assert [request.tokens for request in made] == greedy
    assert {request.reason for request in made} == {"length"}
    assert all(request.prefill_s > 0 and request.decode_s > 0 for request in made)
    assert model.pool.free == model.pool.pages


def test_padding_on_either_side_is_left_out(model, greedy):
    ids = np.array([[0, 0, *PROMPTS[2]], [*PROMPTS[3], 0], PROMPTS[0]])
    mask = np.array([[0, 0, 1], [1, 1, 0], [1, 1, 1]])
    made = generate(model, ids, mask=mask, max_new_tokens=6, stop=())
    assert [request.tokens for request in made] == [greedy[n][:6] for n in (2, 3, 0)]
    with pytest.raises(InputError, match="mask"):
        generate(model, ids, mask=mask[:2])


def test_stream_gives_tokens_as_they_come_and_may_be_left(model, greedy):
    tokens = stream(model, PROMPTS[0], max_new_tokens=12, stop=())
    assert [next(tokens) for _ in range(3)] == greedy[0][:3]
    assert model.pool.free < model.pool.pages
    tokens.close()
    assert model.pool.free == model.pool.pages
    assert list(stream(model, PROMPTS[0], max_new_tokens=12, stop=())) == greedy[0]


def test_a_stop_token_is_the_last(model, greedy):
    stop = greedy[0][4]
    [request] = generate(model, PROMPTS[:1], max_new_tokens=12, stop=[stop])
    assert request.tokens == greedy[0][: greedy[0].index(stop) + 1]
    assert request.reason == "stop"


def test_one_text_fails_and_the_others_go_on(model, greedy):
    def fail(token):
        raise ValueError("the client is gone")

    batch = Batch(model)
    bad = batch.submit(Request(PROMPTS[1], 12, on_token=fail))
    cancelled = batch.submit(Request(PROMPTS[2], 12))
    good = batch.submit(Request(PROMPTS[0], 12))
    batch.step()
    cancelled.cancel()
    batch.run()
    assert (bad.reason, str(bad.error), len(bad.tokens)) == ("error", "the client is gone", 1)
    assert cancelled.reason == "cancelled"
    assert (good.reason, good.tokens) == ("length", greedy[0])
    assert model.pool.free == model.pool.pages


def test_other_sessions_may_take_the_room(model, greedy):
    """What somebody else holds of the cache is nobody's promise: the largest text ends with an error."""
    batch = Batch(model)
    small = batch.submit(Request(PROMPTS[0], 12))
    large = batch.submit(Request(PROMPTS[1], 60))
    batch.step()
    with model.session() as greedy_one:
        greedy_one.append([1] * model.pool.free * tiny_llama.PAGE)
        batch.run()
        assert isinstance(large.error, CapacityError)
        assert small.tokens == greedy[0]


def test_what_can_never_be_is_refused_at_once(model):
    batch = Batch(model)
    with pytest.raises(CapacityError, match="the context is 128\n"):
        batch.submit(Request([1] * 100, 100))
    with pytest.raises(InputError, match="token 97"):
        batch.submit(Request([97], 5))
    with pytest.raises(InputError, match="0 new tokens"):
        batch.submit(Request([1], 0))
    with pytest.raises(UsageError):
        Batch(model, most=0)
    assert len(batch) == 0


def test_a_seed_repeats_and_texts_differ(model):
    sampling = Sampling(temperature=1.5, top_k=40, seed=3)
    first, second = (
        generate(model, [[5], [5]], max_new_tokens=8, sampling=sampling, stop=()) for _ in range(2)
    )
    assert [r.tokens for r in first] == [r.tokens for r in second]
    assert first[0].tokens != first[1].tokens


def expected(tokens):
    """Log-probabilities of all tokens after each of these, float64 [tokens, vocab]."""
    logits = tiny_llama.logits(tokens)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("piece", [7, 256])
def test_likelihoods_are_those_of_the_logits(model, greedy, piece):
    """Those of prompts too, which go through in pieces; float32 kernels of two layers against float64."""
    batch = Batch(model, piece=piece)
    requests = [
        batch.submit(Request(prompt, 6, logprobs=count, score_prompt=True))
        for prompt, count in zip(PROMPTS, (3, 0, 20, 5), strict=True)
    ]
    plain = batch.submit(Request(PROMPTS[0], 6, logprobs=1))
    batch.run()
    assert plain.prompt_likelihoods == [] and len(plain.likelihoods) == 6
    for request, tokens in zip(requests, greedy, strict=True):
        text = [*request.prompt, *tokens[:6]]
        found = [*request.prompt_likelihoods, *request.likelihoods]
        assert [one.token for one in found] == text and found[0].logprob is None
        for one, row in zip(found[1:], expected(text), strict=False):
            assert one.logprob == pytest.approx(row[one.token], abs=2e-4)
            assert len(one.top) == request.logprobs
            best = np.sort(row)[::-1][: request.logprobs]
            np.testing.assert_allclose([value for _, value in one.top], best, atol=2e-4)
            np.testing.assert_allclose([row[n] for n, _ in one.top], best, atol=2e-4)


def test_more_likelihoods_than_are_told(model):
    with pytest.raises(InputError, match="logprobs is 21, expected 0 to 20"):
        generate(model, PROMPTS[:1], max_new_tokens=1, logprobs=21)


def test_what_is_shown_of_texts_in_progress(model):
    with model.session() as session:
        session.append([5, 6, 7])
        assert repr(session) == "<Session of llama: length 3>"
    assert repr(session) == "<Session of llama: length 0, closed>"
    batch = Batch(model)
    batch.submit(Request([5, 6], 4))
    assert repr(batch) == "<Batch of llama: 0 generated, 1 waiting>"
