"""Operators of a decoder's step over rows of any number; each has a NumPy reference.

Rows are tokens: of one sequence (a prompt), of several (a batch), or both.  A row knows its sequence and its
position; keys and values of all sequences lie in pages of a pool, which a table per sequence names.

Pools: keys ``[pages, layers, kv_heads, page / 16, dim, 16]``, values ``[pages, layers, kv_heads, page,
dim]``.  Pools of int8 are ``[pages, layers, kv_heads, page / 16, dim + 4, 16]`` both: the bytes of 16 keys or
values as above, then their float32 scales, one per token and head: a page is all there is to copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.decoding.storage import Storage

KEYS = 16
"""Keys that lie beside each other in the pool."""
SQUARED_RELU = "relu2"
"""Activation that decoders alone have: ``max(x, 0)`` squared."""
SCALES = 4
"""Rows of KEYS bytes that the scales of as many tokens take."""


@dataclass(frozen=True)
class Linear:
    """``Y = f(X W^T + bias) + residual`` for X [rows, k] and a stored W [n, k].

    Parameters
    ----------
    activation : name in :data:`hetero_tvm.ops.activations.ACTIVATIONS`, or :data:`SQUARED_RELU`; None for
        none.
    gated : W is two matrices of n rows each, gate and up: ``Y = f(X G^T) * (X U^T)``.
    softcap : ``softcap * tanh(Y / softcap)`` comes last; 0 for none.
    limit : bound of a gated product's halves, the gate's from above and the other's on both sides, to which 1
        is added then: ``f(min(G, limit)) * (clip(U, -limit, limit) + 1)`` (gpt-oss); 0 for none.
    """

    n: int
    k: int
    storage: Storage = Storage("f32")
    bias: bool = False
    activation: str | None = None
    gated: bool = False
    residual: bool = False
    softcap: float = 0.0
    limit: float = 0.0

    def reference(
        self,
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        residual: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result in the dtype of ``x``; ``w`` as floats."""
        y = x @ w.T
        if bias is not None:
            y = y + bias
        known = {**ACTIVATIONS, SQUARED_RELU: lambda value: np.square(np.maximum(value, 0))}
        act = known[self.activation] if self.activation else (lambda value: value)
        if self.gated:
            gate, up = y[:, : self.n], y[:, self.n :]
            if self.limit:
                gate, up = np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit) + 1
            y = act(gate) * up
        else:
            y = act(y)
        if self.softcap:
            y = self.softcap * np.tanh(y / self.softcap)
        return y if residual is None else y + residual


@dataclass(frozen=True)
class Heads:
    """Heads of an attention, and the pool of their keys and values.

    Parameters
    ----------
    heads, kv_heads, dim : query heads, key heads, channels of each.
    layers, page : layers in the pool; keys in a page.
    cache : type of keys and values: ``float32``, ``float16``, or ``int8`` (``x ~ q * scale``).
    values : channels of a value; 0 where they are as many as a key's.
    room : key heads, and channels of each, that the pool has room for where other layers have more of them;
        None where all have the same.
    """

    heads: int
    kv_heads: int
    dim: int
    layers: int
    page: int = 64
    cache: str = "float32"
    values: int = 0
    room: tuple[int, int] | None = None

    @property
    def value_dim(self) -> int:
        """Channels of a value."""
        return self.values or self.dim

    @property
    def width(self) -> int:
        """Channels of queries, keys and values of a row."""
        return (self.heads + self.kv_heads) * self.dim + self.kv_heads * self.value_dim

    def pools(self, pages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the pools of keys and of values."""
        kv_heads, dim = self.room or (self.kv_heads, self.dim)
        values = dim if self.room else self.value_dim
        lead = (pages, self.layers, kv_heads)
        if self.cache == "int8":
            panels = (*lead, self.page // KEYS)
            return (*panels, dim + SCALES, KEYS), (*panels, values + SCALES, KEYS)
        return (*lead, self.page // KEYS, dim, KEYS), (*lead, self.page, values)


@dataclass(frozen=True)
class Append:
    """Queries of new rows, rotated; their keys (rotated) and values go into the pool.

    Parameters
    ----------
    rotated : channels of a head that are rotated (even; 0 for none), by the table ``rope`` of the step.
    table : channels of a position in that table where these are more than ``rotated``; else 0.
    norm_eps : epsilon of an RMS norm of each query and key head, with scales of their own; None for none.
    wide : that norm is one of all query heads, and one of all key heads, with a scale per channel.
    by_head : every head has scales of its own.
    centered, shifted : it is a layer norm; one with shifts, which follow the scales.
    norm_last : its scales come behind the rotation.
    norm_values : the values have an RMS norm as well, without scales.
    reads : there are queries alone, and nothing goes into the pool: the layer reads what another has there.
    clip : bound on both sides of queries, keys and values, where there are no norms; 0 for none.
    shared : channels at the beginning of every key that are the same for all heads (multi-head latent
        attention); 0 for none.  Operands in the place of QKV are then queries ``[rows, heads * dim]``, the
        rest of the keys beside the values, and the shared channels ``[rows, shared]``.
    """

    heads: Heads
    rotated: int
    rope: int = 0
    norm_eps: float | None = None
    wide: bool = False
    norm_last: bool = False
    shared: int = 0
    clip: float = 0.0
    table: int = 0
    by_head: bool = False
    centered: bool = False
    shifted: bool = False
    norm_values: bool = False
    reads: bool = False

    @property
    def scales(self) -> tuple[int, int]:
        """Numbers of the scales of queries and of keys."""
        h = self.heads
        return (h.heads * h.dim, h.kv_heads * h.dim) if self.wide or self.by_head else (h.dim, h.dim)


@dataclass(frozen=True)
class Growth:
    """Growth of scores with the position of a row (Llama 4, Ministral 3): they are multiplied by
    ``1 + share * log(1 + floor((position + ahead) / every))``.

    Parameters
    ----------
    every : positions after which they grow.
    """

    share: float
    every: int
    ahead: int = 0

    def reference(self, position: int) -> float:
        """The factor of a row."""
        return 1.0 + self.share * float(np.log1p((position + self.ahead) // self.every))


@dataclass(frozen=True)
class CachedAttention:
    """``softmax(cap(scale Q K^T)) V`` of each row over its sequence up to its own position.

    Parameters
    ----------
    window : keys that a row sees, its own included; 0 for all.
    chunk : positions of a chunk, where a row sees those of its own chunk alone; 0 for all.
    growth : of the scores by the position; None for none.
    softcap : ``softcap * tanh(scores / softcap)``; 0 for none.
    relative : distances for which a table ``[heads, relative + KEYS]`` of biases is an operand; 0 for none.
        The bias of the key ``d`` before a row is at ``relative - 1 - d``; what follows is not used.
    sinks : a score per head, which is an operand, takes part in the softmax and has no value (gpt-oss).
    """

    heads: Heads
    scale: float
    window: int = 0
    softcap: float = 0.0
    relative: int = 0
    sinks: bool = False
    chunk: int = 0
    growth: Growth | None = None

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        positions: np.ndarray,
        biases: np.ndarray | None = None,
        sinks: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result for one sequence: q [rows, heads * dim]; k, v [keys, kv_heads, dim]."""
        h = self.heads
        group = h.heads // h.kv_heads
        out = np.empty((len(q), h.heads, h.value_dim), q.dtype)
        for row, position in enumerate(positions):
            first = max(0, position + 1 - self.window) if self.window else 0
            first = max(first, position - position % self.chunk) if self.chunk else first
            grown = 1.0 if self.growth is None else self.growth.reference(int(position))
            for head in range(h.heads):
                keys = k[first : position + 1, head // group]
                scores = keys @ q.reshape(len(q), h.heads, h.dim)[row, head] * (self.scale * grown)
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                if biases is not None:
                    distances = position - np.arange(first, position + 1)
                    scores = scores + biases[head, self.relative - 1 - distances]
                lowest = -np.inf if sinks is None else sinks[head]
                top = max(scores.max(), lowest)
                p = np.exp(scores - top)
                out[row, head] = p / (p.sum() + np.exp(lowest - top)) @ v[first : position + 1, head // group]
        return out.reshape(len(q), -1)


@dataclass(frozen=True)
class Embed:
    """Rows of an embedding table [vocab, width], times ``scale``, plus a learned position where there is one.

    Parameters
    ----------
    storage : form of the table; ``packed``: the table is the packed weight of a :class:`Linear`.
    positions : rows of the table of positions; 0 for none.  ``offset`` is added to positions.
    lacking : tokens that the table lacks have its first row.
    """

    vocab: int
    width: int
    storage: Storage = Storage("f32")
    packed: bool = False
    scale: float = 1.0
    positions: int = 0
    offset: int = 0
    lacking: bool = False


@dataclass(frozen=True)
class RowNorm:
    """Layer or RMS norm of rows [rows, n].

    Parameters
    ----------
    centered, shifted : as of :class:`hetero_tvm.ops.normalization.Normalization`.
    residual : the normalised row is added to another.
    picked : only the rows that an index names are normalised.
    scaled : the result is multiplied by a number, which is an operand [1].
    """

    n: int
    eps: float
    centered: bool = False
    shifted: bool = False
    residual: bool = False
    picked: bool = False
    scaled: bool = False


@dataclass(frozen=True)
class LayerInputs:
    """Rows that layers have for themselves beside the stream: for each of ``layers``, ``width`` channels of X
    [rows, layers * width], normalised by their mean square and scaled, plus those of another operand."""

    layers: int
    width: int
    eps: float

    def reference(self, x: np.ndarray, scale: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The result."""
        parts = x.reshape(len(x), self.layers, self.width)
        parts = parts / np.sqrt((parts * parts).mean(-1, keepdims=True) + self.eps) * scale
        return parts.reshape(len(x), -1) + other


@dataclass(frozen=True)
class Multiply:
    """``Y = X * G`` for X [rows, width] and as many columns of G [rows, total], from ``first`` on."""

    width: int
    total: int
    first: int = 0

    def reference(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """The result."""
        return x * g[:, self.first : self.first + self.width]


@dataclass(frozen=True)
class Xielu:
    """xIELU (Huang and others, 2024) of X [rows, width]: ``a x x + b x`` above 0, else
    ``(exp(min(x, e)) - 1 - x) c + b x``, for an operand [4] of a, c, b and e."""

    width: int

    def reference(self, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The result."""
        above, below, slope, least = numbers
        curve = np.where(x > 0, above * x * x, (np.expm1(np.minimum(x, least)) - x) * below)
        return curve + slope * x


@dataclass(frozen=True)
class AppendSource:
    """Keys and values of the rows of a source (what a decoder attends to across), into the pool.

    The operand is ``[rows, 2 * kv_heads * dim]``: keys beside values.
    """

    heads: Heads


@dataclass(frozen=True)
class SourceAttention:
    """``softmax(scale Q K^T + bias) V`` among all rows of one source, in both directions.

    The operand QKV is ``[rows, 3 * heads * dim]``; the bias, where there is one, ``[heads, rows, rows]``, or
    ``[1, rows, rows]`` where it is shared by all heads.

    Parameters
    ----------
    longest : largest number of rows.
    """

    heads: int
    dim: int
    scale: float
    longest: int
    bias: bool = False
    shared: bool = False

    def reference(self, qkv: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """The result [rows, heads * dim]."""
        q, k, v = np.moveaxis(qkv.reshape(len(qkv), 3, self.heads, self.dim), 0, 2)
        scores = q @ k.swapaxes(1, 2) * self.scale
        if bias is not None:
            scores = scores + bias
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return np.moveaxis(p / p.sum(-1, keepdims=True) @ v, 0, 1).reshape(len(qkv), -1)


@dataclass(frozen=True)
class Rotate:
    """Queries and keys of all rows of one source, rotated; values as they are.

    Operands are QKV ``[rows, 3 * heads * dim]``, cosines and sines ``[longest, dim]`` by the number of a row
    (half of the channels each), and scales ``[dim]`` of queries and of keys where there are norms.

    Parameters
    ----------
    longest : largest number of rows.
    norm_eps : epsilon of an RMS norm of each query and key head before the rotation; None for none.
    """

    heads: int
    dim: int
    longest: int
    norm_eps: float | None = None

    def reference(self, qkv: np.ndarray, table: np.ndarray, *scales: np.ndarray) -> np.ndarray:
        """The result, like QKV."""
        parts = np.moveaxis(qkv.reshape(len(qkv), 3, self.heads, self.dim), 1, 0).copy()
        cos, sin = np.split(table[: len(qkv), None], 2, axis=-1)
        for number in range(2):
            part = parts[number]
            if self.norm_eps is not None:
                mean = (part * part).mean(-1, keepdims=True)
                part = part / np.sqrt(mean + self.norm_eps) * scales[number]
            low, high = np.split(part, 2, axis=-1)
            parts[number] = np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)
        return np.moveaxis(parts, 0, 1).reshape(len(qkv), -1)


@dataclass(frozen=True)
class RelativeBias:
    """Bias ``[heads, rows, rows]`` of each pair of rows from a table ``[heads, 2 * longest - 1]`` by their
    distance: that of query i and key j is at ``longest - 1 + j - i``.

    Its rows are counted by the operand ``rows [rows]`` int32, whose values are not used.
    """

    heads: int
    longest: int

    def reference(self, table: np.ndarray, rows: int) -> np.ndarray:
        """The result."""
        places = np.arange(rows)
        return table[:, self.longest - 1 + places[None, :] - places[:, None]]


@dataclass(frozen=True)
class Unfold:
    """Neighbouring rows side by side, zeros outside: X [frames, width] gives Y [frames / stride, size *
    width], for a convolution over rows as a product.

    Parameters
    ----------
    size, stride : rows side by side (odd; the row itself is in the middle); rows from one to the next.
    """

    width: int
    size: int = 3
    stride: int = 1

    def reference(self, x: np.ndarray) -> np.ndarray:
        """The result."""
        around = self.size // 2
        padded = np.pad(x, ((around, around), (0, 0)))
        rows = range(0, len(x), self.stride)
        return np.stack([padded[row : row + self.size].reshape(-1) for row in rows])
