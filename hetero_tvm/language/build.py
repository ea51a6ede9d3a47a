"""Build: from a checkpoint to one library that generates text."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_tvm.compile.build import merged
from hetero_tvm.compile.exporting import export_library
from hetero_tvm.compile.weights import set_apart
from hetero_tvm.errors import (
    BuildError,
    HeteroTVMError,
    ModelError,
    TargetError,
    UsageError,
    expect,
    last_line,
)
from hetero_tvm.generation.facts import EMBEDDING, LanguageFacts, SourceFacts
from hetero_tvm.generation.source import ENTRY
from hetero_tvm.host.tvm import IRModule
from hetero_tvm.language.checkpoints.bitsandbytes import BitsAndBytesFolder
from hetero_tvm.language.checkpoints.checkpoint import Checkpoint, SafetensorsFolder, read_json
from hetero_tvm.language.checkpoints.gguf import GgufFile
from hetero_tvm.language.checkpoints.mlx import MlxFolder, is_mlx
from hetero_tvm.language.checkpoints.packed import Mxfp4Folder, PackedFolder, modelopt_config
from hetero_tvm.language.encoder import build_encoder
from hetero_tvm.language.families.architectures import describe
from hetero_tvm.language.families.configuration import penalty_of, rules_of
from hetero_tvm.language.families.decoder import Decoder
from hetero_tvm.language.families.encoder_decoders import EncoderDecoder, describe_pair, is_encoder_decoder
from hetero_tvm.language.step import (
    INPUTS,
    KERNELS,
    SOURCE_INPUTS,
    STATE_INPUTS,
    build_step,
    heads_of,
)
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.ops.decoding.contracts import KEYS
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.runtime.manifest import Manifest, TargetInfo, creation_time, current_versions
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.signature import Signature, TensorSpec
from hetero_tvm.targets.base import Target
from hetero_tvm.targets.base.compiling import StepKernels
from hetero_tvm.targets.registry import parse_target

CACHES = {"f32": "float32", "f16": "float16", "int8": "int8"}
_ROWS = ("int8", "int16", "bf16")
_ADAPTER = "adapter_config.json"
_TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "generation_config.json",
)


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder of transformers (or peft) or a GGUF file, and no model of another kind."""
    path = Path(path)
    return any((path / name).is_file() for name in ("config.json", _ADAPTER)) or path.suffix == ".gguf"


def build_language_model(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: str | Target = "cpu",
    *,
    precision: str = "f32",
    group: int | None = None,
    zero_points: bool = False,
    activations: str | None = None,
    cache: str | None = None,
    context: int | None = None,
    rows: int = 512,
    page: int = 64,
) -> Path:
    """Build the library of a language model.

    Parameters
    ----------
    checkpoint : folder with ``config.json`` and safetensors (floats, or quantized by GPTQ, AWQ,
        compressed-tensors, bitsandbytes, MLX or as FP8 or MXFP4), or a GGUF file.
    out : folder, which gets ``model.so`` and the checkpoint's tokenizer.
    target : ``KIND[:VARIANT]``, for example ``cpu`` (this machine) or ``cpu:x86-64-v3``.
    precision : form of the weights in memory: ``f32``, ``f16``, ``bf16``, ``int8``, ``int4``; arithmetic
        is float32.
    group, zero_points : of integers, see :class:`hetero_tvm.ops.decoding.storage.Storage`.
    activations : form that rows are rounded to: beside weights of 8 bits ``int16`` (default, exact beside
        these weights) or ``int8``, up to twice as fast with many rows; beside weights of bfloat16 ``bf16``,
        as much faster with eight rows and more, on machines that multiply such tiles (default: float32).
    cache : type of keys and values, ``f32``, ``f16`` or ``int8``; default f32 for f32 weights, else f16.
    context : largest number of tokens of a text; default that of the model.
    rows : new tokens that one step takes at most; longer prompts go in pieces.
    page : tokens of a page of the cache, a multiple of 16.

    Raises
    ------
    ModelError : the checkpoint is damaged, or no model that is known.
    UsageError : an option is wrong.
    TargetError : the target is unknown, or has no kernels for language models.
    BuildError : code generation or linking failed.
    """
    target = parse_target(target) if isinstance(target, str) else target
    storage = Storage.named(precision, group, zero_points)
    for given, what in ((checkpoint, "checkpoint is the path of a folder or file"), (out, "out is a folder")):
        expect(given, (str, os.PathLike), what)
    source = open_checkpoint(Path(checkpoint))
    path = export_step(
        source, Path(checkpoint), out, target, storage, activations, cache, context, rows=rows, page=page
    )
    copy_texts(Path(checkpoint), path.parent)
    return path


def export_step(
    source: Checkpoint,
    checkpoint: Path,
    out: str | os.PathLike[str],
    target: Target,
    storage: Storage,
    activations: str | None = None,
    cache: str | None = None,
    context: int | None = None,
    *,
    rows: int = 512,
    page: int = 64,
    embedding: Mapping[str, Any] | None = None,
) -> Path:
    """Build the step of a checkpoint and export its library.

    Parameters
    ----------
    source : the checkpoint that lies at ``checkpoint``, whose name the library has.
    embedding : facts of a model that embeds texts, whose step gives rows in the place of logits.

    The others are those of :func:`build_language_model`, which says what is raised.
    """
    pair = describe_pair(source.config) if is_encoder_decoder(source.config) else None
    decoder, names = (pair.decoder, pair.decoder_names) if pair else describe(source.config)
    names = source.names(names)
    if embedding is not None:  # such models are saved without what makes logits
        names = dataclasses.replace(names, prefixes=(*names.prefixes, ""))
    if type(source) is SafetensorsFolder:
        check_activations(activations, storage)
    _check(decoder, cache, context, rows, page)
    kernels = step_kernels(target, activations)
    cache = cache or ("f32" if storage.name == "f32" else "f16")
    heads = heads_of(decoder, page, CACHES[cache])
    weights = DecoderWeights(decoder, names, source, storage)
    try:
        step, read = build_step(weights, heads, kernels, rows, embedding is not None)
        lowered, memory = lower(step)
        if pair is not None:
            halves = DecoderWeights(pair.encoder, pair.encoder_names, source, storage)
            encoder, _ = lower(build_encoder(halves, weights, heads, kernels))
            lowered = merged([lowered, encoder], ["main", ENTRY])
        lowered, apart = set_apart(lowered)
        with quiet_fd2():
            compiled = target.compile(lowered)
    except HeteroTVMError:
        raise
    except Exception as error:  # TVM raises many kinds
        raise BuildError(
            f"compiling the step of {checkpoint.name} failed: {last_line(error)}",
            hint="set HETERO_TVM_DEBUG=1 for the whole story",
        ) from error
    most = max((rope.most for rope in decoder.ropes), default=0)
    facts = LanguageFacts(
        architecture=decoder.architecture,
        precision=described(storage, activations),
        vocab=decoder.vocab,
        context=min(decoder.context, context or decoder.context),
        rows=rows,
        layers=decoder.attending,
        kv_heads=decoder.kv_heads,
        dim=decoder.dim,
        page=page,
        cache=CACHES[cache],
        ropes=tuple((rope.inverse, rope.factor) for rope in decoder.ropes),
        long_ropes=tuple((rope.longer or rope.inverse, rope.factor) for rope in decoder.ropes if most),
        short_texts=most,
        values=heads.values,
        results=0 if embedding is None else decoder.width,
        rotated=decoder.rotated,
        stop=decoder.stop,
        repetition_penalty=penalty_of(source.config),
        rules=rules_of(source.config),
        read=read,
        state=decoder.state,
        source=None if pair is None else _source(pair),
    )
    language = facts.to_json() | ({} if embedding is None else {EMBEDDING: embedding})
    manifest = manifest_of(checkpoint, _signature(facts), target, step, memory, language)
    return export_library(out, compiled.executable, apart or None, manifest)


def manifest_of(
    checkpoint: Path,
    signature: Signature,
    target: Target,
    step: IRModule,
    memory: MemoryPlan,
    language: dict[str, Any],
) -> Manifest:
    """The manifest of a checkpoint's library, whose ``step`` names its kernels."""
    return Manifest(
        name=checkpoint.resolve().name,
        signature=signature,
        target=TargetInfo.from_json(target.describe()),
        versions=current_versions(),
        kernels=json.loads(step.attrs[KERNELS]),
        memory=memory.to_json(),
        created=creation_time(),
        language=language,
    )


def step_kernels(target: Target, activations: str | None) -> StepKernels:
    """Kernels of a target, which round rows to this form.

    Raises
    ------
    UsageError : there is no such form.
    TargetError : the target has no kernels for language models, or cannot round so.
    """
    kernels = target.step_kernels
    if kernels is None:
        raise TargetError(f"target {target.kind} has no kernels for language models", hint="use --target cpu")
    if activations is None:
        return kernels
    if activations not in _ROWS:
        raise UsageError(f"rows cannot be rounded to {activations!r}", hint=f"one of {', '.join(_ROWS)}")
    return kernels.rounding(activations)


def check_activations(activations: str | None, storage: Storage) -> None:
    """Refuse a form of rows beside weights of another.

    Raises
    ------
    UsageError : the weights have not the bits, or are not of the form.
    """
    if activations == "bf16" and storage.name != "bf16":
        raise UsageError("rows are rounded to bf16 beside weights of bf16", hint="add --precision bf16")
    if activations not in (None, "bf16") and storage.bits != 8:
        raise UsageError("rows are rounded to integers beside weights of 8 bits", hint="add --precision int8")


def described(storage: Storage, activations: str | None) -> str:
    """The precision in words."""
    text = f"{storage.name} in groups of {storage.group}" if storage.bits else storage.name
    return text if activations is None else f"{text}, rows in {activations}"


def _source(pair: EncoderDecoder) -> SourceFacts:
    encoder = pair.encoder
    return SourceFacts(encoder.context, 0 if encoder.mels else encoder.vocab, encoder.mels, pair.start)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at a path; :class:`ModelError` when it is damaged, or none."""
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    if path.suffix == ".gguf":
        return GgufFile(path)
    if (path / _ADAPTER).is_file() and not (path / "config.json").is_file():
        base = read_json(path / _ADAPTER).get("base_model_name_or_path")
        raise ModelError(
            f"{path} is an adapter (LoRA) of {base}, not a whole model",
            hint="with the package peft, AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload()"
            ".save_pretrained(whole) makes one; build the folder that it wrote",
        )
    config = read_json(path / "config.json")
    if is_mlx(config):
        return MlxFolder(path)
    plan = config.get("quantization_config") or modelopt_config(path)
    if not isinstance(plan, Mapping) or not plan:
        return SafetensorsFolder(path)
    folders = {"bitsandbytes": BitsAndBytesFolder, "mxfp4": Mxfp4Folder}
    return folders.get(str(plan.get("quant_method")), PackedFolder)(path)


def _check(decoder: Decoder, cache: str | None, context: int | None, rows: int, page: int) -> None:
    problems = []
    if cache is not None and cache not in CACHES:
        problems.append(f"keys and values cannot be stored as {cache!r}: one of {', '.join(CACHES)}")
    if context is not None and not 0 < context <= decoder.context:
        problems.append(
            f"a context of {context} tokens; the model was made for {decoder.context} (config.json: "
            "max_position_embeddings, and the scaling of rotary positions)"
        )
    if not 0 < rows <= 1 << 16:
        problems.append(f"{rows} rows per step")
    if page < KEYS or page % KEYS:
        problems.append(f"pages of {page} tokens; expected a multiple of {KEYS}")
    if problems:
        raise UsageError("options that this model cannot have", problems=problems)


def _signature(facts: LanguageFacts) -> Signature:
    keys, values = facts.page_shapes
    rope = ("positions", max(len(facts.ropes), 1), max(facts.rotated, 1))
    shapes: list[tuple[Any, ...]] = [("rows",)] * 3 + [("sequences", "pages"), ("results",), rope]
    shapes += [("pool", *keys), ("pool", *values)]
    dtypes = ["int32"] * 5 + ["float32"] + [facts.cache] * 2
    names = INPUTS
    if facts.source is not None:
        names += SOURCE_INPUTS
        shapes += [("rows",), ("sequences", "source_pages"), ("sources", *keys), ("sources", *values)]
        dtypes += ["int32"] * 2 + [facts.cache] * 2
    if facts.state:
        names += STATE_INPUTS
        shapes += [("sequences",), ("slots", facts.state)]
        dtypes += ["int32", "float32"]
    inputs = tuple(TensorSpec(*spec) for spec in zip(names, shapes, dtypes, strict=True))
    return Signature(inputs, (TensorSpec("logits", ("results", facts.results or facts.vocab), "float32"),))


def copy_texts(source: Path, out: Path) -> None:
    """The tokenizer beside the library, where the checkpoint has one."""
    for name in _TEXT_FILES:
        if (source / name).is_file() and (source / name).resolve() != (out / name).resolve():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, out / name)
