"""Names that options take, for their help and for completion in a shell.

They stand here once more, so that no help waits for the compiler to be imported; a test compares them with
what there is.
"""

from __future__ import annotations

SHELLS = ("bash", "zsh", "fish")

TARGETS = (
    "cpu",
    "cpu:x86-64-v3",
    "cpu:x86-64-v4",
    "cpu:znver4",
    "cpu:sapphirerapids",
    "npu:edge",
    "npu:mobile",
    "npu:datacenter",
    "cuda:sm_80",
    "cuda:sm_86",
    "cuda:sm_89",
    "cuda:sm_90",
    "cuda:sm_90a",
    "cuda:sm_100",
    "cuda:sm_120",
)
"""Targets that a shell completes; a CPU may be any that LLVM knows."""

FUSIONS = (
    "add_norm",
    "added_convolutions",
    "attention",
    "batch_matmul",
    "conv_bn",
    "conv_epilogue",
    "conv_pad",
    "embedding_norm",
    "fold_conv_input_scales",
    "fold_conv_output_scales",
    "fold_input_scales",
    "fold_output_scales",
    "gated_mlp",
    "gelu",
    "group_norm",
    "hard_swish",
    "layer_norm",
    "matmul_epilogue",
    "qkv",
    "quick_gelu",
    "rms_norm",
    "rope",
    "silu",
    "softmax_kernel",
)
"""Fusions that one may want to switch off, of every target."""

TARGET_HELP = (
    "cpu[:CPU], npu[:edge|mobile|datacenter], cuda[:sm_XX[,sm_YY]] (default: cpu, this machine's own)"
)
DISABLE_HELP = f"a fusion to switch off; repeatable. Among them: {', '.join(FUSIONS)}"
PRECISION_HELP = "f32, f16 (also fp16, float16) and bf16; int8 for cpu, tf32 for cuda (default: the target's)"
