"""Memory planning: buffers with live ranges in, offsets in one arena out.  Imports no TVM."""

from __future__ import annotations

from hetero_tvm.memory.check import PlanError, check_plan, find_mistakes
from hetero_tvm.memory.plan_data import Plan
from hetero_tvm.memory.planner import plan
from hetero_tvm.memory.problem import Buffer, Problem, read_csv, write_csv

__all__ = [
    "Buffer",
    "Plan",
    "PlanError",
    "Problem",
    "check_plan",
    "find_mistakes",
    "plan",
    "read_csv",
    "write_csv",
]
