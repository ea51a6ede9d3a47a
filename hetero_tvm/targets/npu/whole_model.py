"""Whether tuned kernels serve the model as well as they serve themselves.

The search measures kernels alone.  Beside their neighbours, with which they overlap and share L1, a
faster kernel may cost the model cycles; what the model loses by is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.targets.npu.driver import open_device
from hetero_tvm.targets.npu.lowering import RegionTimer


def taken_back(
    module: Any, tasks: Sequence[Any], points: Mapping[str, Point], gains: Mapping[str, float], target: Any
) -> list[str]:
    """Keys of the tasks whose default points the model is better off with.

    Parameters
    ----------
    points : the tuned point of each task, by key.
    gains : seconds per inference that each task's point saves when measured alone: the smallest go first.
    """
    defaults = {
        task.key: task.space.default(task.op, target.machine)
        for task in tasks
        if isinstance(task.space, NpuSpace)
    }
    changed = [key for key in defaults if key in points and dict(points[key]) != dict(defaults[key])]
    if not changed:
        return []
    timer = RegionTimer(module, tasks, target)
    with open_device(target.spec) as device:
        limit = timer.cycles(defaults, device)
        chosen = {**defaults, **{key: points[key] for key in changed}}
        best = timer.cycles(chosen, device)
        back: list[str] = []
        for key in sorted(changed, key=lambda key: gains.get(key, 0.0)):
            if best <= limit:
                break
            without = {**chosen, key: defaults[key]}
            cycles = timer.cycles(without, device)
            if cycles < best:
                chosen, best = without, cycles
                back.append(key)
    return back if best <= limit else changed
