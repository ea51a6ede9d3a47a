"""Speed of language models: decoding as a share of the time to read the weights; prompts by the second.

A Llama of 300 M parameters (hidden 1024, 16 layers, 16 query and 4 key heads) with random weights, unless a
checkpoint is given.  Read bandwidth is measured in turn with the decoding, in the same window: the share is
``bytes of weights / bandwidth / time per token``.

    python -m benchmarks.decode                       # all precisions
    python -m benchmarks.decode --quick               # 4 of the 16 layers, a minute in all
    python -m benchmarks.decode --quick --built out --build-only     # later without it: measures only
    python -m benchmarks.decode --precisions int4 --model CHECKPOINT
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import numpy as np

from hetero_tvm.benchmarking.decode import measure_decoding
from hetero_tvm.generation.model import load_language_model
from hetero_tvm.host.scratch import temporary_folder

LLAMA_300M = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


def write_checkpoint(folder: Path, config: dict, seed: int = 0) -> None:
    """A Llama with random weights, float16, in the format of safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens": (vocab, width), "model.norm": (width,), "lm_head": (vocab, width)}
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        shapes |= {base + f"self_attn.{n}_proj": (width if n in "qo" else kv, width) for n in "qkvo"}
        shapes |= {base + f"mlp.{n}_proj": (inner, width) for n in ("gate", "up")}
        shapes |= {base + "mlp.down_proj": (width, inner)}
        shapes |= {base + n: (width,) for n in ("input_layernorm", "post_attention_layernorm")}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name + ".weight"] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            values = np.ones(shape, np.float16)
            if len(shape) == 2:
                values = random.standard_normal(shape, np.float32).astype(np.float16)
                values *= np.float16(shape[1] ** -0.5)
            file.write(values.tobytes())


def library(
    precision: str, folder: Path, checkpoint: Path | None, scratch: Path, layers: int, cache: str | None
) -> Path:
    """The folder with the library of a precision; built where it is missing."""
    from hetero_tvm import build_language_model

    if not (folder / "model.so").exists():
        if checkpoint is None:
            checkpoint = scratch / f"llama-300m-{layers}"
            if not (checkpoint / "model.safetensors").exists():
                write_checkpoint(checkpoint, {**LLAMA_300M, "num_hidden_layers": layers})
        build_language_model(checkpoint, folder, precision=precision, cache=cache)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a checkpoint; default: 300 M random weights")
    parser.add_argument("--precisions", default="f32,f16,int8,int4")
    parser.add_argument("--tokens", type=int, default=16, help="tokens per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=16, help="tokens before the decoded ones")
    parser.add_argument("--prompts", default="128,512")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--built", type=Path, help="folder where libraries are kept; built where missing")
    parser.add_argument("--build-only", action="store_true", help="with --built: measure nothing")
    parser.add_argument("--cache", help="type of keys and values: f32, f16, int8")
    parser.add_argument("--layers", type=int, default=LLAMA_300M["num_hidden_layers"])
    parser.add_argument("--quick", action="store_true", help="4 layers, 3 rounds, a prompt of 128")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.rounds, options.prompts = 4, 3, "128"
    with temporary_folder("hetero_tvm-decode-") as scratch:
        for precision in options.precisions.split(","):
            place = (options.built or Path(scratch)) / f"{precision}-{options.layers}-{options.cache}"
            folder = library(precision, place, options.model, Path(scratch), options.layers, options.cache)
            if options.build_only:
                continue
            model = load_language_model(folder, threads=options.threads)
            lengths = [int(length) for length in options.prompts.split(",") if length]
            measured = measure_decoding(model, options.tokens, options.rounds, options.context, lengths)
            print(f"{precision:5} {measured}", flush=True)


if __name__ == "__main__":
    main()
