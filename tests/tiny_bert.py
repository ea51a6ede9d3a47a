"""A tiny BERT for tests, in a folder of sentence-transformers: its numbers by NumPy, its library."""

import atexit
import functools
import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

from tests.tiny_llama import write_safetensors

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
DENSE = 12
"""Numbers of an embedding, behind a dense layer."""
PROMPT = "w7 "


def weights(config=CONFIG):
    """Random weights by the names of old checkpoints: a prefix, gamma and beta."""
    random = np.random.default_rng(0)
    width, inner = config["hidden_size"], config["intermediate_size"]

    def normal(*shape):
        return (random.standard_normal(shape) * 2 / shape[-1] ** 0.5).astype(np.float32)

    found = {
        f"embeddings.{name}.weight": normal(rows, width)
        for name, rows in (
            ("word_embeddings", config["vocab_size"]),
            ("position_embeddings", config["max_position_embeddings"]),
            ("token_type_embeddings", config["type_vocab_size"]),
        )
    }
    norms = ["embeddings."]
    for layer in range(config["num_hidden_layers"]):
        base = f"encoder.layer.{layer}."
        for name, n, k in (
            *((f"attention.self.{part}", width, width) for part in ("query", "key", "value")),
            ("attention.output.dense", width, width),
            ("intermediate.dense", inner, width),
            ("output.dense", width, inner),
        ):
            found |= {f"{base}{name}.weight": normal(n, k), f"{base}{name}.bias": normal(n)}
        norms += [base + "attention.output.", base + "output."]
    for base in norms:
        found |= {f"{base}LayerNorm.gamma": 1 + normal(width) / 4, f"{base}LayerNorm.beta": normal(width)}
    return {f"bert.{name}": array for name, array in found.items()}


@functools.cache
def dense():
    """Matrix and shift of the dense layer."""
    random = np.random.default_rng(1)
    shapes = (DENSE, CONFIG["hidden_size"]), (DENSE,)
    return tuple((random.standard_normal(shape) / 4).astype(np.float32) for shape in shapes)


def write(folder, longest=16):
    """A folder of sentence-transformers: mean, a dense layer, rows of length one; gives it."""
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", weights())
    matrix, shift = dense()
    write_safetensors(folder / "2_Dense/model.safetensors", {"linear.weight": matrix, "linear.bias": shift})
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [{"path": p, "type": f"sentence_transformers.models.{kind}"} for p, kind in kinds.items()]
    activation = "torch.nn.modules.activation.Tanh"
    files = {
        "config.json": CONFIG,
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": PROMPT}, "default_prompt_name": None},
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "2_Dense/config.json": {"in_features": 32, "out_features": DENSE, "activation_function": activation},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def rows(tokens, config=CONFIG):
    """Rows of the last layer, float64 [tokens, width]."""
    w = {name.removeprefix("bert."): array.astype(np.float64) for name, array in weights().items()}
    heads, dim = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]

    def norm(x, base):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config["layer_norm_eps"])
        return x * w[f"{base}LayerNorm.gamma"] + w[f"{base}LayerNorm.beta"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    tables = (w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    words, positions, segments = tables
    x = norm(words[np.asarray(tokens)] + positions[: len(tokens)] + segments[0], "embeddings.")
    for layer in range(config["num_hidden_layers"]):
        base = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{base}attention.self.{part}").reshape(len(tokens), heads, dim)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", q, k) * dim**-0.5
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
        x = norm(x + linear(out, base + "attention.output.dense"), base + "attention.output.")
        inner = linear(x, base + "intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / 2**0.5))
        x = norm(x + linear(inner, base + "output.dense"), base + "output.")
    return x


def embedding(tokens, dimensions=DENSE):
    """The vector of a text, float64."""
    matrix, shift = dense()
    vector = np.tanh(rows(tokens).mean(0) @ matrix.T + shift)[:dimensions]
    return vector / np.linalg.norm(vector)


@functools.cache
def built():
    """Folder of the library, built once per process."""
    from hetero_tvm import build_embedding_model

    folder = Path(tempfile.mkdtemp(prefix="hetero_tvm-bert-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build_embedding_model(write(folder / "tiny-bert"), folder / "out")
    return folder / "out"
