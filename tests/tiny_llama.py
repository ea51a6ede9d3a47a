"""A tiny Llama for tests: a checkpoint as transformers writes it, its numbers by NumPy, its library."""

import atexit
import functools
import json
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np

CONFIG = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "eos_token_id": 96,
}
PAGE = 16


def weights(config=CONFIG, seed=0):
    """Random weights by transformers' names."""
    random = np.random.default_rng(seed)
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]

    def matrix(n, k):
        return (random.standard_normal((n, k)) * 2 / k**0.5).astype(np.float32)

    def scale():
        return (1 + 0.1 * random.standard_normal(width)).astype(np.float32)

    found = {
        "model.embed_tokens": matrix(vocab, width),
        "model.norm": scale(),
        "lm_head": matrix(vocab, width),
    }
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        found |= {base + f"self_attn.{n}_proj": matrix(width if n in "qo" else kv, width) for n in "qkvo"}
        found |= {base + f"mlp.{n}_proj": matrix(inner, width) for n in ("gate", "up")}
        found |= {base + "mlp.down_proj": matrix(width, inner)}
        found |= {base + n: scale() for n in ("input_layernorm", "post_attention_layernorm")}
    return {name + ".weight": array for name, array in found.items()}


def write_safetensors(path, tensors):
    """Arrays by name in the format of safetensors."""
    names = {
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "int8": "I8",
        "uint8": "U8",
        "int32": "I32",
        "uint32": "U32",
        "int64": "I64",
    }
    header, at = {}, 0
    for name, array in tensors.items():
        kind = names[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


def write(folder, config=CONFIG, tensors=None):
    """A checkpoint; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights(config) if tensors is None else tensors)
    return folder


def logits(tokens, tensors=None, config=CONFIG, factors=1.0):
    """Logits after each token, float64 [tokens, vocab]; ``factors`` of the wave lengths of positions."""
    matrix = (tensors or weights(config))["lm_head.weight"].astype(np.float64)
    return rows(tokens, tensors, config, factors) @ matrix.T


def rows(tokens, tensors=None, config=CONFIG, factors=1.0):
    """Rows that logits are made of, float64 [tokens, width]."""
    w = {name: array.astype(np.float64) for name, array in (tensors or weights(config)).items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config["hidden_size"] // heads
    inverse = config["rope_theta"] ** -(np.arange(0, dim, 2) / dim) / factors
    angles = np.arange(len(tokens))[:, None, None] * inverse
    cos, sin = np.cos(angles), np.sin(angles)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def rotated(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][np.asarray(tokens)]
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        h = norm(x, base + "input_layernorm")
        q, k, v = (
            (h @ w[base + f"self_attn.{n}_proj.weight"].T).reshape(len(tokens), -1, dim) for n in "qkv"
        )
        k, v = (np.repeat(t, heads // kv_heads, 1) for t in (rotated(k), v))
        scores = np.einsum("qhd,khd->hqk", rotated(q), k) * dim**-0.5
        scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
        x = x + out @ w[base + "self_attn.o_proj.weight"].T
        h = norm(x, base + "post_attention_layernorm")
        gate, up = (h @ w[base + f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[base + "mlp.down_proj.weight"].T
    return norm(x, "model.norm")


def greedy(prompt, count):
    """Tokens that follow a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@functools.cache
def built(precision="f32"):
    """Folder of the library, built once per process."""
    from hetero_tvm import build_language_model

    folder = Path(tempfile.mkdtemp(prefix="hetero_tvm-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    checkpoint = write(folder / "tiny-llama")
    build_language_model(checkpoint, folder / "out", precision=precision, rows=24, page=PAGE)
    return folder / "out"
