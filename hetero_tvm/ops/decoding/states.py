"""Contracts of layers that keep a state of each text, as large for long texts as for short ones, in the place
of keys and values.

States of all texts are rows of one pool ``[slots, pool]`` float32.  An operand ``slots`` names the row of
each sequence of a step, and ``place [1]`` the number with which the layer's part of it begins.  Rows of a
sequence come in their order, behind one another; at position 0 the state is zeros, whatever the pool has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Columns:
    """Neighbouring columns of an operand.

    Parameters
    ----------
    total, first : columns that it has; the first of them.
    """

    total: int
    first: int = 0


@dataclass(frozen=True)
class ShortConvolution:
    """``Y = f(sum_t W[t] * X[row - size + 1 + t] + bias)``, each channel by itself, over the rows of a
    sequence.

    The state is a ring ``[size - 1, width]``: the row of position ``p`` is at ``p mod (size - 1)``.

    Parameters
    ----------
    width, size : channels; rows that a result is made of, 2 or more.
    x : columns of the operand that are X.
    pool : numbers of a sequence in the pool.
    activation : name of f; None for none.
    gated : X is ``B * X``, and Y is ``C * Y``: the operand is B, C and X beside each other (LFM2).
    """

    width: int
    size: int
    x: Columns
    pool: int
    bias: bool = False
    activation: str | None = None
    gated: bool = False

    @property
    def state(self) -> int:
        """Numbers of a layer's state."""
        return (self.size - 1) * self.width

    def reference(self, rows: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """The result of the operand's rows of one whole sequence, w [size, width]; f is SiLU where there is
        one."""
        first, width = self.x.first, self.width
        x = rows[:, first : first + width]
        if self.gated:
            x = x * rows[:, first + 2 * width : first + 3 * width]
        padded = np.pad(x, ((self.size - 1, 0), (0, 0)))
        y = sum(padded[t : t + len(x)] * w[t] for t in range(self.size))
        y = y if bias is None else y + bias
        y = y / (1 + np.exp(-y)) if self.activation else y
        return y * rows[:, first + width : first + 2 * width] if self.gated else y


@dataclass(frozen=True)
class Scan:
    """Selective scan of a state ``h`` (Mamba): with the step ``d = softplus(steps + bias)``,
    ``h <- exp(d * a) * h + d * x * B`` and ``Y = sum(C * h) + skip * x``.

    The state of a channel is ``size`` numbers, ``[heads, size, dim]`` of all.  Operands of rows are X, B, C,
    steps and, where there is one, the gate; the others are ``a``, ``skip`` and the bias.

    Parameters
    ----------
    heads, dim, size : heads; channels of each; numbers of a channel's state.
    x, b, c, steps : columns of the operands; B and C are ``[groups, size]`` each.
    pool : numbers of a sequence in the pool.
    groups : of heads that have one B and one C.
    by_channel : steps and skips are of channels, ``a`` is ``[size, heads * dim]``, and there is no bias;
        otherwise all are of heads (Mamba 2).
    gate : columns; Y is multiplied by the SiLU of it.  None for no gate.
    """

    heads: int
    dim: int
    size: int
    x: Columns
    b: Columns
    c: Columns
    steps: Columns
    pool: int
    groups: int = 1
    by_channel: bool = False
    gate: Columns | None = None

    @property
    def state(self) -> int:
        """Numbers of a layer's state."""
        return self.heads * self.size * self.dim

    def reference(
        self,
        x: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        steps: np.ndarray,
        a: np.ndarray,
        skip: np.ndarray,
        bias: np.ndarray | None = None,
        gate: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result [rows, heads * dim] of the operands' rows of one whole sequence."""
        h, width = self, self.heads * self.dim
        few = width if h.by_channel else h.heads
        x = _taken(x, h.x, width).reshape(-1, h.heads, h.dim)
        raw = _taken(steps, h.steps, few)
        step = np.logaddexp(0, raw if bias is None else raw + bias).reshape(len(x), h.heads, -1)
        b, c = (
            np.repeat(
                _taken(part, columns, h.groups * h.size).reshape(-1, h.groups, h.size),
                h.heads // h.groups,
                axis=1,
            )
            for part, columns in ((b, h.b), (c, h.c))
        )
        rate = a.reshape(h.size, h.heads, -1).swapaxes(0, 1) if h.by_channel else a.reshape(h.heads, 1, 1)
        state = np.zeros((h.heads, h.size, h.dim), x.dtype)
        y = np.empty_like(x)
        for row in range(len(x)):
            state = np.exp(step[row][:, None] * rate) * state
            state = state + (step[row] * x[row])[:, None] * b[row][:, :, None]
            y[row] = (c[row][:, :, None] * state).sum(1) + skip.reshape(h.heads, -1) * x[row]
        y = y.reshape(len(x), width)
        if gate is not None and h.gate is not None:
            z = _taken(gate, h.gate, width)
            y = y * (z / (1 + np.exp(-z)))
        return y


def _taken(rows: np.ndarray, columns: Columns, width: int) -> np.ndarray:
    return rows[:, columns.first : columns.first + width]


@dataclass(frozen=True)
class DeltaScan:
    """Gated delta rule (Yang and others, 2024): with the length of queries and keys 1, the decay
    ``g = exp(a * softplus(steps + bias))`` and the share ``s = sigmoid(shares)``, a head's state S
    ``[dim, values]`` becomes ``g S + k (s (v - k g S))``, and ``Y = q S / sqrt(dim)``.

    Operands of rows are queries, keys and values beside each other, shares, steps; the others are ``a`` and
    the bias, of heads.

    Parameters
    ----------
    heads, key_heads, dim, values : heads of values; of queries and keys; channels of a key, and of a value.
    shares, steps : columns of the operands.
    pool : numbers of a sequence in the pool.
    eps : beside the squares of a length.
    reach : factor of the shares; with 2 the state may turn a value around (OLMo Hybrid).
    by_channel : steps, ``a`` and the bias are of the channels of all keys, and so is the decay (Kimi).
    """

    heads: int
    key_heads: int
    dim: int
    values: int
    shares: Columns
    steps: Columns
    pool: int
    eps: float = 1e-6
    reach: float = 1.0
    by_channel: bool = False

    @property
    def decays(self) -> int:
        """Number of decays of a row."""
        return self.heads * (self.dim if self.by_channel else 1)

    @property
    def width(self) -> int:
        """Columns of the operand of queries, keys and values."""
        return 2 * self.key_heads * self.dim + self.heads * self.values

    @property
    def state(self) -> int:
        """Numbers of a layer's state."""
        return self.heads * self.dim * self.values

    def reference(
        self, rows: np.ndarray, shares: np.ndarray, steps: np.ndarray, a: np.ndarray, bias: np.ndarray
    ) -> np.ndarray:
        """The result [rows, heads * values] of the operands' rows of one whole sequence."""
        keys = self.key_heads * self.dim
        parts = [rows[:, :keys], rows[:, keys : 2 * keys]]
        q, k = (part.reshape(len(rows), self.key_heads, self.dim) for part in parts)
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + self.eps) for part in (q, k))
        q, k = (np.repeat(part, self.heads // self.key_heads, axis=1) for part in (q, k))
        v = rows[:, 2 * keys :].reshape(len(rows), self.heads, self.values)
        share = self.reach / (1 + np.exp(-_taken(shares, self.shares, self.heads)))
        decay = np.exp(a * np.logaddexp(0, _taken(steps, self.steps, self.decays) + bias))
        decay = decay.reshape(len(rows), self.heads, -1, 1)
        state = np.zeros((self.heads, self.dim, self.values), rows.dtype)
        y = np.empty_like(v)
        for row in range(len(rows)):
            state = state * decay[row]
            lacks = v[row] - np.einsum("hk,hkv->hv", k[row], state)
            state = state + np.einsum("hk,hv->hkv", k[row], lacks * share[row][:, None])
            y[row] = np.einsum("hk,hkv->hv", q[row], state) * self.dim**-0.5
        return y.reshape(len(rows), -1)


@dataclass(frozen=True)
class GatedNorm:
    """RMS norm of ``X * f(gate)``, each of ``groups`` of neighbouring channels by itself.

    Operands are X [rows, width], the rows of the gate, scales [width].

    Parameters
    ----------
    before : X is normalised before it is multiplied by f of the gate.
    sigmoid : f is the sigmoid, else the SiLU.
    """

    width: int
    groups: int
    eps: float
    gate: Columns
    before: bool = False
    sigmoid: bool = False

    def reference(self, x: np.ndarray, gate: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The result."""
        z = _taken(gate, self.gate, self.width)
        z = (1 if self.sigmoid else z) / (1 + np.exp(-z))
        y = (x if self.before else x * z).reshape(len(x), self.groups, -1)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + self.eps)
        y = y.reshape(len(x), -1) * scale
        return y * z if self.before else y


@dataclass(frozen=True)
class Gate:
    """``Y = X * sigmoid(gate)`` for X and a gate [rows, width]."""

    width: int

    def reference(self, x: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """The result."""
        return x / (1 + np.exp(-gate))
