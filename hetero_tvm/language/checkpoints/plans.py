"""Plans of packed matrices, read from a ``quantization_config``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BITS = {4: "int4", 8: "int8"}
"""Bits of packed integers -> the form in memory."""
_PLAIN = ("float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized")
"""Formats of compressed-tensors whose weights are not packed."""
_FOURS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
"""Formats of compressed-tensors with two numbers of 4 bits in a byte."""
_INTEGERS = "pack-quantized"
_METHODS = (
    "gptq",
    "awq",
    "auto-round",
    "compressed-tensors",
    "fp8",
    "fbgemm_fp8",
    "mxfp8",
    "mxfp4",
    "modelopt",
    "quark",
    "bitnet",
    "bitsandbytes",
)
_MODELOPT = ("FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4")
"""Algorithms of ModelOpt that leave the weights as :mod:`.packed` reads them."""
_BLOCK = (128, 128)


@dataclass(frozen=True)
class Form:
    """Integers of a matrix: their bits, columns of a group (0: all), whether groups have no zero of their
    own."""

    bits: int
    group: int = 0
    symmetric: bool = True


@dataclass(frozen=True)
class Plan:
    """Packing of the matrices of a checkpoint.

    Parameters
    ----------
    method : as the checkpoint says it.
    layout : of integers: ``gptq``, ``awq`` or ``compressed-tensors``; ``ternary divided`` or ``ternary
        multiplied`` by the scale (BitNet); empty where there are none.
    forms : of integers; the first that fits a matrix is its own.
    zero_offset : added to stored zeros.
    block : rows and columns of a scale, where scales are of blocks.
    exceptions : what matrices of some names have in the place of ``forms``.
    problems : what stands against it.
    """

    method: str
    layout: str = ""
    forms: tuple[Form, ...] = ()
    zero_offset: int = 0
    block: tuple[int, int] = _BLOCK
    exceptions: tuple[tuple[re.Pattern[str], Form], ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, base: str) -> tuple[Form, ...]:
        """The forms that the integers of a matrix may have."""
        own = next((form for pattern, form in self.exceptions if pattern.match(base)), None)
        return self.forms if own is None else (own,)


def read_plan(config: Mapping[str, Any]) -> Plan:
    """The plan that a ``quantization_config`` is; with problems where it cannot be read."""
    method = str(config.get("quant_method", "a method of no name"))
    readers = {
        "gptq": _gptq,
        "awq": _awq,
        "compressed-tensors": _compressed,
        "modelopt": _modelopt,
        "quark": _quark,
        "bitnet": _bitnet,
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "mxfp8": _fp8,
        "auto-round": _auto_round,
        "intel/auto-round": _auto_round,
    }
    if method not in readers:
        return Plan(method, problems=(f"known methods: {', '.join(_METHODS)}",))
    return readers[method](method, config)


def _fp8(method: str, config: Mapping[str, Any]) -> Plan:
    kind = config.get("fmt", "e4m3")
    problems = () if kind == "e4m3" else (f"fmt is {kind!r}, known is 'e4m3'",)
    high, wide = config.get("weight_block_size") or _BLOCK
    return Plan(method, block=(int(high), int(wide)), problems=problems)


def _modelopt(method: str, config: Mapping[str, Any]) -> Plan:
    algorithm = str(config.get("quant_algo"))
    if algorithm in _MODELOPT:
        return Plan(method)
    return Plan(method, problems=(f"quant_algo is {algorithm}, known are {', '.join(_MODELOPT)}",))


def _quark(method: str, config: Mapping[str, Any]) -> Plan:
    """AMD Quark: FP8 or int8 with a scale for all or for each row, FP4 with exponents (MXFP4)."""
    problems: list[str] = []
    layers = [config.get("global_quant_config")]
    for part in ("layer_quant_config", "layer_type_quant_config"):
        layers += dict(config.get(part) or {}).values()
    for weights in (layer.get("weight") for layer in layers if isinstance(layer, Mapping)):
        for one in weights if isinstance(weights, list) else [weights] if weights else []:
            kind, scheme = one.get("dtype"), one.get("qscheme")
            whole = kind in ("fp8_e4m3", "int8") and scheme in ("per_tensor", "per_channel")
            if not whole and (kind, one.get("scale_format"), one.get("group_size")) != ("fp4", "e8m0", 32):
                known = "fp8_e4m3 and int8 (per_tensor, per_channel) and MXFP4"
                problems.append(f"weights are {kind} {scheme}, known are {known}")
        if isinstance(weights, list) and len(weights) > 1:
            problems.append("weights are quantized in several steps")
    stored = dict(config.get("export") or {}).get("weight_format", "real_quantized")
    if stored != "real_quantized":
        problems.append(f"weight_format is {stored!r}, known is 'real_quantized'")
    return Plan(method, problems=tuple(dict.fromkeys(problems)))


def _bitnet(method: str, config: Mapping[str, Any]) -> Plan:
    """Weights of three values, which the older of two layers divides by their scale."""
    kinds = ("autobitlinear", "bitlinear")
    kind = str(config.get("linear_class") or "bitlinear")
    if kind not in kinds:
        return Plan(method, problems=(f"linear_class is {kind!r}, known are {' and '.join(kinds)}",))
    if config.get("use_rms_norm"):
        return Plan(method, problems=("matrices have norms of their own (use_rms_norm)",))
    return Plan(method, f"ternary {'divided' if kind == 'bitlinear' else 'multiplied'}")


def _gptq(method: str, config: Mapping[str, Any]) -> Plan:
    problems: list[str] = []
    form = _form(config, problems, symmetric=config.get("sym") is True)
    exceptions = []
    for pattern, changes in dict(config.get("dynamic") or {}).items():
        # "-:": matrices of these names are left as they were, "+:" and no sign: they differ.
        if not pattern.startswith("-:"):
            asked = {**config, **dict(changes or {})}
            own = _form(asked, problems, symmetric=asked.get("sym") is True)
            exceptions.append((_pattern(pattern.removeprefix("+:"), problems), own))
    offset = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    return Plan(method, "gptq", (form,), offset, exceptions=tuple(exceptions), problems=tuple(problems))


def _awq(method: str, config: Mapping[str, Any]) -> Plan:
    problems: list[str] = []
    version = str(config.get("version", "gemm")).lower()
    if version not in ("gemm", "exllama", "ipex"):  # the latter two are the same on disk
        problems.append(f"version is {version!r}, known is 'gemm'")
    form = _form(config, problems, symmetric=config.get("zero_point") is False, known=(4,))
    return Plan(method, "awq", (form,), problems=tuple(problems))


def _auto_round(method: str, config: Mapping[str, Any]) -> Plan:
    """Integers in the layout of one of the other methods, and matrices that differ, by name."""
    problems: list[str] = []
    layout = str(config.get("packing_format") or config.get("backend") or "auto_round")
    kind = str(config.get("data_type", "int"))
    if "llm_compressor" in layout or not kind.startswith("int"):
        problems.append(f"packing_format is {layout!r} of type {kind!r}, known are GPTQ's and AWQ's, of int")
    symmetric = config.get("sym", True) is True
    known = (4,) if "awq" in layout else tuple(BITS)
    form = _form(config, problems, symmetric, known)
    exceptions = []
    for name, changes in dict(config.get("extra_config") or {}).items():
        asked = {**config, **dict(changes or {})}
        if int(asked.get("bits") or 16) > 8:
            continue  # left as it was
        own = _form(asked, problems, asked.get("sym", True) is True, known)
        if own != form:
            plain = re.fullmatch(r"[\w.\-]+", name) is not None
            pattern = re.escape(name) + "$" if plain else name
            exceptions.append((_pattern(pattern, problems), own))
    less_one = "gptq" in layout and "gptqmodel" not in layout
    layout = "awq" if "awq" in layout else "gptq"
    return Plan(
        method, layout, (form,), int(less_one), exceptions=tuple(exceptions), problems=tuple(problems)
    )


def _compressed(method: str, config: Mapping[str, Any]) -> Plan:
    """Formats for all matrices, or one for each group of layers."""
    problems: list[str] = []
    forms: list[Form] = []
    block = _BLOCK
    whole = config.get("format")
    schemes = list(_schemes(config))
    for kind, weights in schemes or [(whole, {})]:
        kind = whole if kind is None else kind
        if kind == _INTEGERS:
            forms.append(_integers(weights, problems))
        elif kind in _PLAIN:
            if weights.get("num_bits") != 8:
                problems.append(f"weights of {kind} have {weights.get('num_bits')} bits, known are 8")
            if weights.get("block_structure"):
                high, wide = weights["block_structure"]
                block = (int(high), int(wide))
        elif kind not in _FOURS:
            known = ", ".join((_INTEGERS, *_PLAIN, *_FOURS))
            problems.append(f"format is {kind!r}, known are {known}")
    problems = list(dict.fromkeys(problems))
    forms = list(dict.fromkeys(forms))
    return Plan(
        method, "compressed-tensors" if forms else "", tuple(forms), block=block, problems=tuple(problems)
    )


def _schemes(config: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Format and options of the weights of each group of layers, as compressed-tensors states them."""
    groups = config.get("config_groups")
    for scheme in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(scheme, Mapping) and isinstance(scheme.get("weights"), Mapping):
            yield scheme.get("format"), scheme["weights"]


def _integers(weights: Mapping[str, Any], problems: list[str]) -> Form:
    order = weights.get("actorder")
    order = str(getattr(order, "value", order)).lower()
    if order not in ("none", "false", "true", "static", "weight", "group", "dynamic"):
        problems.append(f"columns are in the order {order!r}")
    if weights.get("type", "int") != "int":
        problems.append(f"packed weights are of type {weights['type']!r}, known is 'int'")
    asked = {"bits": weights.get("num_bits"), "group_size": weights.get("group_size")}
    return _form(asked, problems, symmetric=weights.get("symmetric", True) is True)


def _form(
    config: Mapping[str, Any], problems: list[str], symmetric: bool, known: tuple[int, ...] = tuple(BITS)
) -> Form:
    """Bits and columns of a group; what is unknown is added to the problems."""
    bits, group = (
        config.get("bits", config.get("w_bit")),
        config.get("group_size", config.get("q_group_size")),
    )
    if bits not in known:
        problems.append(f"weights have {bits} bits, known are {' and '.join(map(str, known))}")
        bits = known[0]
    group = -1 if group is None else group
    if not isinstance(group, int) or isinstance(group, bool) or (group < 1 and group != -1):
        problems.append(f"group_size is {group!r}")
        group = -1
    return Form(int(bits), max(group, 0), symmetric)


def _pattern(text: str, problems: list[str]) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        problems.append(f"{text!r} names no matrices: {error}")
        return re.compile(r"(?!)")
