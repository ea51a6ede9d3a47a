"""A built model against NumPy; sessions, errors, memory."""

import copy
import gc
import multiprocessing
import os
import pickle
import runpy
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, InputError, LibraryError, UsageError
from tests import tiny_llama

PROMPTS = ([5, 6, 7], list(range(20, 60)), [90])


@pytest.fixture(scope="module")
def model():
    return hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=24 * tiny_llama.PAGE)


def close(logits, tokens):
    """Float32 sums against float64 ones, over two layers."""
    np.testing.assert_allclose(logits, tiny_llama.logits(tokens)[-1], rtol=1e-4, atol=1e-4)


def test_logits_of_prompts_and_of_single_tokens(model):
    """Also of prompts longer than the rows of a step (24), which go in pieces."""
    for prompt in PROMPTS:
        with model.session() as session:
            close(session.append(prompt), prompt)
            close(session.append(3), [*prompt, 3])
            assert len(session) == len(prompt) + 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_session_is_a_fork(model, copied):
    """As transformers' users copy a cache; both gave the same pages back, which others then shared."""
    prompt = PROMPTS[1]
    with model.session() as session:
        session.append(prompt)
        with copied(session) as other:
            close(other.append(3), [*prompt, 3])
        close(session.append(4), [*prompt, 4])
    assert model.pool.free == model.pool.pages


def test_pickles(model):
    with model.session() as session, pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(session)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.pool is not model.pool and other.context == model.context
        with other.session() as session:
            close(session.append(PROMPTS[0]), PROMPTS[0])


def test_sessions_together_have_the_bits_they_have_alone(model):
    alone = []
    for prompt in PROMPTS:
        with model.session() as session:
            alone.append((session.append(prompt), session.append([8])))
    sessions = [model.session() for _ in PROMPTS]
    first = model.step(list(zip(sessions, PROMPTS, strict=True)))
    second = model.step([(session, [8]) for session in sessions])
    np.testing.assert_array_equal(first, [a for a, _ in alone])
    np.testing.assert_array_equal(second, [b for _, b in alone])


def test_fork_rewind_and_reset(model):
    free = model.pool.free
    tokens = list(range(1, 22))
    with model.session() as session:
        session.append(tokens)
        with session.fork() as other:
            assert model.pool.free == free - 2  # both pages are shared
            close(other.append([50]), [*tokens, 50])
            close(session.append([60]), [*tokens, 60])  # the fork has not changed it
            close(other.append([51]), [*tokens, 50, 51])
            assert model.pool.free == free - 3
        session.rewind(5)
        assert (len(session), model.pool.free) == (5, free - 1)
        close(session.append([70, 71]), [*tokens[:5], 70, 71])
        session.reset()
        close(session.append([9]), [9])
        with pytest.raises(UsageError, match="cannot be rewound to 2"):
            session.rewind(2)
    assert model.pool.free == free
    with pytest.raises(UsageError, match="closed"):
        session.append([1])


def test_rewinding_into_a_shared_page_leaves_the_other_as_it_is(model):
    with model.session() as session:
        session.append(list(range(1, 17)))
        with session.fork() as other:
            other.rewind(4)
            close(other.append([40]), [1, 2, 3, 4, 40])
            close(session.append([17]), list(range(1, 18)))


def test_wrong_tokens_are_listed(model):
    session = model.session()
    with pytest.raises(InputError, match="token 97 at 1") as caught:
        session.append([1, 97, -1, 2.5])
    assert len(caught.value.problems) == 3
    for bad in ([], [True]):
        with pytest.raises(InputError):
            session.append(bad)
    with pytest.raises(InputError, match="twice"):
        model.step([(session, [1]), (session, [2])])
    assert len(session) == 0


def test_a_text_beyond_the_context_and_a_full_cache():
    model = hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=2 * tiny_llama.PAGE)
    assert model.context == 32
    with model.session() as one, model.session() as two:
        one.append(list(range(17)))
        with pytest.raises(CapacityError, match=r"the context is 32, .*own is 128: --cache-tokens"):
            two.append([1] * 33)
        with pytest.raises(CapacityError, match="cache is full"):
            two.append([1])
        assert (len(two), len(two.pages)) == (0, 0)
        close(one.append([5]), [*range(17), 5])  # the others go on
        one.rewind(3)
        close(two.append([1]), [1])
        with pytest.raises(CapacityError):
            model.step([(one, [4]), (two, [2] * 30)])
        assert (len(one), len(two)) == (3, 1)
        close(one.append([4]), [0, 1, 2, 4])


@pytest.mark.thorough
def test_a_thousand_sessions_leave_nothing():
    # In a process of its own: threads and caches of other tests take and give back memory at any time.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        grown, pages = pool.submit(_growth, str(tiny_llama.built()), 1000).result()
    assert grown < 4 << 20
    assert pages == 0


def _growth(path, count):
    """Bytes by which the memory grows and pages that are lost in some sessions."""
    model = hetero_tvm.load_language_model(path, cache_tokens=24 * tiny_llama.PAGE)

    def some(count):
        for number in range(count):
            model.session().append([number % 97, 3])
        gc.collect()
        return psutil.Process().memory_info().rss

    before, free = some(50), model.pool.free
    return some(count) - before, free - model.pool.free


def test_what_is_no_language_model_is_refused(tmp_path):
    with pytest.raises(LibraryError, match="does not exist"):
        hetero_tvm.load_language_model(tmp_path / "none")
    with pytest.raises(UsageError, match="cache_tokens"):
        hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=0)


def test_logits_after_several_of_the_new_tokens(model):
    """Also where they lie in different pieces of a long prompt."""
    tokens, other = [n % 97 for n in range(30)], [3, 4, 5]
    with model.session() as one, model.session() as two:
        got = model.step([(one, tokens), (two, other)], [10, 1])
        np.testing.assert_allclose(got[:10], tiny_llama.logits(tokens)[-10:], rtol=1e-4, atol=1e-4)
        close(got[10], other)
        with pytest.raises(InputError, match="not so many"):
            model.step([(one, [1])], [2])


def test_the_runtime_wheel_generates(tmp_path):
    """What the wheel consists of, alone: the tokens are those of NumPy, and no compiler is loaded."""
    script = Path(hetero_tvm.__file__).parents[1] / "packaging" / "runtime_wheel.py"
    runpy.run_path(str(script))["stage"](tmp_path)
    code = (
        "import sys, hetero_tvm; from hetero_tvm.generation.generate import generate; "
        f"model = hetero_tvm.load_language_model({str(tiny_llama.built())!r}); "
        "print(generate(model, [[5, 6, 7]], max_new_tokens=9, stop=())[0].tokens, 'tvm' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{tiny_llama.greedy([5, 6, 7], 9)} False", done.stderr
    for command in ("hetero_tvm.tune", "hetero_tvm"):
        done = subprocess.run(
            [sys.executable, "-m", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 2 and f"has no command python -m {command}\n" in done.stderr
        assert (
            "What to do: run it where hetero-tvm is installed" in done.stderr
            and "Traceback" not in done.stderr
        )
