import pytest

from hetero_tvm.search.measure.workers import Limits, Workers
from tests.search.spaces import MACHINE


@pytest.fixture(scope="module")
def workers():
    """One measuring process for a module; short deadlines, because some candidates hang."""
    with Workers(MACHINE, limits=Limits(build_seconds=4, run_seconds=2, memory=1 << 30)) as running:
        yield running
