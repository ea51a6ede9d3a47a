"""``python -m tests.campaign.encoder_decoders``: texts of encoder-decoders beside those of transformers.

Tiny models with random weights, greedy: a text of 32 new tokens about one source, and three about sources of
several lengths, which transformers pads.  10 s each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaign.language_models import main

NEW_TOKENS = 32
SOURCES = (
    [3, 17, 99, 4, 160, 23, 77],
    [5, 6],
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24],
)
_ENDS = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_BART = {
    "vocab_size": 211,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 72,
    "max_position_embeddings": 64,
    **_ENDS,
}
_T5 = {
    "vocab_size": 211,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 80,
    "num_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    **_ENDS,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whisper": (
        "WhisperConfig",
        {
            **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
            "num_mel_bins": 10,
            "max_source_positions": 30,
            "max_target_positions": 64,
            "suppress_tokens": [7, 8],
            "begin_suppress_tokens": [9, 10],
        },
    ),
    "bart": ("BartConfig", {**_BART, "scale_embedding": True}),
    "mbart": ("MBartConfig", {**_BART, "scale_embedding": True}),
    "marian": ("MarianConfig", {**_BART, "scale_embedding": True, "activation_function": "swish"}),
    "m2m_100": ("M2M100Config", {**_BART, "scale_embedding": True}),
    "t5": ("T5Config", _T5),
    "t5-v1.1": ("T5Config", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5Config", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


def audio(config: Any) -> list[np.ndarray]:
    """Features of three sources."""
    shape = (config.num_mel_bins, 2 * config.max_source_positions)
    return [np.random.default_rng(n).standard_normal(shape).astype(np.float32) for n in range(3)]


def reference(kind: str, folder: Path) -> tuple[list[Any], list[list[int]]]:
    """Write a checkpoint; gives sources, and what transformers generates about each of them together."""
    import torch
    import transformers

    torch.manual_seed(0)
    name, options = CASES[kind]
    config = getattr(transformers, name)(**options)
    auto = transformers.AutoModelForSpeechSeq2Seq if kind == "whisper" else transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            if values.dim() == 1:
                values.add_(torch.randn(values.shape) * 0.1)
            elif "embed_positions" in tensor:
                if kind not in ("marian", "m2m_100"):
                    values.copy_(torch.randn(values.shape) * 0.5)
            elif "relative_attention_bias" in tensor:
                values.copy_(torch.randn(values.shape))
            else:
                words = "embed" in tensor or "shared" in tensor
                spread = 0.08 if words else 2.5 / values[0].numel() ** 0.5
                values.copy_(torch.randn(values.shape) * spread)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape) * 0.1)
        model.save_pretrained(folder)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
        if kind == "whisper":
            sources = audio(config)
            made = model.generate(torch.tensor(np.stack(sources)), **options)
        else:
            sources = [list(source) for source in SOURCES]
            longest = max(map(len, sources))
            ids = torch.tensor([source + [1] * (longest - len(source)) for source in sources])
            mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sources])
            made = model.generate(ids, attention_mask=mask, **options)
    made = made[:, -NEW_TOKENS:].tolist()
    return sources, made


def compare(kind: str, folder: Path) -> list[str]:
    """What differs between ours and transformers; empty when nothing does."""
    from hetero_tvm import build_language_model, load_language_model
    from hetero_tvm.generation.generate import generate

    sources, want = reference(kind, folder / kind)
    model = load_language_model(build_language_model(folder / kind, folder / "out", page=16, rows=8))
    made = generate(model, [[]], sources=sources[:1], max_new_tokens=NEW_TOKENS, stop=())
    found = [] if made[0].tokens == want[0] else [f"{kind}: {made[0].tokens} instead of {want[0]}"]
    together = generate(model, [[]] * 3, sources=sources, max_new_tokens=NEW_TOKENS, stop=())
    for request, tokens in zip(together, want, strict=True):
        if request.tokens != tokens:
            found.append(f"{kind}, together: {request.tokens} instead of {tokens} ({request.error})")
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, compare))
