"""A CPU as its design spaces know it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

_SCHEDULED_AS = {
    "znver4": ("icelake-server", ("avx512bf16", "prefer-no-gather")),
    "znver5": ("icelake-server", ("avx512bf16", "avxvnni", "prefer-no-gather")),
}
"""Microarchitecture -> the one whose scheduling model LLVM is to use, and features that this one lacks.

LLVM's model of these CPUs makes it start all broadcasts of a register tile first, and then store what does
not fit into 32 registers: convolutions with 28 accumulators take twice the time.  The other one has gathers
that are worth it; here one takes as long as its lanes one after another.
"""


_LANES_OF_512_BITS = 16
_MISCOMPILED = "avx512dq"
"""Feature that code is generated without.

LLVM 22 makes ``vmovmskps`` of ``vpmovd2m`` and a read of its mask, and forgets what reads the mask later
(llvm-project 198197), and that ``vmovmskps`` knows 16 registers only (191304): choices by signs of vectors
went wrong, indices among them.  Nothing else of what we generate needs these instructions: logic on floats
has twins among those on integers.
"""


_UNEVEN = 0.08
"""Share of a kernel's time that a thread waits for another that has one piece of work as well."""

_ENOUGH_TURNS = 4
"""Pieces of work of a thread with which none waits for long."""


_FEW_LINES = 8
"""Lines of pixels that come from L2 together without a wait."""


_SHARED_LINE = 16.0
"""Cycles of a store to a cache line that other cores hold, too: they must give it up first.  It takes 25
where they are on the same chip, 100 on another one (Zen 4), and 2 where no other core has the line."""


@dataclass(frozen=True)
class CpuModel:
    """A CPU as the design spaces see it.

    Parameters
    ----------
    mcpu : LLVM's name of the microarchitecture (``znver4``).
    features : sorted ISA features in /proc/cpuinfo naming.
    lanes : float32 values in one vector register.
    registers : architectural vector registers.
    threads : threads that one kernel runs on.
    l1, l2, l3 : data cache sizes in bytes (l1, l2 per core).
    fma_units, fma_latency : vector FMAs started per cycle; cycles until a result can be used.
    disabled : features, in LLVM's spelling, that the microarchitecture's name implies and this machine
        lacks (a hypervisor may mask some).
    variant : hardware beside the CPU that kernels and records depend on too, in targets that derive from
        the CPU's; empty for none.
    """

    mcpu: str
    features: tuple[str, ...] = ()
    lanes: int = 8
    registers: int = 16
    threads: int = 2
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 16 << 20
    fma_units: float = 2.0
    fma_latency: int = 4
    disabled: tuple[str, ...] = ()
    variant: str = ""

    sorted_choices = False
    whole_models = False

    def shared_lines(self, nbytes: float, pieces: int) -> float:
        """Cycles that a thread waits because several cores read ``nbytes`` that others write again; none
        where each has one of ``pieces``."""
        return _SHARED_LINE * nbytes / 64 / self.threads if pieces < self.threads else 0.0

    def roofs(self) -> None:
        """None: peaks of a CPU are measured."""

    @property
    def load_cycles(self) -> float:
        """Cycles per vector load: two of 32 bytes start in a cycle; of 64 as many as there are FMA units."""
        return 1.0 if self.lanes >= 16 and self.fma_units < 2 else 0.5

    @property
    def transform_cycles(self) -> float:
        """Cycles per vector of what loads, adds and stores about one vector each, by those of Zen 4, whose
        vectors pass in two halves (measured on Zen 5)."""
        return 0.7 if self._whole else 1.0

    @property
    def _whole(self) -> bool:
        """Whether it is a Zen 5, or what computes as it does: two products of 512 bits start in a cycle."""
        return self.lanes >= 16 and self.fma_units >= 2 and "amx_tile" not in self.features

    @property
    def l2_bytes(self) -> float:
        """Bytes per cycle from L2 into L1 that keep up with products; infinite where no product was seen to
        wait for them.  Measured on a Xeon with tiles, whose vectors take twice what this is, and on Zen 5."""
        if "amx_tile" in self.features:
            return 30.0
        return 40.0 if self._whole else float("inf")

    @property
    def shifted_loads(self) -> float:
        """Time of products whose vectors lie at any offset by that of whole cache lines (measured)."""
        return 1.4 if "amx_tile" in self.features else 1.0

    @property
    def far_bytes(self) -> float:
        """Bytes per cycle and core from beyond L2 (measured; a Xeon's third level is far)."""
        if "amx_tile" in self.features:
            return 5.0
        return 16.0 if self._whole else 8.0

    @property
    def exposed_fetches(self) -> float:
        """Share of the time of fetches from beyond L2 that shows although they are made ahead (measured)."""
        return 0.1 if "amx_tile" in self.features or self._whole else 0.0

    def beside_fetches(self, compute: float, fetches: float) -> float:
        """Cycles of arithmetic and of fetches from beyond L2 that are made ahead, one beside the other."""
        return max(compute, fetches) + self.exposed_fetches * min(compute, fetches)

    @property
    def exposed_reads(self) -> float:
        """Share of the time of reads from beyond L2 that shows where nothing asks for the lines ahead
        (measured)."""
        return 1.0 if "amx_tile" in self.features else 0.0

    @property
    def exposed_lines(self) -> float:
        """Share of the waits for lines of pixels from L2 that shows beside products (measured on Zen 5 and
        on a Xeon with tiles, whose products take half as long as others')."""
        if "amx_tile" in self.features:
            return 0.7
        return 0.2 if self._whole else 0.0

    @property
    def rereads_beside(self) -> bool:
        """Whether weights that do not stay in L2 come again beside products (measured on Zen 5)."""
        return self._whole

    @property
    def l2_passes(self) -> float:
        """Bytes per cycle of weights that stay in L2 and pass again for each block of an image; infinite
        where none was seen to wait for them (measured on a Xeon with tiles)."""
        return 40.0 if "amx_tile" in self.features else float("inf")

    @property
    def kept_weights(self) -> float:
        """Share of :attr:`kept_l2` that weights stay in beside images on their way through (measured)."""
        return 0.5 if self._whole else 1 / 1.5

    def waits_of_rows(self, rows: int) -> float:
        """Time of products whose weights stay in L1, by what it would be if the lines of ``rows`` pixels came
        from L2 in time (measured on Zen 5: the lines of many pixels are asked for at once)."""
        return 1.06 if self._whole and rows > _FEW_LINES else 1.0

    @property
    def kept_l2(self) -> float:
        """Bytes of L2 in which what a kernel reads again stays; other guests use a Xeon's too (measured)."""
        return (0.4 if "amx_tile" in self.features else 0.75) * self.l2

    def waiting(self, items: int) -> float:
        """Time of a kernel of ``items`` pieces of work, as a multiple of that on cores that are equally fast.

        Other guests work on the other halves of a Xeon's cores: a thread waits for a slower one unless it can
        take pieces over (measured).
        """
        if "amx_tile" not in self.features or self.threads == 1:
            return 1.0
        return 1.0 + _UNEVEN / min(-(-items // self.threads), _ENOUGH_TURNS)

    @property
    def broadcast_cycles(self) -> float:
        """Cycles per scalar that is loaded into all lanes.

        Zen 1 works on 32 bytes as two halves, and a broadcast takes longer than a product (measured); a Xeon
        with tiles falls behind where every product has a broadcast of its own (likewise).
        """
        if "amx_tile" in self.features:
            return 0.75
        return 1.35 if self.lanes == 8 and self.fma_units <= 1 else 0.5

    def has_tiles(self, feature: str) -> bool:
        """Whether a matrix unit multiplies what ``feature`` says, ``amx_int8`` or ``amx_bf16``, and its tiles
        are as wide as vectors."""
        return self.lanes == 16 and {"amx_tile", feature} <= set(self.features)

    @property
    def weight_streams(self) -> int:
        """Panels of a packed weight that a lone row is multiplied with at once, where vectors have 512 bits.

        One panel is one stream of memory, and on Zen 4 a row takes .6 to .95 of the time of several at once.
        A Xeon has memory farther off, and prefetchers look ahead by stream: with eight of them decoding takes
        .80 of the time of one whose lines are asked for ahead (halves; .90 with 8 bits, .95 with 4, .90 to 1
        with float32: measured on one with tiles).
        """
        return 8 if "amx_tile" in self.features else 1

    @property
    def streamed_ahead(self) -> int:
        """Rows of a packed weight between what is fetched and what a lone row is multiplied with; 0 where the
        hardware's own prefetch does better.

        On Zen 4 that is 1 or 2 KB: beyond, a line is asked for before the hardware's own prefetch and evicted
        before it is read.  Beside eight streams it only takes time.
        """
        return 0 if "amx_tile" in self.features else 16

    def codegen_target(self) -> dict[str, Any]:
        """The configuration of ``tvm.target.Target`` that code for this CPU is generated with."""
        mcpu, more = _SCHEDULED_AS.get(self.mcpu, (self.mcpu, ()))
        config: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": self.threads}
        changes = [f"+{name}" for name in more if name not in self.disabled]
        without = self.disabled
        if self.lanes >= _LANES_OF_512_BITS and _MISCOMPILED not in without:
            without = (*without, _MISCOMPILED)
        if changes or without:
            config["mattr"] = [*changes, *(f"-{name}" for name in without)]
        return config

    def to_json(self) -> str:
        """The description as JSON; :meth:`from_json` is the inverse."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> CpuModel:
        """The description that :meth:`to_json` wrote."""
        fields = json.loads(text)
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
