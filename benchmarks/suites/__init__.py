"""Suites of ``benchmarks/all.py``: each makes rows out of what one of the scripts beside measures."""

from benchmarks.suites.base import Setup, Suite
from benchmarks.suites.models import COMPILE, DECODE, LENGTHS, LOW_PRECISION, MODELS, RUNNING, TUNED
from benchmarks.suites.parts import CALLS, NPU, OPERATORS, PLANNER, PRODUCTS, PROPOSALS

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        COMPILE,
        MODELS,
        RUNNING,
        OPERATORS,
        PRODUCTS,
        PROPOSALS,
        PLANNER,
        CALLS,
        NPU,
        TUNED,
        LOW_PRECISION,
        LENGTHS,
        DECODE,
    )
}
"""By name, in the order in which they run."""

__all__ = ["SUITES", "Setup", "Suite"]
