"""Build: from a folder of sentence-transformers or transformers to a library that embeds texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_tvm.compile.build import merged
from hetero_tvm.compile.exporting import export_library
from hetero_tvm.compile.weights import set_apart
from hetero_tvm.errors import BuildError, HeteroTVMError, ModelError, UsageError, expect, last_line
from hetero_tvm.generation.embedding import DENSE_ENTRY, EmbeddingFacts
from hetero_tvm.generation.facts import EMBEDDING
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.language.build import (
    check_activations,
    copy_texts,
    described,
    export_step,
    manifest_of,
    open_checkpoint,
    step_kernels,
)
from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder, read_json
from hetero_tvm.language.embedding.families import ENCODERS, describe_encoder, is_encoder
from hetero_tvm.language.embedding.modules import MODULES, Dense, Modules, read_modules
from hetero_tvm.language.embedding.rows import INPUTS, build_dense, build_rows
from hetero_tvm.language.families.architectures import ARCHITECTURES, describe, kind_of
from hetero_tvm.language.families.decoder import Decoder, Names
from hetero_tvm.language.families.encoder_decoders import is_encoder_decoder
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.signature import Signature, TensorSpec
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.base.compiling import StepKernels
from hetero_tvm.targets.registry import parse_target


def is_embedder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder of sentence-transformers, or of an encoder of transformers."""
    path = Path(path)
    if (path / MODULES).is_file():
        return True
    if not (path / "config.json").is_file():
        return False
    config = read_json(path / "config.json")
    return is_encoder(config) and not is_encoder_decoder(config)


def build_embedding_model(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: str | Target = "cpu",
    *,
    precision: str = "f32",
    group: int | None = None,
    zero_points: bool = False,
    activations: str | None = None,
    context: int | None = None,
) -> Path:
    """Build the library of a model that embeds texts.

    Parameters
    ----------
    checkpoint : folder of sentence-transformers (``modules.json``), or of an encoder of transformers, whose
        rows are averaged then.
    out : folder, which gets ``model.so`` and the checkpoint's tokenizer.
    target, precision, group, zero_points, activations : as of :func:`hetero_tvm.build_language_model`.
    context : largest number of tokens of a text; default what the folder says.

    Raises
    ------
    ModelError : the checkpoint is damaged, or no model that is known.
    UsageError : an option is wrong.
    TargetError : the target is unknown, or has no kernels for language models.
    BuildError : code generation or linking failed.
    """
    target = parse_target(target) if isinstance(target, str) else target
    storage = Storage.named(precision, group, zero_points)
    for given, what in ((checkpoint, "checkpoint is the path of a folder"), (out, "out is a folder")):
        expect(given, (str, os.PathLike), what)
    check_activations(activations, storage)
    folder = Path(checkpoint)
    modules = read_modules(folder)
    source = open_checkpoint(modules.encoder)
    if kind_of(source.config) in ARCHITECTURES and not is_encoder(source.config):
        decoder = _pooled_decoder(source.config, modules)
        facts = _facts(decoder, modules, described(storage, activations), context)
        path = export_step(
            source,
            folder,
            out,
            target,
            storage,
            activations,
            context=facts.context,
            embedding=facts.to_json(),
        )
        return _with_texts(path, folder, modules)
    encoder, names = _describe(source.config, folder)
    facts = _facts(encoder, modules, described(storage, activations), context)
    kernels = step_kernels(target, activations)
    weights = DecoderWeights(encoder, names, source, storage)
    try:
        rows = build_rows(weights, kernels)
        lowered, memory = lower(rows)
        lowered = _with_dense(lowered, weights, modules, kernels)
        lowered, apart = set_apart(lowered)
        with quiet_fd2():
            compiled = target.compile(lowered)
    except HeteroTVMError:
        raise
    except Exception as error:  # TVM raises many kinds
        raise BuildError(
            f"compiling the encoder of {folder.name} failed: {last_line(error)}",
            hint="set HETERO_TVM_DEBUG=1 for the whole story",
        ) from error
    inputs = tuple(TensorSpec(name, ("rows",), "int32") for name in INPUTS)
    outputs = (TensorSpec("rows", ("rows", encoder.width), "float32"),)
    language = {EMBEDDING: facts.to_json()}
    manifest = manifest_of(folder, Signature(inputs, outputs), target, rows, memory, language)
    return _with_texts(export_library(out, compiled.executable, apart or None, manifest), folder, modules)


def _with_texts(path: Path, folder: Path, modules: Modules) -> Path:
    """The library, with the tokenizer beside it."""
    for texts in dict.fromkeys((folder, modules.encoder)):
        copy_texts(texts, path.parent)
    return path


def _facts(model: Decoder, modules: Modules, precision: str, context: int | None) -> EmbeddingFacts:
    """Facts of a model whose rows are pooled."""
    longest, width = _longest(model, modules, context), model.width * len(modules.poolings)
    for step in modules.steps:
        if isinstance(step, Dense):
            if step.k != width:
                raise ModelError(f"{step.folder} takes {step.k} channels, and there are {width} before it")
            width = step.n
    return EmbeddingFacts(
        architecture=model.architecture,
        precision=precision,
        vocab=model.vocab,
        channels=model.width,
        width=width,
        context=longest,
        poolings=modules.poolings,
        steps=tuple(step.n if isinstance(step, Dense) else step for step in modules.steps),
        lower=modules.lower,
        prompts=dict(modules.prompts),
        prompt=modules.prompt,
    )


def _pooled_decoder(config: Mapping[str, Any], modules: Modules) -> Decoder:
    """The decoder of a configuration, whose rows are pooled; :class:`ModelError` where that is not built."""
    decoder, _ = describe(config)
    problems = []
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        problems.append("its tokens see those that follow, where decoders here see those before")
    if any(isinstance(step, Dense) for step in modules.steps):
        problems.append("it has a dense layer behind the pooling")
    if problems:
        raise ModelError(
            f"this {decoder.architecture} embeds texts in a way that is not built",
            problems=problems,
            hint="export the model to ONNX or by torch.export.save(program, 'net.pt2') and build that file",
        )
    return decoder


def _describe(config: Mapping[str, Any], folder: Path) -> tuple[Decoder, Names]:
    if not is_encoder(config):
        raise ModelError(
            f"{folder}: there is no encoder of type {kind_of(config)!r}",
            hint="export the model to ONNX or by torch.export.save(program, 'net.pt2') and build that file; "
            f"known: {', '.join(sorted(ENCODERS))}, and the decoders that generate",
        )
    return describe_encoder(config)


def _longest(encoder: Decoder, modules: Modules, context: int | None) -> int:
    """Tokens of a text at most."""
    longest = min(encoder.context, modules.longest or encoder.context)
    told = modules.encoder / "tokenizer_config.json"
    most = read_json(told).get("model_max_length") if told.is_file() and modules.longest is None else None
    if isinstance(most, int | float) and most >= 1:
        longest = min(longest, int(most))
    if context is None:
        return longest
    if not 0 < context <= encoder.context:
        raise UsageError(f"a context of {context} tokens; the model was made for {encoder.context}")
    return context


def _with_dense(
    lowered: IRModule, weights: DecoderWeights, modules: Modules, kernels: StepKernels
) -> IRModule:
    """The encoder, and a function for each dense layer behind the pooling."""
    parts, entries = [lowered], ["main"]
    for number, step in enumerate(modules.steps):
        if isinstance(step, Dense):
            own = DecoderWeights(
                weights.decoder, Names(prefixes=("",)), SafetensorsFolder(step.folder), weights.storage
            )
            parts.append(lower(build_dense(own, kernels, step.n, step.k, step.activation))[0])
            entries.append(DENSE_ENTRY.format(number))
    return merged(parts, entries)
