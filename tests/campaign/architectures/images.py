"""Architectures of images that few libraries know, detectors among them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers

from tests.campaign.architectures.models import (
    IMAGE,
    PARTS,
    RESNET,
    TEXT,
    Made,
    made_of,
    ones,
    pixels,
    spread,
    tokens,
)

_V = 99


def _rtdetr() -> Made:
    torch.manual_seed(0)
    bb = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    c = transformers.RTDetrConfig(
        backbone_config=bb,
        encoder_hidden_dim=32,
        encoder_in_channels=[16, 16, 16],
        d_model=32,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        decoder_attention_heads=4,
        decoder_layers=2,
        num_queries=10,
        num_labels=3,
        decoder_in_channels=[32, 32, 32],
        anchor_image_size=None,
    )
    return spread(transformers.RTDetrForObjectDetection(c)), pixels(64)()


def _cdetr() -> Made:
    torch.manual_seed(0)
    bb = transformers.ResNetConfig(**RESNET, out_features=["stage2"])
    c = transformers.ConditionalDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone_config=bb,
        **PARTS,
        num_queries=5,
        num_labels=3,
    )
    return spread(transformers.ConditionalDetrForObjectDetection(c)), pixels(64)()


def _upernet() -> Made:
    torch.manual_seed(0)
    bb = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    c = transformers.UperNetConfig(
        backbone_config=bb,
        hidden_size=16,
        auxiliary_in_channels=16,
        auxiliary_channels=8,
        pool_scales=[1, 2, 3, 6],
        num_labels=4,
    )
    return spread(transformers.UperNetForSemanticSegmentation(c)), pixels(64)()


IMAGES: dict[str, Callable[[], Made]] = {
    "levit": made_of(
        "LevitModel",
        "LevitConfig",
        pixels(64),
        image_size=64,
        hidden_sizes=[16, 32, 48],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        down_ops=[["Subsample", 8, 2, 2, 2, 2], ["Subsample", 8, 4, 2, 2, 2]],
    ),
    "pvtv2": made_of(
        "PvtV2Model",
        "PvtV2Config",
        pixels(64),
        image_size=64,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
    ),
    "poolformer": made_of(
        "PoolFormerModel", "PoolFormerConfig", pixels(64), hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]
    ),
    "focalnet": made_of(
        "FocalNetModel",
        "FocalNetConfig",
        pixels(),
        image_size=32,
        patch_size=2,
        embed_dim=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    "hiera": made_of(
        "HieraModel",
        "HieraConfig",
        lambda: {**pixels(64)(), "noise": torch.rand(1, 4)},
        image_size=[64, 64],
        embed_dim=16,
        depths=[1, 1, 1],
        num_heads=[1, 2, 4],
        patch_stride=[4, 4],
        patch_size=[7, 7],
        patch_padding=[3, 3],
        masked_unit_size=[8, 8],
        query_stride=[2, 2],
        num_query_pool=2,
    ),
    "swin2sr": made_of(
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        pixels(16),
        image_size=16,
        embed_dim=16,
        depths=[2],
        num_heads=[2],
        window_size=4,
    ),
    "swiftformer": made_of(
        "SwiftFormerModel",
        "SwiftFormerConfig",
        pixels(64),
        image_size=64,
        depths=[1, 1, 1, 1],
        embed_dims=[8, 16, 16, 24],
    ),
    "dinov3": made_of("DINOv3ViTModel", "DINOv3ViTConfig", pixels(), **IMAGE, num_register_tokens=2),
    "bit": made_of(
        "BitModel",
        "BitConfig",
        pixels(64),
        embedding_size=8,
        hidden_sizes=[32, 32, 64, 64],
        depths=[1, 1, 1, 1],
        num_groups=4,
        layer_type="preactivation",
    ),
    "dpt": made_of(
        "DPTForDepthEstimation",
        "DPTConfig",
        pixels(),
        **{**IMAGE, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 16, 16],
        fusion_hidden_size=16,
        is_hybrid=False,
    ),
    "glpn": made_of(
        "GLPNForDepthEstimation",
        "GLPNConfig",
        pixels(64),
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
    ),
    "mgpstr": made_of(
        "MgpstrForSceneTextRecognition",
        "MgpstrConfig",
        lambda: {"pixel_values": torch.randn(1, 3, 32, 32)},
        image_size=[32, 32],
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_token_length=5,
        num_character_labels=20,
        num_bpe_labels=30,
        num_wordpiece_labels=30,
    ),
    "vivit": made_of(
        "VivitModel",
        "VivitConfig",
        lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)},
        **IMAGE,
        num_frames=4,
        tubelet_size=[2, 8, 8],
    ),
    "superpoint": made_of(
        "SuperPointForKeypointDetection",
        "SuperPointConfig",
        pixels(32),
        encoder_hidden_sizes=[8, 8, 16, 16],
        decoder_hidden_size=16,
        descriptor_decoder_dim=16,
        keypoint_decoder_dim=65,
    ),
    "owlvit": made_of(
        "OwlViTForObjectDetection",
        "OwlViTConfig",
        lambda: {"input_ids": tokens(8), **pixels()(), "attention_mask": ones(8)},
        text_config={**TEXT, "max_position_embeddings": 8},
        vision_config=IMAGE,
        projection_dim=32,
    ),
    "rtdetr": _rtdetr,
    "conditional-detr": _cdetr,
    "sam": made_of(
        "SamVisionModel",
        "SamVisionConfig",
        pixels(64),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=64,
        patch_size=8,
        window_size=3,
        global_attn_indexes=[1],
        mlp_dim=64,
        output_channels=16,
    ),
    "upernet": _upernet,
}
