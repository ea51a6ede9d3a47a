"""Three selections: a newcomer's tests, the thorough ones, which CI runs too, and the sweeps behind them."""

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence

# Compiled modules are kept, also where the environment says otherwise, as containers do: each process of a
# test would compile 500 files of ours again, and each of pytest the sources of hypothesis.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings

from tests.selection import thin_grids

# The same examples every time, and as much time for them as the machine needs.
settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# Threads that have nothing to do sleep.  By default they yield their core 300,000 times first, which takes
# work from the other tests; a worker that is pinned to a busy core is at that for an hour, and the process
# that it belongs to does not end before.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "100")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Workers of pytest-xdist are told that their terminal has 80 columns; tests write to pipes, which have none.
os.environ.pop("COLUMNS", None)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Leave modules and tests, 700,000 objects that stay to the end, out of every search for garbage.

    Garbage is sought a tenth as often as by default: a compile makes many objects, and few circles of them.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(7_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of grids that run by default, before options say which tests run."""
    thin_grids(items)


@pytest.fixture(params=["few", pytest.param("every", marks=pytest.mark.exhaustive)])
def pick(request: pytest.FixtureRequest) -> Callable[[Sequence, int], list]:
    """``pick(cases, n)``: ``n`` of the cases, evenly spread; every one in the exhaustive selection."""

    def pick(cases: Sequence, n: int) -> list:
        if request.param == "every" or len(cases) <= n:
            return list(cases)
        return [cases[round(i * (len(cases) - 1) / max(1, n - 1))] for i in range(n)]

    return pick


@pytest.fixture
def at_most() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """``with at_most(n)``: no file can grow beyond ``n`` bytes, as on a full disk."""

    @contextlib.contextmanager
    def at_most(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return at_most
