"""Tokens as callers give them: lists, arrays of NumPy, tensors of other packages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import InputError

Tokens = Sequence[int] | np.ndarray | np.integer | int
"""New tokens of a text: one or several, also as an array or a tensor."""


def token_list(tokens: Any) -> Sequence[Any]:
    """Tokens of one text: one of them, several, or an array or a tensor with one row.

    They are whole numbers of Python where they come from an array; whether a model knows them is for
    :meth:`hetero_tvm.generation.model.LanguageModel.token_problems` to say.

    Raises
    ------
    InputError : text, the whole result of a tokenizer, several rows, or nothing that has elements.
    """
    if isinstance(tokens, (str, bytes)):
        raise InputError(
            f"{tokens[:40]!r} is text, and tokens are wanted",
            hint="hetero_tvm.generation.text.Tokenizer(FOLDER).encode(text) gives them",
        )
    if isinstance(tokens, Mapping):
        raise InputError(
            f"an object with {', '.join(map(str, tokens))} is given, and tokens are wanted",
            hint="give its input_ids",
        )
    found = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(found, int):
        return [found]
    if not hasattr(found, "__iter__"):
        raise InputError(f"{found!r} is given, and tokens are wanted", hint="tokens are whole numbers")
    listed = found if isinstance(found, list) else list(found)
    if listed and (isinstance(listed[0], (list, tuple)) or getattr(listed[0], "ndim", 0)):
        if len(listed) > 1:
            raise InputError(
                f"{len(listed)} rows of tokens are given where one text is wanted",
                hint="generate(model, rows, mask=...) continues several",
            )
        return token_list(listed[0])  # [1, tokens], as transformers' tokenizers give tensors
    if all(type(token) is int for token in listed):
        return listed
    return [token.tolist() if hasattr(token, "tolist") else token for token in listed]


def prompt_lists(prompts: Any, mask: Any = None) -> list[Sequence[Any]]:
    """Tokens of several texts: a sequence of what :func:`token_list` takes, or [texts, tokens].

    ``mask`` : [texts, tokens], 0 where an array of prompts is padding.

    Raises
    ------
    InputError : prompts that are one text, or a mask of another shape.
    """
    if isinstance(prompts, (str, bytes, Mapping)):
        token_list(prompts)
    if mask is not None:
        return _without_padding(prompts, mask)
    if not hasattr(prompts, "__iter__"):
        raise InputError(f"{prompts!r} is given, and a list of prompts is wanted")
    found = list(prompts)
    if any(isinstance(prompt, (int, np.integer)) or getattr(prompt, "ndim", 1) == 0 for prompt in found):
        raise InputError(
            "the prompts are tokens of one text, and a list of texts is wanted", hint="give [prompt]"
        )
    return [token_list(prompt) for prompt in found]


def stop_tokens(stop: Collection[int] | int | None, own: Collection[int]) -> frozenset[int]:
    """Tokens that end a text: those that are asked for, else a model's own.

    Raises
    ------
    InputError : text, or what is no whole number.
    """
    if stop is None:
        return frozenset(own)
    if isinstance(stop, (str, bytes)):
        raise InputError(
            f"stop is {stop!r}, and tokens are wanted",
            hint="hetero_tvm.generation.text.TextUntil(tokenizer, [text]) ends texts before a text",
        )
    found = stop.tolist() if hasattr(stop, "tolist") else stop
    listed = list(found) if hasattr(found, "__iter__") else [found]
    wrong = [token for token in listed if not isinstance(token, (int, np.integer))]
    if wrong:
        raise InputError(f"stop has {wrong[0]!r}, which is no token", hint="tokens are whole numbers")
    return frozenset(int(token) for token in listed)


def is_count(value: Any) -> bool:
    """Whether a value is a positive whole number."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 1


def _without_padding(prompts: Any, mask: Any) -> list[Sequence[Any]]:
    try:
        ids, keep = np.asarray(prompts), np.asarray(mask).astype(bool)
    except ValueError:
        raise InputError(
            "prompts with a mask are not rows of one length", hint="leave the mask out: nothing is padding"
        ) from None
    if ids.ndim != 2 or ids.shape != keep.shape:
        raise InputError(f"the prompts are {list(ids.shape)} and their mask is {list(keep.shape)}")
    return [row[kept].tolist() for row, kept in zip(ids, keep, strict=True)]
