"""Rules of ``generation_config.json``: the same tokens as the processors of transformers leave."""

import dataclasses
import functools

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.generation.beams import BeamSearch, search_beams
from hetero_tvm.generation.generate import generate
from hetero_tvm.generation.rules import TextRules
from hetero_tvm.generation.speculative import speculate
from tests import tiny_llama

VOCAB, STOP = 12, (3, 5)


def processed(rules, text, given, most, logits):
    """What transformers makes of logits, in the order of its ``generate``."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as kinds

    made = []
    if rules.no_repeat:
        made.append(kinds.NoRepeatNGramLogitsProcessor(rules.no_repeat))
    if rules.bad_words:
        made.append(kinds.NoBadWordsLogitsProcessor([list(word) for word in rules.bad_words], list(STOP)))
    if rules.least:
        made.append(kinds.MinLengthLogitsProcessor(rules.least, list(STOP)))
    if rules.least_new:
        made.append(kinds.MinNewTokensLengthLogitsProcessor(given, rules.least_new, list(STOP)))
    if rules.forced_first is not None:
        made.append(kinds.ForcedBOSTokenLogitsProcessor(rules.forced_first))
    if rules.forced_last:
        made.append(kinds.ForcedEOSTokenLogitsProcessor(given + most, list(rules.forced_last)))
    if rules.suppressed:
        made.append(kinds.SuppressTokensLogitsProcessor(list(rules.suppressed)))
    if rules.suppressed_first:
        begin = given + (given == 1 and rules.forced_first is not None)
        made.append(kinds.SuppressTokensAtBeginLogitsProcessor(list(rules.suppressed_first), begin))
    scores, ids = torch.tensor(logits)[None], torch.tensor([text])
    for processor in made:
        scores = processor(ids, scores)
    return scores[0].numpy()


@pytest.mark.parametrize(
    "rules",
    [
        TextRules(suppressed=(1, 4)),
        TextRules(suppressed_first=(2,)),
        TextRules(suppressed_first=(2,), forced_first=6),
        TextRules(bad_words=((3,), (7,), (1, 2), (2, 1, 8), (4, 4, 4, 4, 5))),
        TextRules(no_repeat=1),
        TextRules(no_repeat=2),
        TextRules(no_repeat=3, least=6),
        TextRules(least_new=4),
        TextRules((5,), (1,), ((1, 2), (0,)), 2, 4, 0, 6, (3,)),
    ],
    ids=repr,
)
def test_transformers_leaves_the_same_tokens(rules):
    random = np.random.default_rng(0)
    for given in (1, 3):
        bound = rules.of_text(given, 8, STOP)
        for length in range(given, given + 8):
            for _ in range(6):
                text = random.choice([0, 1, 2, 4], length).tolist()
                logits = random.standard_normal(VOCAB).astype(np.float32)
                want = processed(rules, text, given, 8, logits)
                np.testing.assert_array_equal(bound.applied(logits, text), want)


def test_none_and_those_that_leave_no_token():
    assert TextRules().of_text(3, 8, STOP) is None
    logits = np.arange(4, dtype=np.float32)
    for rules in (TextRules(suppressed=(0, 1, 2, 3)), TextRules(forced_first=99)):
        np.testing.assert_array_equal(rules.of_text(1, 8, ()).applied(logits, [2]), logits)
    beyond = TextRules(suppressed=(1, 50257), bad_words=((2, 99),)).of_text(1, 8, ())
    np.testing.assert_array_equal(np.isinf(beyond.applied(logits, [2])), [False, True, False, False])


@functools.cache
def wanted(rules, prompt, count):
    """Greedy tokens by NumPy."""
    bound, text = rules.of_text(len(prompt), count, ()), list(prompt)
    for _ in range(count):
        text.append(int(bound.applied(tiny_llama.logits(text)[-1], text).argmax()))
    return text[len(prompt) :]


def test_every_way_to_continue_a_text_has_them():
    model = hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=16 * tiny_llama.PAGE)
    plain = tiny_llama.greedy([5, 6, 7], 12)
    rules = TextRules((plain[0],), bad_words=(tuple(plain[1:3]),), no_repeat=2, forced_last=(9,))
    model.facts = dataclasses.replace(model.facts, rules=rules)
    prompts = [(5, 6, 7), (8,), (9, 5, 6, 7, 5, 6)]
    want = [wanted(rules, prompt, 12) for prompt in prompts]
    assert want[0] != plain and want[0][-1] == 9
    requests = generate(model, prompts, max_new_tokens=12, stop=())
    assert [request.tokens for request in requests] == want
    for prompt, tokens in zip(prompts, want, strict=True):
        assert list(speculate(model, model, prompt, max_new_tokens=12, stop=())) == tokens
        [beam] = search_beams(model, prompt, search=BeamSearch(1), max_new_tokens=12, stop=())
        assert beam.tokens == tokens
