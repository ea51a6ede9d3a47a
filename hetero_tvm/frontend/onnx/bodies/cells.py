"""Time steps of ONNX's RNN, GRU and LSTM in plain ONNX, and their activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

Activation = Callable[[str], str]


class Step:
    """Writer of the nodes of one time step.

    Parameters
    ----------
    body : collects the nodes.
    dtype : type of states and weights.
    hidden : H, values of a state.
    activations : writers of this direction's activations, in ONNX's order.
    clip : bound of an activation's input; None for none.
    """

    def __init__(
        self, body: Body, dtype: str, hidden: int, activations: list[Activation], clip: float | None
    ):
        self.body, self.dtype, self.hidden, self.clip = body, dtype, hidden, clip
        self.activations = activations

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.body.op(kind, *inputs, **attributes)

    def const(self, value: object) -> str:
        return self.body.const(value, self.dtype)

    def activate(self, which: int, x: str) -> str:
        """Activation number ``which`` of a clipped gate."""
        if self.clip is not None:
            x = self.op("Clip", x, self.const(-self.clip), self.const(self.clip))
        return self.activations[which](x)

    def part(self, x: str, gate: int, count: int = 1) -> str:
        """Columns of ``count`` gates of ``x``, from ``gate`` on."""
        start = gate * self.hidden
        return self.body.cut(x, 1, start, start + count * self.hidden)

    def sum(self, x: str, state: str | None, weight: str) -> str:
        """``x + state @ weight``; None is a state of zeros."""
        return x if state is None else self.op("Add", self.op("MatMul", state, weight), x)


@dataclass(frozen=True)
class Cell:
    """A kind of cell: its weights, and its step from one state to the next.

    Attributes
    ----------
    gates : number of blocks of H rows in its weights.
    activations : names of its default activations.
    """

    gates: ClassVar[int]
    activations: ClassVar[tuple[str, ...]]

    recurrent: list[str]
    """Weights of the state: R transposed, [H, gates * H], or the parts of it that the cell asks for."""
    bias: str | None = None
    """Bias of the recurrent product, where it cannot be added to the input's: [1, gates * H]."""
    peephole: tuple[str, str, str] | None = None
    """Weights [1, H] by which the input, output and forget gates of an LSTM see the cell."""
    coupled: bool = False
    """Whether the forget gate is 1 less the input gate."""

    @staticmethod
    def parts(linear_before_reset: bool) -> list[tuple[int, int]]:
        """Products with the state that one step has: (first gate, number of gates) of each."""
        raise NotImplementedError

    def step(self, s: Step, x: list[str], h: str | None, c: str | None) -> tuple[str, str | None]:
        """Write one step: the next states (h, c).

        ``x`` is the input's part of the gates, as :meth:`parts` divides them, [B, gates * H] each.
        """
        raise NotImplementedError


class Rnn(Cell):
    """Plain recurrent cell: a single gate."""

    gates, activations = 1, ("Tanh",)

    @staticmethod
    def parts(linear_before_reset: bool) -> list[tuple[int, int]]:
        return [(0, 1)]

    def step(self, s: Step, x: list[str], h: str | None, c: str | None) -> tuple[str, str | None]:
        return s.activate(0, s.sum(x[0], h, self.recurrent[0])), None


class Gru(Cell):
    """Gated recurrent unit with gates z, r, n; with ``linear_before_reset`` (PyTorch) one product."""

    gates, activations = 3, ("Sigmoid", "Tanh")

    @staticmethod
    def parts(linear_before_reset: bool) -> list[tuple[int, int]]:
        return [(0, 3)] if linear_before_reset else [(0, 2), (2, 1)]

    def step(self, s: Step, x: list[str], h: str | None, c: str | None) -> tuple[str, str | None]:
        if len(x) == 1:
            assert self.bias is not None
            seen = s.sum(self.bias, h, self.recurrent[0])
            z, r = (s.activate(0, s.op("Add", s.part(x[0], g), s.part(seen, g))) for g in (0, 1))
            n = s.op("Add", s.part(x[0], 2), s.op("Mul", r, s.part(seen, 2)))
        else:
            both = s.activate(0, s.sum(x[0], h, self.recurrent[0]))
            z, r = s.part(both, 0), s.part(both, 1)
            n = s.sum(x[1], None if h is None else s.op("Mul", r, h), self.recurrent[1])
        n = s.activate(1, n)
        kept = s.op("Neg", n) if h is None else s.op("Sub", h, n)
        return s.op("Add", n, s.op("Mul", z, kept)), None


class Lstm(Cell):
    """Long short-term memory with gates i, o, f, g."""

    gates, activations = 4, ("Sigmoid", "Tanh", "Tanh")

    @staticmethod
    def parts(linear_before_reset: bool) -> list[tuple[int, int]]:
        return [(0, 4)]

    def step(self, s: Step, x: list[str], h: str | None, c: str | None) -> tuple[str, str | None]:
        total = s.sum(x[0], h, self.recurrent[0])
        i = s.activate(0, self._seeing(s, s.part(total, 0), 0, c))
        g = s.activate(1, s.part(total, 3))
        new = s.op("Mul", i, g)
        if c is not None:
            if self.coupled:
                f = s.op("Sub", s.const(1), i)
            else:
                f = s.activate(0, self._seeing(s, s.part(total, 2), 2, c))
            new = s.op("Add", s.op("Mul", f, c), new)
        o = s.activate(0, self._seeing(s, s.part(total, 1), 1, new))
        # As in ONNX Runtime, the cell is not clipped on its way out: the sum of gates is no gate.
        return s.op("Mul", o, s.activations[2](new)), new

    def _seeing(self, s: Step, x: str, gate: int, c: str | None) -> str:
        if self.peephole is None or c is None:
            return x
        return s.op("Add", x, s.op("Mul", self.peephole[gate], c))


CELLS: dict[str, type[Cell]] = {"RNN": Rnn, "GRU": Gru, "LSTM": Lstm}

#: Activations that are operators of that name, with their attributes that `activation_alpha` and
#: `activation_beta` set.
# fmt: off
_PLAIN: dict[str, dict[str, float]] = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "Softsign": {}, "Softplus": {}, "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "Elu": {"alpha": 1.0},
}
# fmt: on
_SCALED = {"Affine": {"alpha": 1.0, "beta": 0.0}, "ScaledTanh": {"alpha": 1.0, "beta": 1.0}}
_NAMES = {name.lower(): name for name in (*_PLAIN, *_SCALED)}


def activations(body: Body, names: list[str | bytes], dtype: str) -> Iterator[Activation]:
    """Writers of the activations ``names``; numbers go to those that take some, in order.

    Raises
    ------
    UnsupportedOperatorError : a name that ONNX does not have.
    """
    numbers = {key: list(body.attributes.get(f"activation_{key}", ())) for key in ("alpha", "beta")}
    for name in names:
        name = as_text(name)
        kind = _NAMES.get(name.lower())
        if kind is None:
            raise UnsupportedOperatorError(
                f"Node {body.node.name!r} ({body.node.op_type}) has the activation {name!r}.",
                hint=f"ONNX has {', '.join(_NAMES.values())}.",
            )
        defaults = _PLAIN.get(kind, _SCALED.get(kind, {}))
        given = {key: numbers[key].pop(0) if numbers[key] else value for key, value in defaults.items()}
        yield _writer(body, kind, given, dtype)


def _writer(body: Body, kind: str, given: dict[str, float], dtype: str) -> Activation:
    """Writer of one activation with its numbers ``given``."""
    if kind in _PLAIN:
        return lambda x: body.op(kind, x, **given)
    alpha, beta = (body.const(given[key], dtype) for key in ("alpha", "beta"))
    if kind == "Affine":
        return lambda x: body.op("Add", body.op("Mul", x, alpha), beta)
    return lambda x: body.op("Mul", body.op("Tanh", body.op("Mul", x, beta)), alpha)
