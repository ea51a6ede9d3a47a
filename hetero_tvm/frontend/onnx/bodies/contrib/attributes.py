"""Attributes of ONNX Runtime's operators that are known here: any other one of a node is refused by name.

The ONNX checker knows no operator of ONNX Runtime's.  An attribute that a later version gave one of them, and
that nobody here reads, would change numbers in silence.
"""

from __future__ import annotations

import onnx
from onnx import helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import as_text

_WINDOW = "auto_pad dilations kernel_shape pads strides"
_CONV = f"{_WINDOW} group"
_POOL = f"{_WINDOW} ceil_mode"
_GROUPS = "activation channels_last epsilon groups"
_PRODUCT = "alpha transA transB"
_ATTENTION = "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional"
_ROTARY = "interleaved is_packed_batching num_heads rotary_embedding_dim scale"
_SWIGLU = "swiglu_fusion swiglu_limit swiglu_limit_after_activation"
_EXPERTS = (
    f"activation_alpha activation_beta activation_type k normalize_routing_weights use_sparse_mixer {_SWIGLU}"
)

_MICROSOFT = {
    "Attention": f"{_ATTENTION} qkv_hidden_sizes rotary_embedding_dim",
    "BiasAdd": "",
    "BiasDropout": "seed",
    "BiasGelu": "",
    "BiasSoftmax": "axis is_inner_broadcast",
    "BiasSplitGelu": "",
    "BranchwiseRMSNorm": "epsilon num_branches",
    "CDist": "metric",
    "CausalConvWithState": "activation channels_last dilation input_channel_offset input_channels ndim "
    "state_channels_last state_length state_update_capacity state_window",
    "ComplexMul": "",
    "ComplexMulConj": "",
    "CropAndResize": "extrapolation_value mode",
    "DecoderMaskedMultiHeadAttention": "mask_filter_value num_heads output_qk "
    "past_present_share_buffer scale",
    "DequantizeLinear": "axis",
    "DynamicQuantizeLSTM": "activation_alpha activation_beta activations clip direction hidden_size "
    "input_forget",
    "DynamicQuantizeMatMul": "",
    "EmbedLayerNormalization": "epsilon mask_index_type",
    "EngramGate": "epsilon",
    "ExpandDims": "",
    "FastGelu": "",
    "FusedConv": f"{_CONV} activation activation_params",
    "FusedGemm": f"{_PRODUCT} activation activation_alpha activation_beta activation_gamma beta",
    "FusedMatMul": f"{_PRODUCT} transBatchA transBatchB",
    "GatedAdd": "",
    "GatedRMSNorm": "activation epsilon",
    "GatedRelativePositionBias": "num_heads",
    "GatherBlockQuantized": "bits block_size gather_axis quantize_axis",
    "GatherND": "",
    "Gelu": "",
    "GemmFastGelu": "",
    "GridSample": "align_corners mode padding_mode",
    "GroupNorm": _GROUPS,
    "GroupQueryAttention": "causal do_rotary k_norm_epsilon k_quant_type kv_cache_bit_width kv_num_heads "
    "local_window_size num_heads "
    "q_norm_epsilon qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache "
    "smooth_softmax softcap v_quant_type",
    "HyperConnectionPostMix": "num_branches",
    "HyperConnectionPreMix": "num_branches reduction_scale",
    "Inverse": "",
    "LinearAttention": "chunk_size kv_num_heads q_num_heads scale state_window update_rule",
    "LinearAttentionGate": "",
    "MRotaryEmbedding": f"{_ROTARY} mrope_layout mrope_section",
    "MatMulBnb4": "K N block_size quant_type training_mode transB",
    "MatMulIntegerToFloat": "",
    "MatMulNBits": "K N accuracy_level bits block_size weight_prepacked",
    "MoE": _EXPERTS,
    "MultiHeadAttention": "mask_filter_value num_heads scale unidirectional",
    "NhwcConv": _CONV,
    "NhwcMaxPool": _POOL,
    "Pad": "mode",
    "QAttention": _ATTENTION,
    "QEmbedLayerNormalization": "epsilon",
    "QGemm": _PRODUCT,
    "QLinearAdd": "",
    "QLinearAveragePool": "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
    "QLinearConcat": "axis",
    "QLinearConv": f"{_CONV} channels_last",
    "QLinearGlobalAveragePool": "channels_last",
    "QLinearLeakyRelu": "alpha",
    "QLinearMul": "",
    "QLinearReduceMean": "axes keepdims",
    "QLinearSigmoid": "",
    "QLinearSoftmax": "axis opset",
    "QLinearWhere": "",
    "QMoE": f"{_EXPERTS} accuracy_level block_size expert_weight_bits fc1_expert_weight_bits "
    "fc2_expert_weight_bits fc3_expert_weight_bits quant_type weights_prepacked",
    "QuantizeLinear": "axis",
    "QuickGelu": "alpha",
    "Range": "",
    "RelativePositionBias": "is_bidirectional max_distance",
    "RotaryEmbedding": _ROTARY,
    "ScaledSiLU": "alpha",
    "SimplifiedLayerNormalization": "axis epsilon stash_type",
    "SkipGroupNorm": _GROUPS,
    "SkipLayerNormalization": "epsilon",
    "SkipSimplifiedLayerNormalization": "epsilon",
    "SwiGLU": "activation_alpha activation_beta limit round_activation",
    "TransposeMatMul": _PRODUCT,
    "Trilu": "upper",
    "UnfoldTensor": "dim size step",
    "Unique": "",
}
_BLOCKED = {
    "AveragePool": f"{_POOL} count_include_pad",
    "Conv": f"{_CONV} activation activation_params",
    "GlobalAveragePool": "",
    "GlobalMaxPool": "",
    "MaxPool": f"{_POOL} storage_order",
    "ReorderInput": "channels_last",
    "ReorderOutput": "channels channels_last",
    "Upsample": "coordinate_transformation_mode mode scales",
}
KNOWN: dict[tuple[str, str], frozenset[str]] = {
    (domain, name): frozenset(text.split())
    for domain, table in (("com.microsoft", _MICROSOFT), ("com.microsoft.nchwc", _BLOCKED))
    for name, text in table.items()
}
"""(domain, operator) -> attributes that the function which writes it out reads, or may ignore."""

IGNORED: frozenset[str] = frozenset(
    {
        "accuracy_level",  # the least precision of the products: ours are float32
        "block_size",  # of QMoE: the shape of the scales says it
        "chunk_size",  # how a kernel cuts its loop
        "hidden_size",  # of DynamicQuantizeLSTM: the shapes of the weights say it
        "is_inner_broadcast",  # which axes of the bias are one: its shape says it
        "mask_index_type",  # the mask says it
        "output_qk",  # the output says it
        "round_activation",  # how half precision rounds on the way
        "seed",  # of what only training draws
        "stash_type",  # statistics are float32
        "training_mode",  # what is kept for a gradient
    }
)
"""Attributes that change no number of what is computed here."""


def refuse_unknown(node: onnx.NodeProto) -> None:
    """Refuse a node of ONNX Runtime's with an attribute that nobody here knows.

    Raises
    ------
    UnsupportedOperatorError : there is one; names the node, the attribute and its value.
    """
    known = KNOWN.get((node.domain, node.op_type))
    for attribute in node.attribute if known is not None else ():
        name, value = attribute.name, helper.get_attribute_value(attribute)
        value = as_text(value) if isinstance(value, (str, bytes)) else value
        if name not in known:
            raise UnsupportedOperatorError(
                f"Node {node.name!r} ({node.op_type}) has the attribute {name}={value!r}, which is not "
                "supported.",
                hint="Take the file that this one was made from; where the attribute says what goes without "
                "it, remove it from the node.",
            )
