"""This machine: cores, instruction set, caches, measured peaks; its C++ compiler and TVM.

This package and its facts import neither TVM nor NumPy, so that the command lines and the runtime may ask
cheaply; ``native`` and ``tvm`` are imported by those who need them.
"""

from hetero_tvm.host.cores import available_cores, busy_load, cpu_quota
from hetero_tvm.host.cpu import cpu_features, refusal_of_tiles, withheld_features
from hetero_tvm.host.facts import Host, detect
from hetero_tvm.host.peaks import measure_bandwidth, measure_caches, measure_peak

__all__ = [
    "Host",
    "available_cores",
    "busy_load",
    "cpu_features",
    "refusal_of_tiles",
    "withheld_features",
    "cpu_quota",
    "detect",
    "measure_bandwidth",
    "measure_caches",
    "measure_peak",
]
