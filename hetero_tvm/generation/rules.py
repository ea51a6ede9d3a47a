"""Rules of a checkpoint about the tokens that may come next, as ``generation_config.json`` of transformers
has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TextRules:
    """Rules for every text of a model.

    Parameters
    ----------
    suppressed, suppressed_first : tokens that are never generated; not as the first one.
    bad_words : sequences of tokens of which the last one is never generated behind the others.
    no_repeat : tokens of a sequence that no text has twice (its prompt included); 0 allows all.
    least, least_new : tokens that a text has before it may end, with its prompt and without.
    forced_first : token that follows a prompt of one token; None for none.
    forced_last : tokens of which one is the last of a text that becomes as long as it may.
    """

    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    no_repeat: int = 0
    least: int = 0
    least_new: int = 0
    forced_first: int | None = None
    forced_last: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TextRules:
        """Rules from JSON values."""
        values = {field.name: data[field.name] for field in dataclasses.fields(cls)}
        values["bad_words"] = [tuple(word) for word in values["bad_words"]]
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def of_text(self, given: int, most: int, stop: Collection[int]) -> RulesOfText | None:
        """The rules for one text; None where there are none.

        Parameters
        ----------
        given : tokens of its prompt.
        most : tokens that are generated at most.
        stop : tokens that end it.
        """
        return None if self == TextRules() else RulesOfText(self, given, given + most, tuple(sorted(stop)))


@dataclass(frozen=True)
class RulesOfText:
    """Rules, and the text that they are for: tokens that are given, tokens at most, tokens that end it."""

    rules: TextRules
    given: int
    end: int
    stop: tuple[int, ...]

    def applied(self, logits: np.ndarray, text: Sequence[int]) -> np.ndarray:
        """Logits [vocab] behind ``text``: minus infinity for tokens that may not come.

        Rules that leave no token are not applied: no text could go on.
        """
        forced = self._forced(len(text))
        inside = [token for token in forced if token < len(logits)]
        if inside:
            changed = np.full_like(logits, -np.inf)
            changed[inside] = 0.0
        else:
            changed = logits.copy()
        changed[[token for token in self._hidden(text, bool(inside)) if 0 <= token < len(logits)]] = -np.inf
        return changed if np.isfinite(changed).any() else logits

    def _forced(self, length: int) -> tuple[int, ...]:
        """Tokens of which one has to come behind so many."""
        if length == self.end - 1 and self.rules.forced_last:
            return self.rules.forced_last
        first = self.rules.forced_first
        return () if first is None or length != 1 else (first,)

    def _hidden(self, text: Sequence[int], forced: bool) -> list[int]:
        """Tokens that may not come; of those that are forced only what is suppressed."""
        rules, length = self.rules, len(text)
        hidden = list(rules.suppressed)
        begins = self.given + (self.given == 1 and rules.forced_first is not None)
        if length == begins:
            hidden += rules.suppressed_first
        if forced:
            return hidden
        if length < max(rules.least, self.given + rules.least_new if rules.least_new else 0):
            hidden += self.stop
        for *before, last in rules.bad_words:
            ends = not before or list(text[-len(before) :]) == before
            if ends and (before or last not in self.stop):
                hidden.append(last)
        return hidden + self._repeated(text)

    def _repeated(self, text: Sequence[int]) -> list[int]:
        """Tokens that followed the last tokens of the text before."""
        size = self.rules.no_repeat
        if not size or len(text) < size:
            return []
        runs = np.lib.stride_tricks.sliding_window_view(np.asarray(text, np.int64), size)
        same = (runs[:, :-1] == np.asarray(text[len(text) - size + 1 :], np.int64)).all(axis=1)
        return runs[same, -1].tolist()
