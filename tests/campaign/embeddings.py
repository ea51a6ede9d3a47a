"""``python -m tests.campaign.embeddings``: rows of every encoder beside those of transformers.

Tiny models with random weights; texts of 1 token to as many as the model takes.  10 s each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_SIZES = {
    "vocab_size": 120,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
_DISTILBERT = {
    "vocab_size": 120,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 80,
    "max_position_embeddings": 64,
}
_T5 = {"vocab_size": 120, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 3, "num_heads": 4}
_MODERN = {**_SIZES, "local_attention": 12, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _SIZES),
    "bert-for-masked-words": ("BertForMaskedLM", {**_SIZES, "hidden_act": "gelu_new"}),
    "roberta": ("RobertaModel", {**_SIZES, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaModel", {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1}),
    "camembert": ("CamembertModel", {**_SIZES, "pad_token_id": 1}),
    "distilbert": ("DistilBertModel", _DISTILBERT),
    "mpnet": ("MPNetModel", _SIZES),
    "electra": ("ElectraModel", {**_SIZES, "embedding_size": 48}),
    "t5": ("T5EncoderModel", _T5),
    "modernbert": ("ModernBertModel", {**_MODERN, "num_hidden_layers": 4}),
    "modernbert-biases": (
        "ModernBertModel",
        {**_MODERN, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 2},
    ),
    "embeddinggemma": (
        "Gemma3TextModel",
        {
            **_SIZES,
            "head_dim": 16,
            "num_key_value_heads": 2,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 20,
            "sliding_window": 18,
            "use_bidirectional_attention": True,
        },
    ),
}
"""Name -> class of transformers, its configuration."""
TOLERANCE = 1e-5
"""Of the largest number of a text: float32 in another order."""


def compare(name: str, folder: Path) -> list[str]:
    """What differs; empty when nothing does."""
    import torch
    import transformers

    import hetero_tvm

    kind, sizes = CASES[name]
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    model = made(made.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (0.5 if parameter.dim() == 1 else 0.0))
    model.save_pretrained(folder / "checkpoint")
    model = made.from_pretrained(folder / "checkpoint").eval()  # Gemma 3 halves its window at every reading
    (folder / "checkpoint" / "modules.json").write_text(
        '[{"path": "", "type": "m.Transformer"}, {"path": "1_Pooling", "type": "m.Pooling"}]'
    )
    (folder / "checkpoint" / "1_Pooling").mkdir()
    (folder / "checkpoint/1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    hetero_tvm.build_embedding_model(folder / "checkpoint", folder / "out")
    net = hetero_tvm.load_embedding_model(folder / "out")
    problems = []
    for length in (1, 2, 7, 33, min(net.facts.context, 300)):
        ids = torch.randint(2, 120, (1, length))
        with torch.no_grad():
            rows = model.base_model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].numpy()
        found = net.library(ids[0].numpy().astype(np.int32), np.arange(length, dtype=np.int32))
        for what, got, expected in (
            ("rows", found, rows),
            ("their mean", net.embed_tokens([ids[0].tolist()])[0], rows.mean(0)),
        ):
            error = float(np.abs(got - expected).max() / np.abs(rows).max())
            if not error < TOLERANCE:
                problems.append(f"{name}: {what} of {length} tokens differ by {error:.1e}")
    return problems


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(CASES)}")
    options = parser.parse_args(None if argv is None else list(argv))
    failed = False
    for name in options.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            problems = compare(name, Path(folder))
        print("\n".join(problems) or f"{name}: equal", flush=True)
        failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
