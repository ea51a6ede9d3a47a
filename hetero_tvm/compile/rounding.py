"""Errors that rounding brings to each product of a model alone.

Products are those of the optimized float32 model, as the rules of the precisions meet them: with epilogues,
merged projections, gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.compile.fault import every_result
from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import TENSORS, Matmul
from hetero_tvm.relax_passes.fusions.integers.dynamic_quantization import dynamic_form, dynamic_weights
from hetero_tvm.relax_passes.fusions.integers.stored_weights import (
    LEAST_WEIGHTS,
    fitting_storage,
    stored_form,
    stored_weights,
)
from hetero_tvm.relax_passes.rewriting.graph import array_of

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Shares of the range of X that SmoothQuant moves into the weights, of which each product takes its best."""
_ROWS = 256
"""Rows of X that are judged, taken evenly from all samples."""

Samples = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Layer:
    """One product: its source nodes, and the relative error that rounding brings to its result alone."""

    nodes: tuple[str, ...]
    error: float


@dataclass
class Product:
    """A product with constant weights, and rows that it met.

    Attributes
    ----------
    x : float32 [rows, k]; residual operands are not kept: they add the same to the exact and the rounded.
    largest : float32 [k], the largest magnitude of each column of X over all samples.
    """

    nodes: tuple[str, ...]
    op: Matmul | GatedMatmul
    x: np.ndarray
    largest: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None

    def error(self, kind: Any, weights: Sequence[np.ndarray]) -> float:
        """Relative distance of what ``kind``, the rounded form of :attr:`op`, gives from the exact result."""
        extra = [] if self.bias is None else [self.bias]
        exact = self.op.reference(self.x, self.w, *extra)
        size = float(np.linalg.norm(exact)) or 1.0
        return float(np.linalg.norm(kind.reference(self.x, *weights, *extra) - exact)) / size


def products_of(built: BuiltModel, samples: Samples) -> list[Product]:
    """Products of a float32 model with constant weights, and rows of what they met on all samples."""
    found: dict[str, Product] = {}
    per_sample = max(1, _ROWS // len(samples))
    rows: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        optimized = built.optimized
        for binding, op, values in every_result(optimized, built.choices, sample):
            if not isinstance(op, Matmul | GatedMatmul):
                continue
            fields = binding.value.args[1].fields
            w = array_of(fields[1])
            if w is None:
                continue
            name = binding.var.name
            x = values[fields[0]] if isinstance(fields[0], relax.Var) else fields[0].value.numpy()
            x = np.asarray(x, np.float32).reshape(-1, op.k)
            largest = np.abs(np.where(np.isfinite(x), x, 0)).max(0, initial=0)
            if name not in found:
                nodes = optimized.sources.get(name, (name,))
                found[name] = Product(nodes, op, x, largest, np.asarray(w, np.float32), _bias(op, fields))
            found[name].largest = np.maximum(found[name].largest, largest)
            rows.setdefault(name, []).append(x[:: max(1, -(-len(x) // per_sample))].copy())
    for name, product in found.items():
        product.x = np.concatenate(rows[name])
        product.op = _alone(product.op, len(product.x))
    return list(found.values())


def _bias(op: Matmul | GatedMatmul, fields: Sequence[Any]) -> np.ndarray | None:
    """The bias that comes first behind the product."""
    has = op.biased if isinstance(op, GatedMatmul) else op.epilogue[:1] == ("bias",)
    return np.asarray(array_of(fields[2]), np.float32) if has else None


def _alone(op: Matmul | GatedMatmul, rows: int) -> Matmul | GatedMatmul:
    """The product of ``rows`` rows with its bias and activation, as far as no other tensor joins in."""
    if isinstance(op, GatedMatmul):
        return GatedMatmul((rows,), op.n, op.k, op.activation, op.biased)
    steps = op.epilogue
    for index, step in enumerate(steps):
        if step in TENSORS or (step == "bias" and index):
            steps = steps[:index]
            break
    return Matmul((rows,), op.n, op.k, steps)


def sorted_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Layers, the most sensitive first."""
    return tuple(sorted(layers, key=lambda layer: -layer.error))


def dynamic_layers(products: Sequence[Product], pairs_safe: int) -> tuple[Layer, ...]:
    """Errors by 8-bit weights and rows of 8 bits."""
    layers = []
    for product in products:
        kind = dynamic_form(product.op, pairs_safe)
        layers.append(Layer(product.nodes, product.error(kind, dynamic_weights(product.w, kind))))
    return sorted_layers(layers)


def stored_layers(products: Sequence[Product], storage: Storage) -> tuple[Layer, ...]:
    """Errors by weights in ``storage`` alone, of the products that can have them."""
    layers = []
    for product in products:
        fitting = fitting_storage(storage, product.op.k)
        if fitting is None or product.w.size < LEAST_WEIGHTS:
            continue
        kind = stored_form(product.op, fitting, 0)
        layers.append(Layer(product.nodes, product.error(kind, stored_weights(product.w, fitting))))
    return sorted_layers(layers)


def smoothed_layers(
    products: Sequence[Product], pairs_safe: int
) -> tuple[tuple[Layer, ...], dict[str, np.ndarray]]:
    """Errors by 8 bits with X smoothed where that helps, and the factors by source node.

    ``factor[k] = max|X[:, k]| ** alpha / max|W[k]| ** (1 - alpha)`` (Xiao et al., "SmoothQuant", 2023), over
    their geometric mean.  Every product tries :data:`ALPHAS`, and no factors, on its own rows.
    """
    layers, factors = [], {}
    for product in products:
        plain = dynamic_form(product.op, pairs_safe)
        least = product.error(plain, dynamic_weights(product.w, plain))
        kind = dynamic_form(product.op, pairs_safe, smoothed=True)
        for alpha in ALPHAS:
            tried = smoothing_factors(product.largest, product.w, alpha)
            error = product.error(kind, dynamic_weights(product.w, kind, tried))
            if error < 0.98 * least:
                least, factors[product.nodes[-1]] = error, tried
        layers.append(Layer(product.nodes, least))
    return sorted_layers(layers), factors


def smoothing_factors(largest: np.ndarray, w: np.ndarray, alpha: float) -> np.ndarray:
    """Vector that X [rows, k] is divided by and the rows of W [k, n] are multiplied with, float32 [k]."""
    rows = np.abs(w).max(1)
    live = (largest > 0) & (rows > 0)
    raw = np.where(live, largest, 1.0) ** alpha / np.where(live, rows, 1.0) ** (1 - alpha)
    mean = np.exp(np.log(raw[live]).mean()) if live.any() else 1.0
    return np.where(live, np.clip(raw / mean, 1e-3, 1e3), 1.0).astype(np.float32)
