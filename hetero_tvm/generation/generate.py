"""Generation of texts: the whole of them, or token by token as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from hetero_tvm.errors import InputError
from hetero_tvm.generation.batch import Batch, Request
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.sampling import GREEDY, Sampling
from hetero_tvm.generation.source import Source
from hetero_tvm.generation.tokens import prompt_lists, stop_tokens

Prompt = Sequence[int]


def generate(
    model: LanguageModel,
    prompts: Sequence[Prompt] | np.ndarray,
    *,
    mask: np.ndarray | None = None,
    sources: Sequence[np.ndarray | Sequence[int] | Source] | None = None,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    stop: Collection[int] | None = None,
    logprobs: int | None = None,
    score_prompts: bool = False,
    most: int = 32,
) -> list[Request]:
    """Continue texts, all together.

    Parameters
    ----------
    prompts : tokens of each text, of any lengths (lists, arrays or tensors); or [texts, tokens] with padding
        on either side.
    mask : [texts, tokens], 0 where an array of prompts is padding.
    sources : of an encoder-decoder, what each text is about: tokens, features of audio ``[mels, frames]``, or
        what ``model.encode`` gave.  An empty prompt stands for the model's own.
    max_new_tokens : tokens to generate for each at most.
    stop : tokens that end a text; default the model's own.
    logprobs : number of likeliest tokens, 0 to 20, to note with their log-probabilities beside each token
        that is generated; None for none.
    score_prompts : whether to note them beside the tokens of the prompts as well.
    most : texts that are generated at once; others wait.

    Returns
    -------
    A :class:`Request` per text: ``tokens`` (a stop token is the last one), ``reason``, and ``error`` for a
    text that could not go on when the others could; ``likelihoods`` and ``prompt_likelihoods`` with
    ``logprobs``.

    Raises
    ------
    InputError : a token that is not in the vocabulary, no tokens, or a mask of another shape.
    CapacityError : a text that can never fit into the context.
    """
    ends = stop_tokens(stop, model.facts.stop)
    batch = Batch(model, most)
    texts = prompt_lists(prompts, mask)
    if sources is not None and len(sources) != len(texts):
        raise InputError(f"there are {len(texts)} prompts and {len(sources)} sources")
    requests = [
        batch.submit(
            Request(
                prompt,
                max_new_tokens,
                sampling.for_text(number),
                ends,
                source=source,
                logprobs=logprobs,
                score_prompt=score_prompts,
            )
        )
        for number, (prompt, source) in enumerate(zip(texts, sources or [None] * len(texts), strict=True))
    ]
    batch.run()
    return requests


def stream(
    model: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    stop: Collection[int] | None = None,
    source: np.ndarray | Sequence[int] | Source | None = None,
) -> Iterator[int]:
    """Continue one text; yields each token as soon as it is there.

    Parameters and errors are those of :func:`generate`.  Whoever stops asking ends the text.
    """
    ends = stop_tokens(stop, model.facts.stop)
    batch = Batch(model)
    request = batch.submit(Request(prompt, max_new_tokens, sampling, ends, source=source))
    given = 0
    try:
        while given < len(request.tokens) or request.reason is None:
            if given == len(request.tokens):
                batch.step()
                if request.error is not None:
                    raise request.error
                continue
            given += 1
            yield request.tokens[given - 1]
    finally:
        request.cancel()
        batch.run()
