"""Checkpoints whose weights are quantized already, as transformers reads them: integers, FP8 and FP4.

Packed integers hold ``w = (q - zero) * scale`` with several of them in an int32, and differ in where these
lie; K is the input's width, N the result's, ``b`` the bits, ``p = 32 / b``:

=====================  =====================  =========================  ==================================
method                 integers               zeros                      order in an int32, low bits first
=====================  =====================  =========================  ==================================
gptq                   qweight [K / p, N]     qzeros [groups, N / p]     neighbours; zeros less 1 (v1)
awq (gemm)             qweight [K, N / p]     qzeros [groups, N / p]     columns 0 2 4 6 1 3 5 7
compressed-tensors     weight_packed          weight_zero_point          neighbours
(pack-quantized)       [N, K / p]             [N / p, groups], if any
=====================  =====================  =========================  ==================================

AutoRound writes the first or the second.  Scales are [groups, N] in these, [N, groups] in the last.  They
become :class:`QuantizedWeight` without any rounding where their groups are multiples of 32, 64 or 128, else
float32, which the build stores as its precision says; so do columns in GPTQ's order of activations, which no
group of neighbours has.

Weights of 8 bits that nothing packs (``fp8``, ``fbgemm_fp8`` and ``mxfp8`` of transformers, FP8 of ModelOpt
and of Quark, its int8, ``float-quantized``, ``int-quantized`` and ``naive-quantized`` of compressed-tensors)
are ``(weight - zero) * scale``, with a scale for all, each row, group or block; scales in bytes are exponents
of 2 plus 127.  They become float32.  Rounding of activations, which such a checkpoint may ask for, is left
out.

Two numbers of 4 bits (E2M1) in a byte, the first in its lower half, have a scale for each 16 neighbours in
FP8 and one more for all (NVFP4: compressed-tensors divides by it, ModelOpt multiplies), or an exponent for
each 32 (MXFP4).  They become float32 as well.

BitNet's weights are -1, 0 or 1 times one scale, four in a byte, and become float32.

Experts in MXFP4 (gpt-oss) are ``NAME_blocks [experts, N, groups, 16]`` and ``NAME_scales [experts, N,
groups]``; they become float32 [experts, K, N], which is how such a model's floats lie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import INTEGERS, SafetensorsFolder, read_json
from hetero_tvm.language.checkpoints.plans import BITS, Form, read_plan
from hetero_tvm.language.families.decoder import Names
from hetero_tvm.ops.decoding.storage import GROUPS, QuantizedWeight, Storage, Weight

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_SCALES = ("weight_scale_inv", "weight_scale")
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Numbers of 4 bits of MXFP4."""


class PackedFolder(SafetensorsFolder):
    """A folder of transformers whose ``config.json`` has a ``quantization_config``.

    Raises
    ------
    ModelError : a method or a form of it that cannot be read; lists all that stands against it.
    """

    _types = {**SafetensorsFolder._types, **INTEGERS, "U8": np.uint8, "F8_E8M0": ml_dtypes.float8_e8m0fnu}

    def __init__(self, folder: Path):
        super().__init__(folder)
        config = self.config.get("quantization_config") or modelopt_config(folder)
        self._plan = read_plan(dict(config))
        self.config = {name: value for name, value in self.config.items() if name != "quantization_config"}
        self._method = self._plan.method
        if self._plan.problems:
            raise ModelError(
                f"the weights are quantized by {self._method}, in a form that cannot be read",
                problems=list(self._plan.problems),
                hint="build from the float checkpoint with --precision int8 or int4, or from a GGUF file",
            )
        packs = self._plan.layout in ("gptq", "awq")
        self._integers_part = "qweight" if packs else "weight_packed"

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
            if plain and self._tensors[name][1] in ("U8", *INTEGERS):
                raise ModelError(f"{name} in {self.folder} has integers without scales")
            return super().matrix(name)
        stored = name if plain else self._packed(name)
        try:
            if stored in self._tensors and self._tensors[stored][1] == "U8" and scale:
                if self._plan.layout.startswith("ternary"):
                    return self._ternary(stored, scale)
                return self._fours(base, stored, scale)
            return self._scaled(base, scale) if plain and scale else self._unpacked(base)
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

    def _factors(self, name: str) -> np.ndarray:
        """Scales as float32; bytes are exponents."""
        scales = self._raw(name)
        if scales.dtype == np.uint8:
            return np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        return scales.astype(np.float32)

    def _scaled(self, base: str, scale: str) -> np.ndarray:
        """A weight of 8 bits times its scales [1], [N], [N, groups] or [blocks, blocks], as float32."""
        weight, scales = self._raw(f"{base}.weight").astype(np.float32), self._factors(scale)
        scales = _grid(scales, weight.shape, self._plan.block)
        zero = f"{base}.weight_zero_point"
        if zero in self._tensors and self._raw(zero).any():
            weight = weight - _grid(self._raw(zero).astype(np.float32), weight.shape, self._plan.block)
        return weight * scales

    def _fours(self, base: str, stored: str, scale: str) -> np.ndarray:
        """A weight of two numbers in a byte, [N, K / 2], times its scales [N, groups], as float32."""
        packed, scales = self._raw(stored), self._factors(scale)
        numbers = _FP4[np.stack([packed & 15, packed >> 4], -1)].reshape(len(packed), -1)
        divisor, factor = f"{base}.weight_global_scale", f"{base}.weight_scale_2"
        if divisor in self._tensors:
            scales = scales / self._factors(divisor).reshape(())
        elif factor in self._tensors:
            scales = scales * self._factors(factor).reshape(())
        return numbers * _grid(scales, numbers.shape, (1, 16))

    def _ternary(self, stored: str, scale: str) -> np.ndarray:
        """A weight of four numbers in a byte, [N / 4, K]: the first quarter of the rows lies lowest."""
        packed, factor = self._raw(stored), self._factors(scale).reshape(())
        numbers = np.concatenate([(packed >> shift) & 3 for shift in (0, 2, 4, 6)]).astype(np.float32) - 1
        return numbers / factor if self._plan.layout == "ternary divided" else numbers * factor

    def _unpacked(self, base: str) -> Weight:
        packed = self._part(base, self._integers_part)
        if self._plan.layout == "compressed-tensors":
            return self._compressed(base, packed)
        (form,) = self._plan.of(base)
        bits = form.bits
        scale = self._part(base, "scales").T
        zeros = _integers(self._part(base, "qzeros"), bits)
        if self._plan.layout == "awq":
            q, zeros = _in_order(_integers(packed, bits)).T, _in_order(zeros)
        else:
            q = _integers(packed.T, bits)
        zero = (zeros.T[: len(q)] + self._plan.zero_offset) & (2**bits - 1)
        if form.symmetric and (zero == 1 << (bits - 1)).all():
            zero = None
        return _weight(bits, form.group or q.shape[1], q, scale, zero, self._order(base, "g_idx"))

    def _compressed(self, base: str, packed: np.ndarray) -> Weight:
        n, k = (int(extent) for extent in self._part(base, "weight_shape"))
        scale = self._part(base, "weight_scale")

        def fits(form: Form) -> bool:
            groups = -(-k // (form.group or k))
            return packed.shape == (n, -(-k * form.bits // 32)) and scale.shape == (n, groups)

        form = next((form for form in self._plan.of(base) if fits(form)), None)
        if form is None:
            raise ValueError(f"integers {list(packed.shape)}, scales {list(scale.shape)} of [{n}, {k}]")
        zero = None
        if not form.symmetric:
            zero = self._part(base, "weight_zero_point")
            if zero.dtype == np.int8:  # not packed
                zero = (zero.astype(np.int16) + (1 << (form.bits - 1))).astype(np.uint8)
            else:
                zero = _integers(zero.T, form.bits).T[:n]
        q = _integers(packed, form.bits)[:, :k]
        return _weight(form.bits, form.group or k, q, scale, zero, self._order(base, "weight_g_idx"))

    def _order(self, base: str, part: str) -> np.ndarray | None:
        """The group of each column, where the checkpoint says it; -1 says nothing."""
        name = f"{base}.{part}"
        order = self._raw(name) if name in self._tensors else None
        return None if order is None or (order == -1).all() else order


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


def modelopt_config(folder: Path) -> dict[str, Any]:
    """The ``quantization_config`` that ModelOpt wrote beside a ``config.json``; empty where it wrote none."""
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return {}
    config = read_json(path)
    told = config.get("quantization")
    return {**(told if isinstance(told, dict) else config), "quant_method": "modelopt"}


def _grid(scales: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Scales [1], [N], [N, groups] or [blocks, blocks] for every number of a matrix."""
    scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    if scales.ndim == 4:  # [blocks, 1, blocks, 1]
        scales = scales.reshape(scales.shape[0], scales.shape[2])
    (n, k), (rows, columns) = shape, scales.shape
    if (rows, columns) == (-(-n // block[0]), -(-k // block[1])):
        high, wide = block
    else:
        high, wide = n // rows, k // columns
        if (rows * high, columns * wide) != (n, k):
            raise ValueError(f"scales {list(scales.shape)} of weights {list(shape)}")
    return np.repeat(np.repeat(scales, high, 0)[:n], wide, 1)[:, :k]


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
    storage = Storage.named(BITS[bits], kept, zero is not None)
    pieces = -(-k // kept)
    return QuantizedWeight(
        storage,
        np.ascontiguousarray(q),
        np.repeat(half, wide, 1)[:, :pieces].copy(),
        None if zero is None else np.repeat(zero, wide, 1)[:, :pieces].copy(),
    )
