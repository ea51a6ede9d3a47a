"""``python -m tests.campaign.multimodal_texts``: tokens of models that see and hear, asked by text, beside
those of transformers.

Tiny models with random weights, saved whole, of which :mod:`hetero_tvm` takes the part that continues texts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.campaign.language_models import NEW_TOKENS, PROMPTS, main

_TEXT = {
    "vocab_size": 211,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_HEADS = {**_TEXT, "head_dim": 16, "num_attention_heads": 4}
_EXPERTS = {
    **_HEADS,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
}
_GLM_MOE = {
    **_HEADS,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_group": 1,
    "topk_group": 1,
}
_TOKENS = {
    "image_token_id": 200,
    "video_token_id": 201,
    "vision_start_token_id": 202,
    "vision_end_token_id": 203,
}
_VISION = {"depth": 1, "num_heads": 2}


def _sections(*sizes: int, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sizes, **options}}


_QWEN2 = {**_HEADS, **_sections(2, 3, 3)}
_SEES_2 = {**_VISION, "embed_dim": 32, "hidden_size": 64}
_SEES_25 = {**_VISION, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}
_SEES_3 = {**_SEES_25, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
_LLAMA4 = {
    **_HEADS,
    "num_hidden_layers": 4,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16,
    "floor_scale": 12,
    "attn_scale": 0.7,
    "no_rope_layers": [1, 1, 0, 1],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VL", {**_TOKENS, "text_config": _QWEN2, "vision_config": _SEES_2}),
    "qwen2_5_vl": ("Qwen2_5_VL", {**_TOKENS, "text_config": _QWEN2, "vision_config": _SEES_25}),
    "qwen3_vl": (
        "Qwen3VL",
        {
            **_TOKENS,
            "text_config": {**_HEADS, **_sections(2, 3, 3, mrope_interleaved=True)},
            "vision_config": _SEES_3,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        {
            **_TOKENS,
            "text_config": {**_EXPERTS, **_sections(2, 3, 3, mrope_interleaved=True)},
            "vision_config": _SEES_3,
        },
    ),
    "glm4v": (
        "Glm4v",
        {
            **_TOKENS,
            "text_config": {**_HEADS, **_sections(1, 1, 2, partial_rotary_factor=0.5)},
            "vision_config": {**_SEES_25, "hidden_size": 32},
        },
    ),
    "glm4v_moe": (
        "Glm4vMoe",
        {
            **_TOKENS,
            "text_config": {**_GLM_MOE, **_sections(1, 1, 2, partial_rotary_factor=0.5)},
            "vision_config": {**_SEES_25, "hidden_size": 32},
        },
    ),
    "llama4": ("Llama4Text", _LLAMA4),
    "llama4_bare": ("Llama4Text", {**_LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False}),
    "llama4_two_experts": ("Llama4Text", {**_LLAMA4, "num_experts_per_tok": 2, "attention_bias": True}),
    "ministral3": (
        "Ministral3",
        {
            **_HEADS,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.4,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    "mllama": (
        "Mllama",
        {
            "text_config": {
                **_TEXT,
                "num_hidden_layers": 5,
                "cross_attention_layers": [1, 3],
                "bos_token_id": 1,
            },
            "vision_config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "intermediate_size": 48,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [0],
                "image_size": 28,
            },
            "image_token_index": 212,
        },
    ),
}


def reference(kind: str, folder: Path) -> list[list[int]]:
    """Write a checkpoint; gives what transformers adds to each prompt."""
    import torch
    import transformers

    torch.manual_seed(0)
    name, options = CASES[kind]
    config = getattr(transformers, name + "Config")(**options)
    part = "vision_config" not in options
    name = name.removesuffix("Text") + ("ForCausalLM" if part else "ForConditionalGeneration")
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            spread = 0.1 if values.dim() == 1 else 2.5 / values.shape[-1] ** 0.5
            spread = 0.08 if "embed" in tensor else spread
            values.copy_(torch.randn(values.shape) * spread + (values.dim() == 1))
        for tensor, values in model.named_buffers():
            if "correction" in tensor:
                values.copy_(torch.randn(values.shape) * 0.2)
        model.save_pretrained(folder)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}
        made = [model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :] for prompt in PROMPTS]
    return [tokens.tolist() for tokens in made]


def compare(kind: str, folder: Path) -> list[str]:
    """Differences between our tokens and those of transformers; empty when there are none."""
    from hetero_tvm import build_language_model, load_language_model
    from hetero_tvm.generation.generate import generate

    expected = reference(kind, folder / kind)
    model = load_language_model(build_language_model(folder / kind, folder / "out", page=16, rows=8))
    made = generate(model, PROMPTS, max_new_tokens=NEW_TOKENS)
    return [
        f"{kind}: {request.tokens} instead of {want}"
        for request, want in zip(made, expected, strict=True)
        if request.tokens != want
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, compare))
