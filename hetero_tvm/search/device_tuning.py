"""Tuning the variant of a model that runs on given devices: a GPU, or another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetero_tvm.records.store import RecordFolders
from hetero_tvm.search.ledger import OnEvent
from hetero_tvm.search.loop import tune
from hetero_tvm.search.measure.device_client import DeviceClient
from hetero_tvm.search.measure.device_workers import DEVICE_LIMITS, DeviceWorkers, batch_size
from hetero_tvm.search.options import TuneOptions
from hetero_tvm.search.outcome import TuneReport
from hetero_tvm.search.tuner import Tunable


def tune_on_devices(
    model: Tunable,
    variant_on: Callable[[Mapping[str, Any]], Tunable],
    compiler: str,
    devices: Sequence[DeviceClient],
    options: TuneOptions,
    folders: RecordFolders,
    on_event: OnEvent,
) -> TuneReport:
    """Tune on opened devices of one kind and name, which are closed afterwards.

    Parameters
    ----------
    variant_on : the variant of ``model`` that runs on a device, by the device's description.
    compiler : ``module:function`` that makes a shared library of a kernel (see ``DeviceDoor``).

    Raises
    ------
    TargetError : no variant runs on the device.
    """
    device = devices[0].device
    try:
        variant = variant_on(device)
        tasks = [task for task in variant.tasks if task.space is not None]
        # A CPU's microarchitecture says all; of a GPU's architecture there are many products.
        product = "" if device["name"] == device["arch"] else device["name"]
        store = variant.store(folders, product)
        workers = DeviceWorkers(devices, variant.machine, compiler, DEVICE_LIMITS, seed=options.seed)
        batch = batch_size(options.trials, len(tasks), workers.slots)
        options = replace(options, limits=DEVICE_LIMITS, batch=batch)
    except BaseException:
        for one in devices:
            one.close()
        raise
    with workers:
        report = tune(tasks, variant.machine, options, store, on_event, workers=workers)
    several = f"{len(devices)} x " if len(devices) > 1 else ""
    report.notes.append(f"measured on {several}{device['name']}, code for {variant.machine.mcpu}")
    others = [one.machine.mcpu for one in model.variants() if one.machine != variant.machine]
    if others:
        report.warnings.append(
            f"only {variant.machine.mcpu} was measured: {', '.join(others)} keep their records or defaults"
        )
    return report
