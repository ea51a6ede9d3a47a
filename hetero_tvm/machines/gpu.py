"""Data of a GPU that design spaces need, and the architectures that the target can name."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from hetero_tvm.errors import TargetError
from hetero_tvm.machines.roofs import Roofs

WARP = 32
SHARED_STATIC = 48 << 10
"""Bytes of shared memory that every kernel may use without asking the driver for more."""


@dataclass(frozen=True)
class GpuModel:
    """A GPU as the design spaces see it (CUDA C++ Programming Guide, table of compute capabilities).

    Parameters
    ----------
    arch : ``sm_80``; a trailing ``a`` allows instructions of that one architecture (``sm_90a``).
    sms : streaming multiprocessors of a typical product; grids are laid out to fill them.
    shared_per_block, shared_per_sm : bytes of shared memory that one block may ask for, and that the
        blocks of one multiprocessor share.
    threads_per_sm, blocks_per_sm : resident at once.
    registers_per_sm : 32-bit registers.
    l2 : bytes.
    """

    arch: str
    sms: int = 108
    shared_per_block: int = 163 << 10
    shared_per_sm: int = 164 << 10
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    l2: int = 40 << 20

    features: tuple[str, ...] = ()
    lanes: int = WARP
    threads: int = 1
    """Host threads that take part: a record is not bound to their number."""

    variant = ""
    whole_models = False
    sorted_choices = True
    """Spaces for GPUs list each knob's choices by their estimates (see ``search.cost_model.described``)."""

    @property
    def mcpu(self) -> str:
        """The name that records are filed under."""
        return self.arch

    @property
    def capability(self) -> int:
        """Compute capability as a number: 80 for 8.0."""
        return int(re.sub(r"\D", "", self.arch))

    def codegen_target(self) -> dict[str, Any]:
        """The configuration of ``tvm.target.Target`` that code for this GPU is generated with."""
        return {
            "kind": "cuda",
            "arch": self.arch,
            "max_threads_per_block": 1024,
            "max_num_threads": 1024,
            "thread_warp_size": WARP,
            "registers_per_block": 65536,
            "max_shared_memory_per_block": SHARED_STATIC,
            "l2_cache_size_bytes": self.l2,
            "host": {"kind": "llvm"},
        }

    def roofs(self) -> Roofs:
        """Unknown: a peak of the product that is there is not known from its architecture."""
        return Roofs(None, None)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> GpuModel:
        fields = json.loads(text)
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})


_KB, _MB = 1 << 10, 1 << 20
MODELS = {
    model.arch: model
    for model in (
        # sms, shared_per_block, shared_per_sm, threads_per_sm, blocks_per_sm
        GpuModel("sm_80", 108, 163 * _KB, 164 * _KB, 2048, 32, l2=40 * _MB),  # A100
        GpuModel("sm_86", 84, 99 * _KB, 100 * _KB, 1536, 16, l2=6 * _MB),  # RTX 3090, A10
        GpuModel("sm_89", 128, 99 * _KB, 100 * _KB, 1536, 24, l2=72 * _MB),  # RTX 4090, L4
        GpuModel("sm_90", 132, 227 * _KB, 228 * _KB, 2048, 32, l2=50 * _MB),  # H100, H200
        GpuModel("sm_90a", 132, 227 * _KB, 228 * _KB, 2048, 32, l2=50 * _MB),
        GpuModel("sm_100", 148, 227 * _KB, 228 * _KB, 2048, 32, l2=126 * _MB),  # B200
        GpuModel("sm_120", 170, 99 * _KB, 100 * _KB, 1536, 24, l2=96 * _MB),  # RTX 5090
    )
}


def model_named(arch: str) -> GpuModel:
    """The model of an architecture.  :class:`TargetError` lists those there are."""
    if arch not in MODELS:
        raise TargetError(
            f"cuda knows no architecture {arch!r}",
            hint=f"known: {', '.join(MODELS)}; for example --target cuda:sm_80,sm_90",
        )
    return MODELS[arch]
