"""Result of every front end: the imported model and the names, shapes and dtypes of its ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx

from hetero_tvm.errors import UsageError
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.host.tables import bytes_in_words
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.pages import views
from hetero_tvm.runtime.signature import Signature, Symbol, TensorSpec

__all__ = [
    "ImportedModel",
    "OpenShapes",
    "Original",
    "Signature",
    "Span",
    "Symbol",
    "TensorSpec",
    "parse_shape_option",
]


DESCRIBED = "as described"
"""Name of the implementation that a kernel description's own operators are; the others are judged by it."""
GENERIC = "generic"
"""Name of the implementation by kernels of no operator's own: no rule has fused anything."""
VENDOR = "onnxruntime"
"""Name under which a runtime's own kernel stands beside implementations, as a yardstick."""
RESERVED = {
    DESCRIBED: "the description's own operators",
    GENERIC: "the kernels without any fusion",
    VENDOR: "the library that all are timed beside",
}
"""Names that no implementation of a user's may have, and what has them."""


class Original(Protocol):
    """A model as its own framework runs it, untouched by our import."""

    engine: str
    """Name and version of the framework."""
    exact: bool
    """Whether it can compute in float64; else our translation tells what is exact, and this judges it."""
    available: bool
    """Whether it is installed here."""
    coarse: bool
    """Whether it rounds to 8 or 16 bits where its translation does not."""

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Compute all outputs in signature order, in float32 or (``double``) float64."""

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """Values inside the model, of those ``names`` that it has, in float64 and in order."""

    def to_onnx(self) -> onnx.ModelProto:
        """Export the model as its framework does, for other runtimes."""


@dataclass(frozen=True)
class ImportedModel(views.Shown):
    """A model as Relax, with the cleaned ONNX model it was made from (``clean``).

    ``module`` has one function ``main``: parameters in the order of ``signature.inputs``, weights
    as constants, one tensor as result, or a tuple where there are several outputs.  Names of its
    bindings tell the ONNX nodes (see :func:`hetero_tvm.frontend.source_names`).  ``original`` runs
    the model in the framework that it comes from, where that is not ONNX: the judge of its numbers.
    """

    module: IRModule
    signature: Signature
    clean: StoredModel
    name: str
    weight_bytes: int
    original: Original | None = None
    stored: str = "float32"
    """Type of the weights in the source; in ``module`` they are float32."""
    source: StoredModel | None = None
    """The ONNX model as it came, at its own opset."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Inputs of the file that were made constants, by name."""
    open: OpenShapes | None = None
    """The same model at other sizes, where its lengths stay open."""
    implementation: str = ""
    """Name of this way to compute, where the source is one operator that may be computed in several."""
    alternatives: tuple[ImportedModel, ...] = ()
    """Other implementations of the operator; they have the ends and the judge of this one."""

    def __repr__(self) -> str:
        opened = f" {self._opened}" if self._opened else ""
        weights = bytes_in_words(self.weight_bytes)
        return f"<ImportedModel {self.name!r}: {self.signature}{opened}, {weights} of weights>"

    def _view(self) -> views.View:
        facts = [("weights", bytes_in_words(self.weight_bytes)), ("stored as", self.stored)]
        facts += [("shapes", self._opened)] if self._opened else []
        return views.View(self.name, facts, (views.ends(self.signature.inputs, self.signature.outputs),))

    @property
    def _opened(self) -> str:
        """Words that say which sizes of the open dimensions the signature has, and which these may have."""
        opened = self.open
        return "" if opened is None else f"at {opened.counted_at} of {', '.join(map(str, opened.symbols))}"

    @property
    def onnx_model(self) -> onnx.ModelProto:
        """The cleaned ONNX model in one piece, new with every use: it takes the memory of all weights."""
        return self.clean.whole()


@dataclass(frozen=True)
class Span:
    """The sizes that a dimension may have: ``low`` to ``high``, None where the model or we decide.

    With ``step``, only its multiples: many networks of images take no others.
    """

    low: int = 1
    high: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no range: :class:`UsageError`."""
        numbers = [self.low, self.step] if self.high is None else [self.low, self.high, self.step]
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
        if not whole or self.step < 1 or (self.high is not None and not self._has_sizes(self.high)):
            raise UsageError(
                f"Span({self.low!r}, {self.high!r}, {self.step!r}) is no range of sizes",
                hint="as in hetero_tvm.Span(8, 256), or hetero_tvm.Span(64, 512, 8) for the multiples of 8",
            )

    def _has_sizes(self, high: int) -> bool:
        first, last = multiples(self.low, high, self.step)
        return max(1, first) <= last

    def __str__(self) -> str:
        ends = f"{self.low}..{'?' if self.high is None else self.high}"
        return f"{ends}:{self.step}" if self.step > 1 else ends


def multiples(low: int, high: int, step: int) -> tuple[int, int]:
    """The least multiple of ``step`` from ``low`` on, and the greatest up to ``high``."""
    return low + -low % step, high - high % step


@dataclass(frozen=True)
class OpenShapes:
    """A model whose lengths stay open, imported at several sizes.

    Attributes
    ----------
    symbols : the open dimensions and their ranges.
    sizes : of the symbols, one per import, in the order of :mod:`hetero_tvm.schedules.symbolic`.
    others : the imports after the first one, which holds this.
    at : imports the model at other sizes.
    decided : names of the symbols whose ranges nobody gave.
    """

    symbols: tuple[Symbol, ...]
    sizes: tuple[Mapping[str, int], ...]
    others: tuple[ImportedModel, ...]
    at: Callable[[Mapping[str, int]], ImportedModel]
    decided: frozenset[str] = frozenset()

    @property
    def counted_at(self) -> str:
        """Sizes that kernels are named by and work is counted at: ``batch=5, sequence=64``; in short ranges
        they lie beyond the largest."""
        return ", ".join(f"{one.name}={self.sizes[0][one.name]}" for one in self.symbols)


def parse_shape_option(text: str) -> tuple[str, tuple[int | str | Span, ...]]:
    """Read one ``--shape`` value, ``NAME=1x128``, as (name, dimensions).

    A dimension ``1..512`` may have any of these sizes when the model is called, ``64..512:8`` only the
    multiples of 8 among them; ``?`` leaves its range open,
    and ``past+sequence`` is the sum of two others, by the names that the model has for them.
    ``NAME=[1,128]`` is the same as ``NAME=1x128``.

    Raises
    ------
    UsageError : the text has another form, or a dimension is not a whole number of at least 1.
    """
    name, equals, sizes = text.rpartition("=")
    hint = "Write NAME=AxBxC, for example --shape input_ids=1x128, or 1x8..256 for a range of lengths."
    if not equals or not name.strip() or not sizes.strip():
        others = re.findall(r"([^\s,:\[\]]+)(?::|\[|:\[)(\d+(?:[x,]\d+)*)\]?(?:,|$)", text)  # of other tools
        written = [f"--shape {one}={dims.replace(',', 'x')}" for one, dims in others]
        if written:
            hint = f"Write {' '.join(written)}."
        raise UsageError(f"--shape {text!r} is not of the form NAME=1x128.", hint=hint)
    listed = re.fullmatch(r"\s*[\[(](.*)[\])]\s*", sizes)
    inside = listed[1] if listed else sizes
    if listed and "," in inside:
        parts = inside.split(",")
    else:  # an x between sizes, not one in a name
        parts = re.split(r"(?<=[\d?])\s*[xX]\s*|\s[xX]\s", inside)
    parts = [part.strip() for part in parts]
    dims = [_dimension(part, named=listed is not None) for part in parts]
    bad = [part for part, dim in zip(parts, dims, strict=True) if dim is None]
    if bad:
        wrong = ", ".join(repr(part) for part in bad)
        raise UsageError(f"--shape {text!r}: {wrong} is not a whole number of at least 1.", hint=hint)
    return name.strip(), tuple(dim for dim in dims if dim is not None)


def _dimension(text: str, named: bool) -> int | str | Span | None:
    """A size, a range of sizes, or a sum of names (of one where ``named``); None for anything else."""
    if text == "?":
        return Span()
    if re.fullmatch(r"[A-Za-z_][\w.]*(\s*\+\s*[\w.]+)*", text) and (named or "+" in text):
        return text
    text, colon, step = text.partition(":")
    low, dots, high = text.partition("..")
    if colon and not (dots and step.isascii() and step.isdecimal() and int(step)):
        return None
    # isdecimal alone would also let other scripts' digits through
    least = 0 if dots else 1
    if not all(part.isascii() and part.isdecimal() for part in (low, high) if part or dots):
        return None
    if int(low or least) < least or int(high or 1) < 1:
        return None
    if not dots:
        return int(low) if low else None
    several = int(step or 1)
    first, last = multiples(int(low), int(high), several)
    if max(1, first) > last:
        return None
    return last if first == last else Span(first, last, several)
