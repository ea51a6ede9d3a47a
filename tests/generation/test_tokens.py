import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import HeteroTVMError, InputError, UsageError
from hetero_tvm.generation.beams import search_beams
from hetero_tvm.generation.generate import generate, stream
from hetero_tvm.generation.sampling import Sampling
from hetero_tvm.generation.speculative import speculate
from hetero_tvm.generation.tokens import prompt_lists, stop_tokens, token_list
from tests import tiny_llama


class Tensor:
    """Array of another package, as a sequence of scalars of its own."""

    def __init__(self, values):
        self._values = np.asarray(values)
        self.ndim = self._values.ndim

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return map(Tensor, self._values)

    def tolist(self):
        return self._values.tolist()


@pytest.fixture(scope="module")
def model():
    return hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=8 * tiny_llama.PAGE)


@pytest.mark.parametrize(
    "tokens",
    [
        [5, 6],
        (5, 6),
        range(5, 7),
        np.array([5, 6], np.int32),
        np.array([[5, 6]]),
        Tensor([5, 6]),
        Tensor([[5, 6]]),
    ]
    + [[np.int64(5), Tensor(6)], [[5, 6]], (n for n in (5, 6)), [Tensor([5, 6])]],
)
def test_tokens_of_one_text(tokens):
    found = token_list(tokens)
    assert found == [5, 6] and {type(token) for token in found} == {int}


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ("hello", "'hello' is text"),
        ({"input_ids": [5], "attention_mask": [1]}, "input_ids, attention_mask"),
        (np.array([[5], [6]]), "2 rows"),
        ([[5], [6]], "2 rows"),
        (None, "None is given"),
        (5.0, "5.0 is given"),
    ],
)
def test_what_is_no_text_of_tokens_is_told(tokens, match):
    with pytest.raises(InputError, match=match):
        token_list(tokens)


def test_prompts_of_several_texts():
    assert prompt_lists([[5, 6], np.array([7]), Tensor([8])]) == [[5, 6], [7], [8]]
    assert (
        prompt_lists(Tensor([[5, 6], [7, 8]])) == prompt_lists(np.array([[5, 6], [7, 8]])) == [[5, 6], [7, 8]]
    )
    assert prompt_lists([]) == []
    for one in ([5, 6], np.array([5, 6]), Tensor([5, 6])):
        with pytest.raises(InputError, match="one text") as caught:
            prompt_lists(one)
        assert "[prompt]" in caught.value.hint
    with pytest.raises(InputError, match="is text"):
        prompt_lists("hello")
    with pytest.raises(InputError, match="rows of one length"):
        prompt_lists([[5, 6], [7]], [[1, 1], [1]])


def test_tokens_that_end_a_text():
    assert stop_tokens(None, (1, 2)) == {1, 2}
    assert stop_tokens(7, (1,)) == stop_tokens(np.int64(7), ()) == stop_tokens(Tensor([7]), ()) == {7}
    assert stop_tokens((), (1,)) == frozenset()
    for wrong in ("end", [1.5]):
        with pytest.raises(InputError, match="stop "):
            stop_tokens(wrong, ())


def test_logits_say_the_next_token(model):
    """``session.append(logits.argmax())`` is how one writes greedy search."""
    tokens, text = [5, 6, 7], []
    with model.session() as session:
        logits = session.append(np.array(tokens))
        for _ in range(6):
            text.append(int(logits.argmax()))
            logits = session.append(logits.argmax())
        session.rewind(np.int64(3))
        assert session.tokens == tokens
        with pytest.raises(UsageError, match="rewound to 1.5"):
            session.rewind(1.5)
    assert text == tiny_llama.greedy(tokens, 6)


def test_tensors_are_continued_by_all_ways(model):
    prompt, wanted = Tensor([[5, 6, 7]]), tiny_llama.greedy([5, 6, 7], 6)
    assert generate(model, prompt, max_new_tokens=6, stop=())[0].tokens == wanted
    assert list(stream(model, prompt, max_new_tokens=6, stop=())) == wanted
    assert list(speculate(model, model, prompt, max_new_tokens=6, stop=())) == wanted
    assert len(search_beams(model, prompt, max_new_tokens=6, stop=())[0].tokens) == 6


@pytest.mark.parametrize("count", [0, 2.5, None, "3", True])
def test_numbers_of_new_tokens_that_cannot_be(model, count):
    for way in (stream, search_beams):
        with pytest.raises(InputError, match="new tokens are asked for"):
            list(way(model, [5], max_new_tokens=count))
    with pytest.raises(InputError, match="new tokens are asked for"):
        list(speculate(model, model, [5], max_new_tokens=count))


def test_a_bias_of_a_token_that_is_not_there(model):
    for token in (-1, 97):
        with pytest.raises(HeteroTVMError, match=f"bias of token {token}"):
            list(speculate(model, model, [5], sampling=Sampling(bias={token: 1.0})))
