"""Protocol of every description of hardware, for design spaces, the cost model and records."""

from __future__ import annotations

from typing import Any, Protocol

from hetero_tvm.machines.roofs import Roofs


class Machine(Protocol):
    """A CPU, GPU or NPU as plain frozen data (:class:`~hetero_tvm.machines.cpu.CpuModel`, ...).

    Attributes
    ----------
    mcpu : name of the microarchitecture or model that records are filed under.
    features : features that kernels were compiled with; part of the key of a record.
    lanes : float32 values that one vector operation takes.
    threads : host threads that a kernel is timed on.
    variant : what else records depend on (hardware beside the CPU); empty for none.
    sorted_choices : whether spaces list each knob's choices by their own estimate, the likely ones first.
    whole_models : whether kernels overlap, so that records are of whole models (see ``records.choose``).
    """

    @property
    def mcpu(self) -> str: ...
    @property
    def features(self) -> tuple[str, ...]: ...
    @property
    def lanes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def variant(self) -> str: ...
    @property
    def sorted_choices(self) -> bool: ...
    @property
    def whole_models(self) -> bool: ...

    def codegen_target(self) -> dict[str, Any]:
        """Configuration of the ``tvm.target.Target`` that code is generated with."""
        ...

    def roofs(self) -> Roofs | None:
        """Peaks that follow from the description; None where they are to be measured on this machine."""
        ...

    def to_json(self) -> Any:
        """The description as JSON."""
        ...
