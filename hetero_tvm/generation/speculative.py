"""Speculative decoding (Leviathan and others, 2023): a small model guesses, the large one checks.

The texts have exactly the distribution of the large model alone: a guess x is kept with probability
``min(1, p(x) / q(x))``, and the first one that is not is replaced by a draw from ``max(p - q, 0)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.sampling import GREEDY, Sampling, drawn
from hetero_tvm.generation.session import Session
from hetero_tvm.generation.tokens import is_count, stop_tokens, token_list

_PADDED = 0.02
"""Share of a vocabulary by which the sizes of two may differ: models of one family pad one vocabulary to
different sizes (Qwen2.5 has 151,936 tokens up to 3 B, and 152,064 from 7 B on)."""


def speculate(
    model: LanguageModel,
    draft: LanguageModel,
    prompt: Sequence[int],
    *,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    stop: Collection[int] | None = None,
    guesses: int = 4,
) -> Iterator[int]:
    """Continue a text; yields tokens as they are certain.

    Parameters
    ----------
    model, draft : the large and the small model, of one tokenizer; sizes of the vocabulary may differ by the
        rows that pad them.
    guesses : tokens that the small model guesses before the large one looks at them.

    Other parameters are those of :func:`hetero_tvm.generation.generate.stream`.

    Raises
    ------
    InputError : the vocabularies differ, or the prompt has no tokens.
    CapacityError : the text is longer than the context of one of the models, or a cache is full.
    UsageError : the layers of one of the models keep a state, which cannot go back behind a wrong guess.
    """
    for one in (model, draft):
        if one.facts.state:
            raise UsageError(
                f"layers of a {one.facts.architecture} model keep a state, which cannot go back behind a "
                "guess that is not kept",
                hint="generate without a draft, or take models of attention alone",
            )
    vocab, shared = model.facts.vocab, min(model.facts.vocab, draft.facts.vocab)
    if max(vocab, draft.facts.vocab) - shared > _PADDED * shared:
        raise InputError(
            f"{vocab} tokens in the model, {draft.facts.vocab} in the draft",
            hint="take a small model of the same family, which has the tokenizer of the large one",
        )
    if not (is_count(guesses) and is_count(max_new_tokens)):
        raise InputError(f"{guesses} guesses and {max_new_tokens} new tokens are asked for")
    ends = stop_tokens(stop, model.facts.stop)
    if problems := model.facts.bias_problems(sampling):
        raise InputError("the prompt cannot be continued", problems=problems)
    random = sampling.random()
    text = list(token_list(prompt))
    end = len(text) + max_new_tokens
    sampling = model.facts.sampling(sampling, len(text), max_new_tokens, ends)
    draft_sampling = replace(sampling, bias=tuple(pair for pair in sampling.bias if pair[0] < shared))
    with model.session() as large, draft.session() as small:
        first = sampling.distribution(large.append(text), text)
        fresh = [drawn(first, random)]
        while True:
            for token in fresh:
                text.append(token)
                yield token
                if token in ends or len(text) == end:
                    return
            count = min(guesses, end - len(text) - 1)
            if len(text) <= model.facts.short_texts:  # positions of long texts are others: all rows or none
                count = min(count, model.facts.short_texts - len(text))
            if max(text) >= shared:  # tokens that the draft cannot read
                count = 0
            guessed, chances = _guess(small, text, count, draft_sampling, random, vocab)
            new = [*text[len(large) :], *guessed]
            logits = model.step([(large, new)], [len(guessed) + 1])
            fresh = _checked(logits, text, guessed, chances, sampling, random)
            known = len(text) + len(fresh) - 1  # the last token has not been read
            large.rewind(known)
            small.rewind(min(len(small), known))


def _guess(
    small: Session, text: list[int], count: int, sampling: Sampling, random: np.random.Generator, vocab: int
) -> tuple[list[int], list[np.ndarray]]:
    """Tokens that the small model would say next, and the distributions [vocab] that they were drawn from."""
    guessed: list[int] = []
    chances: list[np.ndarray] = []
    for _ in range(count):
        whole = [*text, *guessed]
        logits = small.append(whole[len(small) :])[:vocab]  # the model has no tokens beyond
        chance = sampling.distribution(logits, whole)
        chance = np.pad(chance, (0, vocab - len(chance)))
        guessed.append(drawn(chance, random))
        chances.append(chance)
    return guessed, chances


def _checked(
    logits: np.ndarray,
    text: list[int],
    guessed: list[int],
    chances: list[np.ndarray],
    sampling: Sampling,
    random: np.random.Generator,
) -> list[int]:
    """The guesses that stay, and one token more."""
    kept: list[int] = []
    for guess, chance, row in zip(guessed, chances, logits, strict=False):
        wanted = sampling.distribution(row, [*text, *kept])
        if random.random() * chance[guess] < wanted[guess]:
            kept.append(guess)
            continue
        left = np.maximum(wanted - chance, 0)
        return [*kept, drawn(left if left.sum() > 0 else wanted, random)]
    return [*kept, drawn(sampling.distribution(logits[len(guessed)], [*text, *kept]), random)]
