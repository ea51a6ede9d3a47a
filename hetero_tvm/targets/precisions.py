"""Names of precisions: the short ones that targets know, and the spellings of other tools for them."""

from __future__ import annotations

from hetero_tvm.errors import UsageError, unknown_name

PRECISIONS = ("f32", "f16", "bf16", "tf32", "int8", "int4")
"""Precisions that some target has."""

_ALIASES = {
    "fp32": "f32",
    "float32": "f32",
    "float": "f32",
    "fp16": "f16",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "i8": "int8",
    "s8": "int8",
}


def canonical_precision(text: str) -> str:
    """Short name of a precision: ``fp16``, ``float16`` and ``F16`` are ``f16``.

    Raises
    ------
    UsageError : there is no such precision; names those there are.
    """
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name not in PRECISIONS:
        message, hint = unknown_name("there is no precision", text, (*PRECISIONS, *_ALIASES))
        raise UsageError(message, hint=hint)
    return name
