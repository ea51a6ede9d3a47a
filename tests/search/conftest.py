import pytest

from hetero_tvm.search.measure.forked_workers import ForkedWorkers
from hetero_tvm.search.measure.service import Limits
from tests.search.spaces import MACHINE


@pytest.fixture(scope="module")
def workers():
    """One measuring process for a module."""
    with ForkedWorkers(MACHINE, limits=Limits(build_seconds=10, run_seconds=60, memory=1 << 30)) as running:
        yield running
