"""Description of one NPU: sizes, rates, latencies, energy.  Presets are in ``presets.toml``.

Sizes are bytes, rates bytes or elements per cycle, times cycles of the NPU's one clock.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hetero_tvm.errors import TargetError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIB = 1024
MIB = 1024 * KIB
BANK_BYTES = 32
"""Width of one scratchpad bank, and the granule in which strided accesses are counted."""
SCRATCHPADS = ("l1", "l0a", "l0b", "l0c", "ub")
MOST_ENERGY = 1e12
"""Greatest number of picojoules of one event."""


@dataclass(frozen=True)
class Energy:
    """Picojoules per event; the defaults are of the order published for 7 nm chips."""

    mac_f16: float = 0.35
    mac_i8: float = 0.1
    vector_element: float = 0.6
    vector_transcendental: float = 2.5
    l0_byte: float = 0.15
    l1_byte: float = 0.5
    ub_byte: float = 0.3
    dram_byte: float = 20.0
    instruction: float = 40.0
    static_per_cycle: float = 400.0


@dataclass(frozen=True)
class NPUSpec:
    """One machine of the family.  Construction validates and lists all problems at once.

    Raises :class:`TargetError`.
    """

    name: str
    matrix_block: tuple[int, int, int]
    """M, N, K of the product that is accumulated per cycle for f16 and bf16; K doubles for int8."""
    vector_lanes: int
    """Elements per cycle of f16, bf16 or int8; half as many when an operand has 4 bytes."""
    clock_ghz: float
    l1_kib: int
    l0a_kib: int
    l0b_kib: int
    l0c_kib: int
    ub_kib: int
    l1_to_l0a: int
    """Bytes per cycle; also the width of all of L1's banks together."""
    l1_to_l0b: int
    l0c_to_ub: int
    """Bytes per cycle, counted in the four-byte accumulators; also the path from UB to L1."""
    dram_bytes_per_cycle: float
    """Bytes per cycle that the two DMA engines share."""
    dram_latency: int
    """Cycles from request to first byte (load), from last byte to acknowledge (store)."""
    issue_cycles: int
    """Cycles that a queue spends on every instruction before it starts, flags and barriers included."""
    transcendental_divisor: int = 4
    """Factor by which exp, log, erf, tanh, sigmoid, sqrt, rsqrt, reciprocal and div are slower."""
    ub_bytes_per_cycle: int = 0
    """Bytes per cycle of all banks of the unified buffer; 0: 8 times the lanes (four 2-byte operands)."""
    dma_outstanding: int = 8
    """Descriptors of one DMA engine under way at once: hides the latency."""
    events: int = 32
    """Number of event ids of every pair of queues."""
    alignment: int = 32
    """Bytes by which tiles in L0A, L0B, L0C and DRAM allocations are aligned; others by their element."""
    dram_mib: int = 4096
    energy_pj: Energy = field(default_factory=Energy)

    def __post_init__(self) -> None:
        if self.ub_bytes_per_cycle == 0 and type(self.vector_lanes) is int:
            object.__setattr__(self, "ub_bytes_per_cycle", 8 * self.vector_lanes)
        if problems := list(_problems(self)):
            raise TargetError(
                f"the NPU spec {self.name!r} is not valid",
                problems=problems,
                hint="compare with presets.toml",
            )

    # --- sizes -------------------------------------------------------------------------------

    def scratchpad(self, memory: str) -> int:
        """Bytes of ``l1``, ``l0a``, ``l0b``, ``l0c`` or ``ub``."""
        return int(getattr(self, f"{memory}_kib")) * KIB

    @property
    def dram_bytes(self) -> int:
        """Bytes of DRAM."""
        return self.dram_mib * MIB

    def block(self, dtype: str) -> tuple[int, int, int]:
        """M, N, K of the product per cycle for operands of ``dtype`` (f16, bf16, i8)."""
        m, n, k = self.matrix_block
        return m, n, 2 * k if dtype == "i8" else k

    # --- rates -------------------------------------------------------------------------------

    def macs_per_cycle(self, dtype: str = "f16") -> int:
        """Multiplications that are accumulated per cycle."""
        return math.prod(self.block(dtype))

    def matrix_cycles(self, m: int, n: int, k: int, dtype: str = "f16") -> int:
        """Cycles of one ``mmad`` without its issue: whole blocks."""
        bm, bn, bk = self.block(dtype)
        return -(-m // bm) * -(-n // bn) * -(-k // bk)

    # --- text --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Fields by name, energies as a table of their own."""
        return dataclasses.asdict(self)

    def to_config(self) -> str:
        """The text that ``hnpu_open`` reads: one ``key=value`` per line."""
        values = self.to_json()
        energy = values.pop("energy_pj")
        m, n, k = values.pop("matrix_block")
        values |= {"block_m": m, "block_n": n, "block_k": k}
        values |= {f"energy_{key}": value for key, value in energy.items()}
        return "".join(f"{key}={value}\n" for key, value in values.items())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str) -> NPUSpec:
        """Spec of a TOML table.  Raises :class:`TargetError`, which names unknown and missing keys."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        required = {key for key, f in known.items() if _has_no_default(f)} - {"name"}
        problems = [f"unknown key {key!r}" for key in values if key not in known]
        problems += [f"missing key {key!r}" for key in sorted(required - set(values))]
        energy = values.get("energy_pj", {})
        if not isinstance(energy, Mapping):
            problems.append("energy_pj is not a table")
            energy = {}
        costs = {f.name for f in dataclasses.fields(Energy)}
        problems += [f"unknown key 'energy_pj.{key}'" for key in energy if key not in costs]
        problems += [
            f"energy_pj.{key} must be a number from 0 to {MOST_ENERGY:g}, got {value!r}"
            for key, value in energy.items()
            if not _is_number(value) or not 0 <= value <= MOST_ENERGY
        ]
        rest = {"name": name, **{key: value for key, value in values.items() if key != "energy_pj"}}
        if isinstance(rest.get("matrix_block"), list):
            rest["matrix_block"] = tuple(rest["matrix_block"])
        if problems:
            # The values that are there are judged beside those of a machine that is right.
            given = {key: value for key, value in rest.items() if key in known}
            right = dataclasses.asdict(cls.preset("edge"))
            problems += _problems(SimpleNamespace(**{**right, **given}))
            raise TargetError(f"the NPU spec {name!r} is not valid", problems=problems)
        return cls(**rest, energy_pj=Energy(**energy))

    @classmethod
    def from_toml(cls, path: str | Path) -> NPUSpec:
        """Spec of a file: one machine, its keys at the top level.  Raises :class:`TargetError`."""
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TargetError(f"cannot read the NPU spec {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TargetError(f"{path} is not TOML: {error}") from error
        name = values.pop("name", path.stem)
        return cls.from_dict(values, name)

    @classmethod
    def preset(cls, name: str) -> NPUSpec:
        """Spec of ``edge``, ``mobile`` or ``datacenter``.  Raises :class:`TargetError`."""
        tables = _presets()
        if name not in tables:
            raise TargetError(f"there is no NPU preset {name!r}", hint=f"presets: {', '.join(tables)}")
        return cls.from_dict(tables[name], name)


def presets() -> tuple[str, ...]:
    """Names of the machines in ``presets.toml``."""
    return tuple(_presets())


@functools.cache
def _presets() -> dict[str, Any]:
    text = (
        importlib.resources.files("hetero_tvm.machines.npu")
        .joinpath("presets.toml")
        .read_text(encoding="utf-8")
    )
    return tomllib.loads(text)


def _has_no_default(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _is_number(value: Any) -> bool:
    # A comparison, because an integer may be beyond what a float holds.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_HUGE < value < _HUGE


_HUGE = 1e300
_LEAST_RATE = 1e-9
# name -> least, greatest.  The greatest keep every quantity of the simulator within 53 bits.
_INTEGERS = {
    "vector_lanes": (8, 4096),
    "l1_kib": (1, 65536),
    "l0a_kib": (1, 16384),
    "l0b_kib": (1, 16384),
    "l0c_kib": (1, 16384),
    "ub_kib": (1, 16384),
    "l1_to_l0a": (32, 16384),
    "l1_to_l0b": (32, 16384),
    "l0c_to_ub": (32, 16384),
    "dram_latency": (0, 100_000),
    "issue_cycles": (0, 1000),
    "transcendental_divisor": (1, 64),
    "ub_bytes_per_cycle": (32, 65536),
    "dma_outstanding": (1, 256),
    "events": (1, 256),
    "alignment": (4, 4096),
    "dram_mib": (1, 1 << 20),
}
_MULTIPLE_OF_BANK = ("l1_to_l0a", "l1_to_l0b", "l0c_to_ub", "ub_bytes_per_cycle")


def _problems(spec: NPUSpec | SimpleNamespace) -> Iterator[str]:
    """Everything that is wrong with the values of a spec."""
    if not isinstance(spec.name, str) or not spec.name or not spec.name.isprintable() or "=" in spec.name:
        yield f"name must be a printable text without '=', got {spec.name!r}"
    for key, (least, greatest) in _INTEGERS.items():
        value = getattr(spec, key)
        if key == "ub_bytes_per_cycle" and value == 0:
            continue  # follows from the lanes, which have a problem of their own
        if type(value) is not int or not least <= value <= greatest:
            yield f"{key} must be an integer from {least} to {greatest}, got {value!r}"
        elif key in _MULTIPLE_OF_BANK and value % BANK_BYTES:
            rule = " (when not given: 8 times vector_lanes)" if key == "ub_bytes_per_cycle" else ""
            yield f"{key} must be a multiple of the bank width {BANK_BYTES}{rule}, got {value}"
    for key, greatest in (("clock_ghz", 100), ("dram_bytes_per_cycle", 65536)):
        value = getattr(spec, key)
        if not _is_number(value) or not _LEAST_RATE <= value <= greatest:
            yield f"{key} must be a number from {_LEAST_RATE:g} to {greatest}, got {value!r}"
    alignment = spec.alignment
    if isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1):
        yield f"alignment must be a power of two, got {alignment}"
    block = spec.matrix_block
    if not isinstance(block, tuple) or len(block) != 3 or not all(_is_block(b) for b in block):
        yield f"matrix_block must be three integers M, N, K from 1 to 256, got {block!r}"


def _is_block(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 256
