"""Model zoo: real architectures at their real sizes, with seeded weights and no download.

``build("minilm-l6")`` gives an ``onnx.ModelProto`` written as exporters write it; each model has a
``-tiny`` variant of one or two small layers for tests.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.zoo import bert, convnet, gpt2, llama, vit

#: The model that commands use when none is named.
DEFAULT = "minilm-l6"


Config = (
    bert.BertConfig
    | gpt2.Gpt2Config
    | vit.VitConfig
    | llama.LlamaConfig
    | convnet.ResNetConfig
    | convnet.MobileNetConfig
)


@dataclass(frozen=True)
class _Entry:
    """A model: how it is built, its usual and longest sequence, and one line for people."""

    builder: Callable[..., onnx.ModelProto]
    config: Config
    sequence: int | None  # default sequence length; None for image models
    longest: int | None
    summary: str


# fmt: off
_ZOO: dict[str, _Entry] = {
    "minilm-l6": _Entry(
        bert.build, bert.BertConfig(6, 384, 12, 1536), 128, 512, "sentence encoder, 6 layers, hidden 384"
    ),
    "minilm-l6-tiny": _Entry(
        bert.build, bert.BertConfig(2, 48, 4, 96, 101, 32), 12, 32, "minilm-l6 with 2 layers, hidden 48"
    ),
    "bert-base": _Entry(
        bert.build, bert.BertConfig(12, 768, 12, 3072, opset=14, pooler=True), 128, 512,
        "encoder with pooler, 12 layers, hidden 768, decomposed layer norms",
    ),
    "bert-base-tiny": _Entry(
        bert.build, bert.BertConfig(1, 32, 2, 80, 101, 32, opset=14, pooler=True), 12, 32,
        "bert-base with 1 layer, hidden 32",
    ),
    "gpt2-small": _Entry(
        gpt2.build, gpt2.Gpt2Config(12, 768, 12), 128, 1024,
        "decoder (prefill), 12 layers, hidden 768, tied head",
    ),
    "gpt2-small-tiny": _Entry(
        gpt2.build, gpt2.Gpt2Config(2, 48, 3, 101, 32), 12, 32, "gpt2-small with 2 layers, hidden 48"
    ),
    "vit-b16": _Entry(
        vit.build, vit.VitConfig(12, 768, 12, 3072), None, None,
        "image classifier, 12 layers, hidden 768, 224 x 224",
    ),
    "vit-b16-tiny": _Entry(
        vit.build, vit.VitConfig(1, 48, 4, 96, image=20, patch=4, classes=10), None, None,
        "vit-b16 with 1 layer, hidden 48, 20 x 20",
    ),
    "llama-160m": _Entry(
        llama.build, llama.LlamaConfig(12, 768, 12, 4, 2048), 128, 2048,
        "decoder (prefill), 12 layers, hidden 768, 4 key-value heads, SwiGLU",
    ),
    "llama-160m-tiny": _Entry(
        llama.build, llama.LlamaConfig(2, 64, 4, 2, 88, 101), 12, 64, "llama-160m with 2 layers, hidden 64"
    ),
    "resnet50": _Entry(
        convnet.build_resnet, convnet.ResNetConfig(), None, None,
        "image classifier, 16 bottlenecks, 224 x 224",
    ),
    "resnet50-tiny": _Entry(
        convnet.build_resnet, convnet.ResNetConfig((1, 2), (8, 16), 8, 32, 10), None, None,
        "resnet50 with 3 bottlenecks, 32 x 32",
    ),
    "mobilenetv2": _Entry(
        convnet.build_mobilenet, convnet.MobileNetConfig(), None, None,
        "image classifier, depthwise separable, 224 x 224",
    ),
    "mobilenetv2-tiny": _Entry(
        convnet.build_mobilenet,
        convnet.MobileNetConfig(((1, 8, 1, 1), (6, 12, 2, 2)), 8, 48, 32, 10), None, None,
        "mobilenetv2 with 3 blocks, 32 x 32",
    ),
}
# fmt: on


def names() -> tuple[str, ...]:
    """Names that :func:`build` takes."""
    return tuple(_ZOO)


def describe(name: str) -> str:
    """Describe a model in one line: family, depth, width."""
    return _entry(name).summary


def build(
    name: str, *, batch: int | None = None, sequence: int | None = None, seed: int = 0
) -> onnx.ModelProto:
    """Build a zoo model with fixed shapes and weights drawn from ``seed``.

    Parameters
    ----------
    name : one of :func:`names`.
    batch : first dimension of every input; 1 by default.
    sequence : tokens per row of text models; 128 by default (12 for tiny ones).

    Raises
    ------
    ModelError : the name is unknown.
    UsageError : a size is not positive, too long for the model, or not an option of it.
    """
    entry = _entry(name)
    sizes = {"batch": _positive("batch", 1 if batch is None else batch)}
    if entry.sequence is None:
        if sequence is not None:
            raise UsageError(
                f"zoo:{name} is an image model: it has no sequence length.", hint="Leave sequence out."
            )
    else:
        sizes["sequence"] = _positive("sequence", entry.sequence if sequence is None else sequence)
        if sizes["sequence"] > entry.longest:
            raise UsageError(
                f"zoo:{name} takes at most {entry.longest} tokens, not {sequence}.",
                hint=f"Choose a sequence length of {entry.longest} or less.",
            )
    return entry.builder(entry.config, name, seed=seed, **sizes)


def _positive(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{what} must be a whole number of at least 1, not {value!r}.")
    return value


def _entry(name: str) -> _Entry:
    if name in _ZOO:
        return _ZOO[name]
    close = difflib.get_close_matches(str(name), _ZOO, n=1, cutoff=0.4)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    raise ModelError(f"The zoo has no model {name!r}.", hint=f"{guess}Known names: {', '.join(_ZOO)}.")
