"""The list of design spaces for GPUs."""

import importlib
import inspect
import pkgutil

from hetero_tvm.schedules import cuda
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.targets.cuda.spaces import CUDA_SPACES


def test_every_space_is_listed_once():
    found = set()
    for module in pkgutil.walk_packages(cuda.__path__, cuda.__name__ + "."):
        members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        found |= {kind for _, kind in members if issubclass(kind, DesignSpace) and kind.name}
    assert sorted(kind.name for kind in found) == sorted(space.name for space in CUDA_SPACES)
    assert len(set(CUDA_SPACES)) == len(found)
