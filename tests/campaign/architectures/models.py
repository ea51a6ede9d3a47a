"""Architectures of transformers and of plain PyTorch, tiny, with seeded weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

Made = tuple[torch.nn.Module, dict[str, Any]]
"""A module in evaluation mode and its arguments by name."""

LENGTH, VOCABULARY = 12, 99
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
DECODER = {
    **TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {**DECODER, "num_experts_per_tok": 2}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
PARTS = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


def tokens(length: int = LENGTH, most: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(5, most, (1, length))


def ones(length: int = LENGTH) -> torch.Tensor:
    return torch.ones(1, length, dtype=torch.int64)


def text() -> dict[str, Any]:
    return {"input_ids": tokens(), "attention_mask": ones()}


def prompt() -> dict[str, Any]:
    return {"input_ids": tokens(), "use_cache": False}


def pair() -> dict[str, Any]:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(5), "use_cache": False}


def pixels(size: int = 32) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(1, 3, size, size)}


def wave(size: int, *channels: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_values": torch.randn(1, *channels, size)}


def made_of(
    name: str, config: str, given: Callable[[], dict[str, Any]], pick: str = "", **options: Any
) -> Callable[[], Made]:
    """What makes model ``name`` of transformers; ``pick``, of that, is the part that is taken."""

    def make() -> Made:
        torch.manual_seed(0)
        model = getattr(transformers, name)(getattr(transformers, config)(**options))
        return spread(getattr(model, pick) if pick else model), given()

    return make


def _plain(make: Callable[[], torch.nn.Module], given: Callable[[], dict[str, Any]]) -> Callable[[], Made]:
    def made() -> Made:
        torch.manual_seed(0)
        return spread(make()), given()

    return made


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights of an order that lets a fault show: those of transformers' beginnings hide it."""
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.7 / max(1, weight[0].numel()) ** 0.5)
    return model.eval()


def clip() -> dict[str, Any]:
    return {**text(), **pixels()()}


# ---- plain PyTorch ---------------------------------------------------------------------------------


class DiffusionUNet(torch.nn.Module):
    """A step of a diffusion model: time embedding, norms of groups, attention over pixels, a skip."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.time = nn.Linear(32, 16)
        self.norm = nn.GroupNorm(4, 16)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 16, 3, 2, 1)
        self.qkv = nn.Conv2d(16, 48, 1)
        self.project = nn.Conv2d(16, 16, 1)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(16) / 16 * 9.2)
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        kept = self.first(x)
        h = self.conv(torch.nn.functional.silu(self.norm(kept))) + embedded[:, :, None, None]
        h = self.down(h)
        b, c, height, width = h.shape
        packed = self.qkv(self.norm(h)).reshape(b, 3, 4, c // 4, height * width)
        q, k, v = packed.transpose(-1, -2).unbind(1)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        h = h + self.project(attended.transpose(-1, -2).reshape(b, c, height, width))
        return self.last(torch.cat([torch.nn.functional.interpolate(h, scale_factor=2.0), kept], 1))


class Recommender(torch.nn.Module):
    """Bags of categories and dense features, crossed pairwise."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(4))
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = self.dense(x)
        parts = torch.stack([dense, *(bag(ids[:, i]) for i, bag in enumerate(self.bags))], 1)
        crossed = parts @ parts.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([dense, crossed[:, rows, columns]], 1))


class TaggedLSTM(torch.nn.Module):
    """Two directions of an LSTM over embedded tokens, with tags."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 16)
        self.lstm = torch.nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)
        self.tags = torch.nn.Linear(48, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.embed(ids))[0])


# ---- the architectures -------------------------------------------------------------------------------

_MAPPED = {
    "window_size_per_stage": [8, 4, 4, 2],
    "window_positional_embedding_background_size": [4, 4],
    "hidden_size": 16,
    "num_attention_heads": 1,
    "image_size": [64, 64],
    "patch_kernel_size": [7, 7],
    "blocks_per_stage": [1, 1, 2, 1],
    "embed_dim_per_stage": [16, 32, 64, 128],
    "num_attention_heads_per_stage": [1, 2, 4, 8],
    "global_attention_blocks": [3],
}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
SERIES = {"prediction_length": 4, "context_length": 16, "num_time_features": 1, "lags_sequence": [1, 2]}


def past() -> dict[str, Any]:
    return {
        "past_values": torch.randn(2, 18),
        "past_time_features": torch.randn(2, 18, 1),
        "past_observed_mask": torch.ones(2, 18),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


def _detr() -> Callable[[], Made]:
    def make() -> Made:
        torch.manual_seed(0)
        backbone = transformers.ResNetConfig(**RESNET, out_features=["stage2"])
        parts = {**PARTS, "num_queries": 5, "num_labels": 3, "backbone_config": backbone}
        config = transformers.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, **parts)
        return spread(transformers.DetrForObjectDetection(config)), pixels(64)()

    return make


def _mask2former() -> Made:
    torch.manual_seed(0)
    backbone = transformers.SwinConfig(
        **{**_SWIN, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "image_size": 64},
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=4,
        dim_feedforward=32,
        num_queries=5,
    )
    return spread(transformers.Mask2FormerModel(config)), pixels(64)()


def _depth_anything() -> Made:
    torch.manual_seed(0)
    backbone = transformers.Dinov2Config(
        **{**IMAGE, "num_hidden_layers": 4}, out_indices=[1, 2, 3, 4], reshape_hidden_states=False
    )
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=32,
        patch_size=8,
        neck_hidden_sizes=[8, 16, 16, 16],
        fusion_hidden_size=16,
        head_hidden_size=8,
    )
    return spread(transformers.DepthAnythingForDepthEstimation(config)), pixels()()


def _trocr() -> Made:
    torch.manual_seed(0)
    decoder = {**PARTS, "vocab_size": VOCABULARY, "max_position_embeddings": 32}
    decoder |= {"decoder_start_token_id": 1, "cross_attention_hidden_size": 32}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**IMAGE), transformers.TrOCRConfig(**decoder)
    )
    given = {**pixels()(), "decoder_input_ids": tokens(5), "use_cache": False}
    return spread(transformers.VisionEncoderDecoderModel(config)), given


ARCHITECTURES: dict[str, Callable[[], Made]] = {
    "bert": made_of("BertModel", "BertConfig", text, **TEXT),
    "deberta": made_of(
        "DebertaV2Model",
        "DebertaV2Config",
        text,
        **TEXT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    ),
    "electra": made_of("ElectraModel", "ElectraConfig", text, **TEXT, embedding_size=16),
    "xlnet": made_of(
        "XLNetModel",
        "XLNetConfig",
        text,
        vocab_size=VOCABULARY,
        d_model=32,
        n_layer=1,
        n_head=4,
        d_inner=64,
        use_mems_eval=False,
    ),
    "modernbert": made_of("ModernBertModel", "ModernBertConfig", text, **TEXT, pad_token_id=0),
    "layoutlm": made_of("LayoutLMModel", "LayoutLMConfig", text, **TEXT),
    "t5": made_of(
        "T5Model",
        "T5Config",
        pair,
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    "bart": made_of(
        "BartModel", "BartConfig", pair, vocab_size=VOCABULARY, max_position_embeddings=64, **PARTS
    ),
    "vit": made_of("ViTModel", "ViTConfig", pixels(), **IMAGE),
    "swin": made_of("SwinModel", "SwinConfig", pixels(), **_SWIN),
    "beit": made_of("BeitModel", "BeitConfig", pixels(), **IMAGE, use_relative_position_bias=True),
    "dinov2": made_of("Dinov2Model", "Dinov2Config", pixels(), **IMAGE),
    "clip": made_of(
        "CLIPModel",
        "CLIPConfig",
        clip,
        text_config={**TEXT, "eos_token_id": 2},
        vision_config=IMAGE,
        projection_dim=16,
    ),
    "siglip": made_of("SiglipVisionModel", "SiglipVisionConfig", pixels(), **IMAGE),
    "wav2vec2": made_of("Wav2Vec2Model", "Wav2Vec2Config", wave(400), **SPEECH),
    "hubert": made_of("HubertModel", "HubertConfig", wave(400), **SPEECH),
    "whisper": made_of(
        "WhisperModel",
        "WhisperConfig",
        lambda: {
            "input_features": torch.randn(1, 8, 40),
            "decoder_input_ids": tokens(5),
            "use_cache": False,
        },
        **PARTS,
        vocab_size=VOCABULARY,
        max_source_positions=20,
        max_target_positions=20,
        num_mel_bins=8,
        pad_token_id=0,
        decoder_start_token_id=1,
    ),
    "speecht5": made_of(
        "SpeechT5ForSpeechToText",
        "SpeechT5Config",
        lambda: {**wave(400)(), "decoder_input_ids": tokens(5), "use_cache": False},
        **{
            key: value
            for key, value in SPEECH.items()
            if key not in ("num_hidden_layers", "num_attention_heads")
        },
        **{key: value for key, value in PARTS.items() if key != "d_model"},
        vocab_size=VOCABULARY,
        num_feat_extract_layers=2,
        encoder_max_relative_position=8,
    ),
    "encodec": made_of(
        "EncodecModel",
        "EncodecConfig",
        lambda: {**wave(640, 1)(), "bandwidth": 30.0},
        num_filters=4,
        hidden_size=16,
        codebook_dim=16,
        codebook_size=32,
        target_bandwidths=[30.0],
        num_lstm_layers=1,
        upsampling_ratios=[4, 2],
    ),
    "sam2": made_of(
        "Sam2VisionModel",
        "Sam2VisionConfig",
        pixels(64),
        backbone_config={"model_type": "sam2_hiera_det_model", **_MAPPED},
        backbone_channel_list=[128, 64, 32, 16],
        fpn_hidden_size=16,
        backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
    ),
    "detr": _detr(),
    "segformer": made_of(
        "SegformerModel",
        "SegformerConfig",
        pixels(),
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
    ),
    "mask2former": _mask2former,
    "mamba": made_of(
        "MambaForCausalLM",
        "MambaConfig",
        prompt,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        state_size=8,
    ),
    "mamba2": made_of(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        prompt,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=1,
        state_size=8,
        num_heads=4,
        head_dim=16,
        n_groups=2,
        chunk_size=4,
    ),
    "rwkv": made_of(
        "RwkvModel",
        "RwkvConfig",
        prompt,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        context_length=16,
    ),
    "recurrentgemma": made_of(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        prompt,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        lru_width=32,
        intermediate_size=64,
        attention_window_size=8,
    ),
    "mixtral": made_of("MixtralForCausalLM", "MixtralConfig", prompt, **EXPERTS, num_local_experts=4),
    "qwen2-moe": made_of(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        prompt,
        **EXPERTS,
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "gpt-oss": made_of(
        "GptOssForCausalLM",
        "GptOssConfig",
        prompt,
        **{**EXPERTS, "num_hidden_layers": 2},
        num_local_experts=4,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling=None,
    ),
    "gemma3": made_of("Gemma3ForCausalLM", "Gemma3TextConfig", prompt, **DECODER),
    "phi3": made_of("Phi3ForCausalLM", "Phi3Config", prompt, **DECODER),
    "falcon": made_of("FalconForCausalLM", "FalconConfig", prompt, **TEXT),
    "bloom": made_of(
        "BloomForCausalLM", "BloomConfig", prompt, vocab_size=99, hidden_size=32, n_layer=1, n_head=4
    ),
    "llama": made_of("LlamaForCausalLM", "LlamaConfig", prompt, **DECODER),
    "opt": made_of(
        "OPTForCausalLM", "OPTConfig", prompt, **TEXT, ffn_dim=64, word_embed_proj_dim=32, pad_token_id=0
    ),
    "trocr": _trocr,
    "videomae": made_of(
        "VideoMAEModel",
        "VideoMAEConfig",
        lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)},
        **IMAGE,
        num_frames=4,
    ),
    "timesformer": made_of(
        "TimesformerModel",
        "TimesformerConfig",
        lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)},
        **IMAGE,
        num_frames=4,
    ),
    "patchtst": made_of(
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        lambda: {"past_values": torch.randn(2, 32, 3)},
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        ffn_dim=64,
        prediction_length=4,
        use_cls_token=True,
    ),
    "informer": made_of("InformerModel", "InformerConfig", past, **SERIES, **PARTS, sampling_factor=5),
    "convnext": made_of(
        "ConvNextModel", "ConvNextConfig", pixels(), hidden_sizes=[16, 32], depths=[1, 1], num_stages=2
    ),
    "efficientnet": made_of(
        "EfficientNetModel",
        "EfficientNetConfig",
        pixels(64),
        width_coefficient=0.25,
        depth_coefficient=0.3,
        hidden_dim=320,
        image_size=64,
    ),
    "mobilevit": made_of(
        "MobileViTModel",
        "MobileViTConfig",
        pixels(64),
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32],
        image_size=64,
    ),
    "regnet": made_of(
        "RegNetModel",
        "RegNetConfig",
        pixels(),
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        groups_width=8,
    ),
    "depth-anything": _depth_anything,
    "diffusion-unet": _plain(
        DiffusionUNet, lambda: {"x": torch.randn(2, 3, 16, 16), "t": torch.tensor([3.0, 77.0])}
    ),
    "recommender": _plain(
        Recommender, lambda: {"x": torch.randn(6, 13), "ids": torch.randint(0, 50, (6, 4, 3))}
    ),
    "lstm": _plain(TaggedLSTM, lambda: {"ids": tokens()}),
}
