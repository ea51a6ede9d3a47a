"""MetaSchedule's stock features of the kernels that points of a table stand for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hetero_tvm.host.tvm import tvm
from hetero_tvm.records.tables import Table
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.search.metaschedule import load_metaschedule


@lru_cache(maxsize=64)
def stock_features(table: Table, space: DesignSpace) -> np.ndarray:
    """Per point: sums and maxima over the stores of a kernel of the 164 numbers of each, and their count."""
    ms = load_metaschedule()
    op, machine = table.operator(), table.described_machine()
    target = tvm.target.Target(machine.codegen_target())
    extractor = ms.feature_extractor.PerStoreFeature()
    rows = []
    for point in table.each_point():
        function = space.emit(op, point, machine)
        module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        context = ms.TuneContext(mod=module, target=target)
        candidate = ms.MeasureCandidate(tvm.s_tir.Schedule(module), [])
        (found,) = extractor.extract_from(context, [candidate])
        stores = np.asarray(found.numpy())
        rows.append(np.concatenate([stores.sum(0), stores.max(0), [len(stores)]]))
    return np.asarray(rows)
