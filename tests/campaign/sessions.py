"""``python -m tests.campaign.sessions``: sessions opened, called and left by the thousand, with the memory.

Sessions of a decoder's file (a state that grows, and one of one size, in place) and of a language model: some
are closed, some collected, forked, rewound, and filled until they are refused while others go on.  Fails if
the process grows by more than ``--limit`` MB after the first fifty, or a page of a cache is lost.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import hetero_tvm
from hetero_tvm import Span
from hetero_tvm.errors import CapacityError, HeteroTVMError, InputError
from tests import tiny_llama
from tests.frontend.onnx.helpers import text_model

_WARM = 50
_WIDTH = 256
_ROWS = 128
_DECODER = f"""
step (float[1, sequence, {_WIDTH}] x, int64[1] at, float[1, past, {_WIDTH}] past_0,
      float[1, {_ROWS}, {_WIDTH}] cache)
    => (float[1, sequence, {_WIDTH}] y, float[1, total, {_WIDTH}] present_0,
        float[1, {_ROWS}, {_WIDTH}] cache_out)
{{
    present_0 = Concat<axis=1>(past_0, x)
    keys = Transpose<perm=[0, 2, 1]>(present_0)
    scores = MatMul(x, keys)
    shares = Softmax<axis=-1>(scores)
    mixed = MatMul(shares, present_0)
    axis = Constant<value_ints=[-1]>()
    place = Unsqueeze(at, axis)
    one = Constant<value_ints=[1]>()
    sum = ReduceSum<keepdims=1>(x, one)
    front = Transpose<perm=[1, 0, 2]>(cache)
    row = Transpose<perm=[1, 0, 2]>(sum)
    after = ScatterND(front, place, row)
    cache_out = Transpose<perm=[1, 0, 2]>(after)
    top = ReduceMax<axes=[1], keepdims=1>(cache_out)
    y = Add(mixed, top)
}}
"""


def of_a_file(folder: Path) -> Callable[[int], None]:
    """Use of one session, by its number, of a library that keeps two states in place."""
    shapes = {"sequence": (Span(1, 4),), "past": (Span(0, 60),)}
    model = hetero_tvm.optimize_model(hetero_tvm.import_model(text_model(_DECODER), shapes=shapes))
    built = hetero_tvm.build_model(model)
    assert built.step is not None and set(built.step.room) == {"past_0", "cache"}, built.no_step
    net = hetero_tvm.load(built.export(folder))
    x = np.random.default_rng(0).standard_normal((1, 4, _WIDTH)).astype(np.float32)
    alone = net.session()
    wanted = [alone(x=x[:, :1], at=np.array([n])) for n in range(3)]
    kept = net.session()

    def use(number: int) -> None:
        session = net.session()
        for n in range(3):
            np.testing.assert_array_equal(session(x=x[:, :1], at=np.array([n])), wanted[n])
        other = session.fork()
        other(x=x, at=np.array([number % _ROWS]))
        if number % 10 == 0:  # full: refused, and the others go on
            try:
                while True:
                    other(x=x, at=np.array([0]))
            except InputError:
                kept.reset()
                np.testing.assert_array_equal(kept(x=x[:, :1], at=np.array([0])), wanted[0])
        if number % 3 == 0:
            session.reset()

    return use


def of_a_language_model(folder: Path) -> Callable[[int], None]:
    """Use of one session, by its number, of a small Llama."""
    model = hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=12 * tiny_llama.PAGE)
    with model.session() as session:
        wanted = session.append([3, 5, 7])
    free = model.pool.free

    def use(number: int) -> None:
        session = model.session()
        np.testing.assert_array_equal(session.append([3, 5, 7]), wanted)
        other = session.fork()
        other.append([number % 97] * 20)
        other.rewind(5)
        if number % 10 == 0:  # the cache is full: one text is refused, and the other goes on
            third = model.session()
            try:
                while True:
                    third.append([1] * 40)
            except CapacityError:
                pass
            del third
            session.rewind(2)
            np.testing.assert_array_equal(session.append([7]), wanted)
        if number % 2:
            session.close()
            other.close()
        else:
            del session, other
        gc.collect()
        assert model.pool.free == free, f"{free - model.pool.free} pages are lost"

    return use


KINDS: dict[str, Callable[[Path], Callable[[int], None]]] = {
    "file": of_a_file,
    "language model": of_a_language_model,
}


def grown(use: Callable[[int], Any], count: int) -> float:
    """Megabytes that the process has grown by in ``count`` uses, after the first few."""

    def some(first: int, count: int) -> int:
        for number in range(first, first + count):
            use(number)
        gc.collect()
        return psutil.Process().memory_info().rss

    before = some(0, _WARM)
    return (some(_WARM, count) - before) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=4.0, help="megabytes that the process may grow by")
    parser.add_argument("--only", choices=list(KINDS), action="append")
    options = parser.parse_args()
    failed = 0
    for kind in options.only or KINDS:
        with tempfile.TemporaryDirectory(prefix="hetero_tvm-sessions-") as folder:
            try:
                megabytes = grown(KINDS[kind](Path(folder)), options.count)
            except (HeteroTVMError, AssertionError) as error:
                print(f"{kind}: {error}", flush=True)
                failed += 1
                continue
        failed += megabytes > options.limit
        print(f"{kind}: {options.count} sessions, {megabytes:.1f} MB more", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
