"""Checkpoints whose weights are quantized already: GPTQ, AWQ, compressed-tensors, FP8 and MXFP4.

The first three hold ``w = (q - zero) * scale`` with several integers in an int32, and differ in where these
lie; K is the input's width, N the result's, ``b`` the bits, ``p = 32 / b``:

=====================  =====================  =========================  ==================================
method                 integers               zeros                      order in an int32, low bits first
=====================  =====================  =========================  ==================================
gptq                   qweight [K / p, N]     qzeros [groups, N / p]     neighbours; zeros less 1 (v1)
awq (gemm)             qweight [K, N / p]     qzeros [groups, N / p]     columns 0 2 4 6 1 3 5 7
compressed-tensors     weight_packed          none: 2 ** (b - 1)         neighbours
(pack-quantized)       [N, K / p]
=====================  =====================  =========================  ==================================

Scales are [groups, N] in the first two, [N, groups] in the last.  They become :class:`QuantizedWeight`
without any rounding where their groups are multiples of 32, 64 or 128, else float32, which the build stores
as its precision says; so do columns in GPTQ's order of activations, which no group of neighbours has.

Weights of 8 bits that nothing packs (``fp8`` of transformers, and ``float-quantized``, ``int-quantized`` and
``naive-quantized`` of compressed-tensors) are ``weight * scale``, with a scale for all, each row, group or
block; they become float32.  Rounding of activations, which such a checkpoint may ask for, is left out.

Experts in MXFP4 (gpt-oss) are ``NAME_blocks [experts, N, groups, 16]``, two numbers of 4 bits in a byte, the
first in its lower half, and ``NAME_scales [experts, N, groups]``, exponents of 2 plus 127, of 32 neighbours
each; they become float32 [experts, K, N], which is how such a model's floats lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoint import INTEGERS, SafetensorsFolder
from hetero_tvm.language.decoder import Names
from hetero_tvm.ops.decoding.storage import GROUPS, QuantizedWeight, Storage, Weight

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_BITS = {4: "int4", 8: "int8"}
_PLAIN = ("float-quantized", "int-quantized", "naive-quantized")
"""Formats of compressed-tensors whose weights are not packed."""
_SCALES = ("weight_scale_inv", "weight_scale")
_BLOCK = (128, 128)
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Numbers of 4 bits of MXFP4."""


class PackedFolder(SafetensorsFolder):
    """A folder of transformers whose ``config.json`` has a ``quantization_config``.

    Raises
    ------
    ModelError : a method or a form of it that cannot be read; lists all that stands against it.
    """

    _types = {**SafetensorsFolder._types, **INTEGERS}

    def __init__(self, folder: Path):
        super().__init__(folder)
        plan = dict(self.config["quantization_config"])
        self.config = {name: value for name, value in self.config.items() if name != "quantization_config"}
        self._method = str(plan.get("quant_method", "of an unknown name"))
        self._block = plan.get("weight_block_size") or _BLOCK
        self._bits, self._group, self._symmetric, problems = _read_plan(self._method, plan)
        if problems:
            raise ModelError(
                f"the weights are quantized by {self._method}, in a form that cannot be read",
                problems=problems,
                hint="build from the float checkpoint with --precision int8 or int4, or from a GGUF file",
            )
        self._integers_part = "weight_packed" if self._method == "compressed-tensors" else "qweight"
        self._zero_offset = 1 if self._method == "gptq" and plan.get("checkpoint_format") != "gptq_v2" else 0

    def names(self, names: Names) -> Names:
        """The names as they are."""
        if names.transposed:
            raise ModelError(
                f"{self.folder} holds matrices the other way round (GPT-2), quantized by {self._method}",
                hint="build from the float checkpoint with --precision int4",
            )
        return names

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or self._packed(name) in self._tensors

    def matrix(self, name: str) -> Weight:
        """A matrix [N, K]: floats, or integers with scales."""
        base = name.removesuffix(".weight")
        scale = next((f"{base}.{part}" for part in _SCALES if f"{base}.{part}" in self._tensors), None)
        plain = name in self._tensors
        if not name.endswith(".weight") or (plain and scale is None):
            return super().matrix(name)
        try:
            return self._scaled(name, scale) if plain and scale else self._unpacked(base)
        except (ValueError, IndexError) as error:
            raise ModelError(f"the parts of {base} in {self.folder} do not fit together: {error}") from error

    def array(self, name: str) -> np.ndarray:
        """A tensor as float32; :class:`ModelError` when it is not there."""
        value = self.matrix(name)
        return value.dequantized() if isinstance(value, QuantizedWeight) else np.asarray(value, np.float32)

    def _packed(self, name: str) -> str:
        return f"{name.removesuffix('.weight')}.{self._integers_part}"

    def _part(self, base: str, part: str) -> np.ndarray:
        name = f"{base}.{part}"
        if name not in self._tensors:
            raise ModelError(f"{self.folder} has no tensor {name!r}")
        return self._raw(name)

    def _scaled(self, name: str, scale: str) -> np.ndarray:
        """A weight of 8 bits times its scales [1], [N], [N, groups] or [blocks, blocks], as float32."""
        weight, scales = self._raw(name).astype(np.float32), self._raw(scale).astype(np.float32)
        scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
        (n, k), (rows, columns) = weight.shape, scales.shape
        if (rows, columns) == (-(-n // self._block[0]), -(-k // self._block[1])):
            high, wide = self._block
        else:
            high, wide = n // rows, k // columns
            if (rows * high, columns * wide) != (n, k):
                raise ValueError(f"scales {list(scales.shape)} of weights {list(weight.shape)}")
        return weight * np.repeat(np.repeat(scales, high, 0)[:n], wide, 1)[:, :k]

    def _unpacked(self, base: str) -> Weight:
        bits = self._bits
        packed = self._part(base, self._integers_part)
        if self._method == "compressed-tensors":
            n, k = (int(extent) for extent in self._part(base, "weight_shape"))
            q = _integers(packed, bits)[:n, :k]
            scale = self._part(base, "weight_scale")
            return _weight(bits, self._group or k, q, scale, None, None)
        scale = self._part(base, "scales").T
        zeros = _integers(self._part(base, "qzeros"), bits)
        if self._method == "awq":
            q, zeros = _in_order(_integers(packed, bits)).T, _in_order(zeros)
        else:
            q = _integers(packed.T, bits)
        zero = (zeros.T[: len(q)] + self._zero_offset) & (2**bits - 1)
        if self._symmetric and (zero == 1 << (bits - 1)).all():
            zero = None
        order = self._part(base, "g_idx") if f"{base}.g_idx" in self._tensors else None
        return _weight(bits, self._group or q.shape[1], q, scale, zero, order)


class Mxfp4Folder(SafetensorsFolder):
    """A folder of transformers whose experts are in MXFP4."""

    _types = {**SafetensorsFolder._types, "U8": np.uint8}

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.config = {name: value for name, value in self.config.items() if name != "quantization_config"}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or f"{name}_blocks" in self._tensors

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as float32, or float16 where it is stored so."""
        if name in self._tensors or f"{name}_blocks" not in self._tensors:
            return super().matrix(name)
        blocks = self._raw(f"{name}_blocks")
        scales = self._raw(f"{name}_scales") if f"{name}_scales" in self._tensors else None
        if scales is None or blocks.ndim != 4 or blocks.shape[:3] != scales.shape or blocks.shape[3] != 16:
            shape = None if scales is None else list(scales.shape)
            raise ModelError(
                f"the parts of {name} in {self.folder} do not fit together: blocks {list(blocks.shape)}, "
                f"scales {shape}"
            )
        made = np.empty((blocks.shape[0], 32 * blocks.shape[2], blocks.shape[1]), np.float32)
        for one, packed, exponents in zip(made, blocks, scales, strict=True):
            numbers = _FP4[np.stack([packed & 15, packed >> 4], -1)].reshape(*packed.shape[:2], 32)
            factors = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
            one[:] = (numbers * factors[..., None]).reshape(len(packed), -1).T
        return made


def _read_plan(method: str, plan: Mapping[str, Any]) -> tuple[int, int, bool, list[str]]:
    """Bits, columns of a group (0: all), whether groups have no zero of their own, and what is unknown."""
    problems = []
    if method == "fp8":
        if plan.get("fmt", "e4m3") != "e4m3":
            problems.append(f"fmt is {plan['fmt']!r}, known is 'e4m3'")
        return 8, 0, True, problems
    if method == "compressed-tensors" and plan.get("format") in _PLAIN:
        weights = _weights_of(plan)
        if any(w.get("num_bits") != 8 or w.get("symmetric") is not True for w in weights):
            problems.append("weights have other than 8 bits, or zeros of their own")
        return 8, 0, True, problems
    if method == "compressed-tensors":
        if plan.get("format") != "pack-quantized":
            known = ", ".join(("pack-quantized", *_PLAIN))
            problems.append(f"format is {plan.get('format')!r}, known are {known}")
        names = ("num_bits", "group_size", "symmetric", "actorder")
        found = {tuple(map(w.get, names)) for w in _weights_of(plan)}
        bits, group, symmetric, order = found.pop() if len(found) == 1 else (None,) * 4
        if order not in (None, "static", "weight"):  # these two leave columns where they were
            problems.append(f"columns are in the order {order!r}")
        if symmetric is not True:
            problems.append("groups have zeros of their own, or differ among layers")
    elif method in ("gptq", "awq"):
        bits, group = plan.get("bits", plan.get("w_bit")), plan.get("group_size", plan.get("q_group_size"))
        symmetric = plan.get("sym") is True if method == "gptq" else plan.get("zero_point") is False
        version = str(plan.get("version", "gemm")).lower()
        if method == "awq" and version != "gemm":
            problems.append(f"version is {version!r}, known is 'gemm'")
    else:
        return 0, 0, False, ["known methods: gptq, awq, compressed-tensors, fp8, mxfp4, bitsandbytes"]
    known = (4,) if method == "awq" else tuple(_BITS)
    if bits not in known:
        problems.append(f"weights have {bits} bits, known are {' and '.join(map(str, known))}")
    group = -1 if group is None else group
    if not isinstance(group, int) or isinstance(group, bool) or (group < 1 and group != -1):
        problems.append(f"group_size is {group!r}")
        group = -1
    return int(bits) if bits in known else 0, max(group, 0), bool(symmetric), problems


def _weights_of(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Options of the weights of each group of layers, as compressed-tensors states them."""
    groups = plan.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [scheme.get("weights") for scheme in schemes if isinstance(scheme, Mapping)]
    return [one for one in weights if isinstance(one, Mapping)]


def _integers(packed: np.ndarray, bits: int) -> np.ndarray:
    """uint8 of the last axis of int32, low bits first: [.., X] -> [.., X * 32 / bits]."""
    words = np.ascontiguousarray(packed, np.int32).view(np.uint32)[..., None]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return ((words >> shifts) & np.uint32(2**bits - 1)).astype(np.uint8).reshape(*packed.shape[:-1], -1)


def _in_order(columns: np.ndarray) -> np.ndarray:
    """Columns of AWQ in their places."""
    if columns.shape[1] % 8:
        raise ValueError(f"{columns.shape[1]} columns")
    return columns.reshape(len(columns), -1, 8)[:, :, np.argsort(_AWQ_COLUMNS)].reshape(columns.shape)


def _weight(
    bits: int,
    size: int,
    q: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    order: np.ndarray | None,
) -> Weight:
    """The weight of integers [N, K], scales and zeros [N, groups of ``size`` columns].

    ``order`` is the group of each column; None: neighbours share one.
    """
    n, k = q.shape
    groups = -(-k // size)
    if not k or scale.shape != (n, groups) or (zero is not None and zero.shape != scale.shape):
        raise ValueError(f"integers {list(q.shape)}, scales {list(scale.shape)}, groups of {size}")
    plain = np.arange(k) // size
    order = plain if order is None else order.astype(np.int64)
    if order.shape != (k,) or order.min() < 0 or order.max() >= groups:
        raise ValueError("columns of groups that do not exist")
    half = scale.astype(np.float16)
    kept = next((group for group in sorted(GROUPS, reverse=True) if size % group == 0), None)
    exact = scale.astype(np.float32)
    if kept is None or (order != plain).any() or (half.astype(np.float32) != exact).any():
        middle = 1 << (bits - 1) if zero is None else zero[:, order].astype(np.float32)
        return (q.astype(np.float32) - middle) * exact[:, order]
    wide = size // kept
    storage = Storage.named(_BITS[bits], kept, zero is not None)
    pieces = -(-k // kept)
    return QuantizedWeight(
        storage,
        np.ascontiguousarray(q),
        np.repeat(half, wide, 1)[:, :pieces].copy(),
        None if zero is None else np.repeat(zero, wide, 1)[:, :pieces].copy(),
    )
