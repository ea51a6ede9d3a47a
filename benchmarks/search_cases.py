"""Operators from real models for every design space of the CPU: what the search is judged by."""

from __future__ import annotations

from hetero_tvm.codegen.amx import BF16
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.images.norms import BlockedGroupNorm, BlockedNormalization
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d
from hetero_tvm.ops.integers.byte_table import ByteTable
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.ops.loops.forest import Forest
from hetero_tvm.ops.loops.recurrence import Recurrence
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.pool2d import Pool2d, Relayout
from hetero_tvm.ops.rope import Rope
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.dots import halves_for
from hetero_tvm.schedules.cpu.integers.matrix_unit import has_matrix_unit


def cases(machine: CpuModel) -> dict[str, list[FusedOp]]:
    """Operators by name of the space that serves them on ``machine``; those without a choice are left out."""
    found = {
        "cpu.matmul": _products(),
        "cpu.gated_matmul": [
            GatedMatmul((1,), 2048, 768, "silu"),
            GatedMatmul((64,), 1024, 512, "silu"),
            GatedMatmul((128,), 2048, 768, "silu"),
        ],
        "cpu.batch_matmul": [
            _heads(12, 128, 128, 64, turned=True),
            _heads(12, 128, 64, 128, turned=False),
            _heads(4, 256, 256, 32, turned=True),
            _heads(8, 49, 49, 32, turned=True),
        ],
        "cpu.attention": [
            Attention(1, 12, 128, 128, 32, 0.2, 12, packed=True, mask=(1, 1, 1, 128)),
            Attention(1, 12, 128, 128, 64, 0.125, 12, packed=True),
            Attention(1, 12, 197, 197, 64, 0.125, 12, packed=True),
            Attention(1, 8, 256, 256, 64, 0.125, 2, causal=True),
        ],
        **_integers(),
        **(_halves() if halves_for(machine) is not None else {}),
        **(_halved_attention() if has_matrix_unit(machine, BF16) else {}),
        **_rows(),
        **_images(machine.lanes),
    }
    return found


def _products() -> list[FusedOp]:
    return [
        Matmul((1,), 1000, 2048, ("bias",)),
        Matmul((7,), 2048, 768),
        Matmul((16,), 768, 768, ("bias",)),
        Matmul((128,), 768, 768, ("bias",)),
        Matmul((128,), 1536, 384, ("bias", "gelu_erf")),
        Matmul((128,), 768, 3072, ("bias", "residual")),
        Matmul((197,), 768, 768, ("bias",)),
        Matmul((1024,), 64, 64),
        Matmul((64,), 256, 256, ("bias", "relu")),
        Matmul((16,), 384, 384),
    ]


def _integers() -> dict[str, list[FusedOp]]:
    sizes = (((1,), 1000, 2048), ((16,), 768, 768), ((128,), 1536, 384), ((197,), 768, 768))
    return {
        "cpu.dynamic_matmul": [DynamicMatmul(*size, ("bias",)) for size in sizes],
        "cpu.dynamic_gated_matmul": [
            DynamicGatedMatmul((1,), 2048, 768, "silu"),
            DynamicGatedMatmul((128,), 2048, 768, "silu"),
        ],
        "cpu.stored_matmul": [
            StoredMatmul((1,), 2048, 768, ("bias",), "int4", 32, True),
            StoredMatmul((1,), 2048, 768, ("bias",), "bf16"),
            StoredMatmul((128,), 768, 768, ("bias",), "int8", 128),
        ],
        "cpu.quant_matmul": [QuantMatmul("uint8", "uint8", 128, False, *size) for size in sizes],
        "cpu.quant_batch_matmul": [
            _byte_heads(12, 128, 32, 128),
            _byte_heads(12, 128, 128, 32, summed=True),
            _byte_heads(12, 197, 64, 197),
            _byte_heads(6, 1500, 1500, 64, summed=True),
        ],
        "cpu.quant_softmax": [
            QuantSoftmax((rows,), n, "uint8", 0.1, "uint8", 1 / 255, 0)
            for rows, n in ((1536, 128), (2364, 197), (9000, 1500))
        ],
        "cpu.quant_conv2d": [
            _bytes(64, 56, 64, 3),
            _bytes(256, 14, 1024, 1),
            _bytes(128, 56, 128, 3, step=2),
            _bytes(144, 56, 144, 3, groups=144),
        ],
    }


def _byte_heads(heads: int, m: int, k: int, n: int, summed: bool = False) -> QuantBatchMatmul:
    """Scores of heads that lie beside each other in a row, or sums of their values."""
    across, along = (n * heads, 1), (1, k * heads)
    return QuantBatchMatmul(
        *((heads,), m, n, k),
        *((heads, m, k) if summed else (m, heads, k), (0, m * k, k, 1) if summed else (0, k, k * heads, 1)),
        *((k, heads, n), (0, n, *across)) if summed else ((n, heads, k), (0, k, *along)),
        *(
            (1, 0, 2) if summed else (0, 1, 2),
            "uint8",
            "uint8",
            0 if summed else 120,
            128,
            1e-3,
            "uint8",
            120,
        ),
    )


def _halved_attention() -> dict[str, list[FusedOp]]:
    attentions = [
        Attention(1, 12, 128, 128, 64, 0.125, 12, packed=True, mask=(1, 1, 1, 128)),
        Attention(1, 12, 197, 197, 64, 0.125, 12, packed=True),
        Attention(1, 6, 1500, 1500, 64, 0.125, 6),
        Attention(1, 12, 512, 512, 64, 0.125, 12, packed=True, causal=True),
    ]
    return {"cpu.bf16_attention": [Bf16Attention.of(op) for op in attentions]}


def _halves() -> dict[str, list[FusedOp]]:
    sizes = (((16,), 768, 768), ((128,), 1536, 384), ((197,), 768, 768))
    products = [StoredMatmul(*size, ("bias",), "bf16", x_bits=16) for size in sizes]
    gated = StoredMatmul((64,), 1024, 512, (), "bf16", gate="silu", x_bits=16)
    images = [_image(64, 56, 256, 1), _image(256, 14, 256, 3), _image(256, 28, 512, 1, step=2)]
    return {
        "cpu.bf16_matmul": [*products, gated],
        "cpu.bf16_conv2d": [Bf16Conv2d.of(image) for image in images],
    }


def _image(channels: int, size: int, filters: int, kernel: int, step: int = 1) -> Conv2d:
    """A convolution on blocks of 16 channels, zeros around its input where its filter reaches them."""
    border = kernel // 2
    same, halo = (border,) * 4, f"+{border},{border},{border},{border}" if border else ""
    return Conv2d(
        1, channels, size, size, filters, (kernel, kernel), (step, step), same, epilogue=("bias", "relu"),
        x_layout=f"NCHW16c{halo}", y_layout="NCHW16c",
    )  # fmt: skip


def _bytes(
    channels: int, size: int, filters: int, kernel: int, step: int = 1, groups: int = 1
) -> QuantConv2d:
    """A convolution of quantised images as it comes after a bounded activation."""
    same, image = (kernel // 2,) * 4, (1, channels, size, size, filters)
    geometry = ((kernel, kernel), (step, step), same, (1, 1), -128, groups)
    return QuantConv2d("uint8", "uint8", 0, True, *image, *geometry)


def _heads(heads: int, m: int, n: int, k: int, turned: bool) -> BatchMatmul:
    """``Q K^T`` (turned), or a product of attention weights and values, of heads that lie side by side."""
    right, at = ((heads, n, k), (0, n * k, 1, k)) if turned else ((heads, k, n), (0, k * n, n, 1))
    return BatchMatmul((heads,), m, n, k, (heads, m, k), (0, m * k, k, 1), right, at, (0, 1, 2))


def _rows() -> dict[str, list[FusedOp]]:
    return {
        "cpu.normalize": [
            Normalization((rows,), n, 1e-5) for rows, n in ((16, 256), (128, 768), (1024, 1024))
        ],
        "cpu.normalize_axis": [
            Normalization((1,), n, 1e-5, trail=trail)
            for n, trail in ((64, (56, 56)), (384, (14, 14)), (16, (8, 8)))
        ],
        "cpu.add_norm": [
            AddNorm((rows,), n, (rows, n), 1e-5) for rows, n in ((8, 384), (128, 768), (512, 1024))
        ],
        "cpu.embedding_norm": [
            EmbeddingNorm((1, rows), n, (Lookup(30522, (1, rows)), Lookup(512, (1, rows))), (), 1e-12)
            for rows, n in ((16, 384), (128, 384), (128, 768))
        ],
        "cpu.group_norm": [
            GroupNorm((1, 64, 8, 8), 32, 1e-5),
            GroupNorm((1, 320, 32, 32), 32, 1e-5, "silu"),
            GroupNorm((1, 64, 112, 112), 64, 1e-5),
        ],
        "cpu.softmax": [Softmax((rows,), n) for rows, n in ((12, 49), (1536, 128), (64, 32000))],
        "cpu.rope": [
            Rope(
                (1, 12, rows, 64),
                64,
                False,
                (1, 1, rows, 64),
                (1, 12, rows, 64),
                (0, 768 * rows, 64 * rows, 64),
            )
            for rows in (7, 64, 512)
        ],
        "cpu.recurrence": [
            Recurrence("lstm", 64, 1, 256),
            Recurrence("gru", 32, 8, 128, reverse=True),
            Recurrence("gru_before", 32, 4, 192),
            Recurrence("lstm", 16, 4, 512, initial=True),
        ],
        "cpu.forest": [
            Forest(1, 30, 100, 3000, 1, 8),
            Forest(64, 30, 300, 30000, 3, 6, True),
            Forest(4096, 20, 500, 60000, 1, 8, True),
        ],
        "cpu.byte_table": [ByteTable((n,), "int8", "int8") for n in (4096, 1 << 17, 1 << 20)],
        "cpu.softmax_axis": [
            Softmax(lead, n, log=log, trail=trail)
            for lead, n, trail, log in (
                ((1,), 21, (128, 128), False),
                ((8,), 64, (49,), False),
                ((), 300, (577,), True),
            )
        ],
        "cpu.elementwise": [
            Elementwise((n,), f) for n, f in ((2048, "relu"), (64 * 3072, "gelu_erf"), (1 << 21, "silu"))
        ],
    }


def _images(lanes: int) -> dict[str, list[FusedOp]]:
    blocked = f"NCHW{lanes}c"
    halo = f"{blocked}+1,1,1,1"
    inside = {"x_layout": halo, "y_layout": blocked, "residual_layout": blocked}
    plain = {"x_layout": blocked, "y_layout": blocked, "residual_layout": blocked}
    same = (1, 1, 1, 1)

    def conv(channels: int, size: int, filters: int, **more: object) -> Conv2d:
        return Conv2d(
            1, channels, size, size, filters, (3, 3), padding=same, epilogue=("bias", "relu"), **more
        )

    def point(channels: int, size: int, filters: int, **more: object) -> Conv2d:
        return Conv2d(1, channels, size, size, filters, (1, 1), epilogue=("bias",), **more)

    return {
        "cpu.conv2d": [
            conv(64, 56, 64),
            Conv2d(1, 3, 224, 224, 32, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=("bias",)),
            Conv2d(1, 80, 1, 600, 384, (1, 3), padding=(0, 1, 0, 1), epilogue=("bias",)),
            point(256, 14, 256),
            Conv2d(1, 512, 38, 80, 64, (1, 1), epilogue=("bias",)),
        ],
        "cpu.conv2d_blocked": [
            conv(64, 56, 64, **inside),
            conv(128, 28, 128, **inside),
            conv(512, 7, 512, **inside),
            point(64, 56, 256, **plain),
            point(512, 14, 128, **plain),
            point(1024, 14, 256, **plain),
            point(256, 14, 1024, **plain),
            point(2048, 7, 512, **plain),
            conv(256, 28, 256, strides=(2, 2), **inside),
        ],
        "cpu.depthwise": [
            conv(n, size, n, groups=n, strides=(step, step), **inside)
            for n, size, step in ((96, 112, 2), (144, 56, 1), (384, 14, 1), (960, 7, 1))
        ],
        "cpu.expand_depthwise": [
            ExpandDepthwise(
                *(1, n, size, size, 6 * n, (3, 3), (step, step), same),
                *(("bias", "relu6"), ("bias", "relu6"), blocked, blocked),
            )
            for n, size, step in ((16, 112, 2), (32, 28, 1), (96, 14, 1), (160, 7, 1))
        ],
        "cpu.pool2d": [
            Pool2d(
                1, 64, 112, 112, (3, 3), (2, 2), same, (56, 56), "max", x_layout=blocked, y_layout=blocked
            ),
            Pool2d(
                1, 512, 7, 7, (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), "avg", x_layout=blocked, y_layout=blocked
            ),
            Pool2d(
                1,
                128,
                35,
                35,
                (5, 5),
                (1, 1),
                (2, 2, 2, 2),
                (35, 35),
                "avg",
                x_layout=blocked,
                y_layout=blocked,
            ),
        ],
        "cpu.pool2d_plain": [
            Pool2d(1, 64, 112, 112, (3, 3), (2, 2), same, (56, 56), "max"),
            Pool2d(1, 256, 20, 20, (5, 5), (1, 1), (2, 2, 2, 2), (20, 20), "max"),
            Pool2d(1, 32, 64, 64, (2, 2), (2, 2), (0, 0, 0, 0), (32, 32), "avg"),
        ],
        "cpu.relayout": [Relayout(1, 64, 56, 56, "NCHW", blocked)],
        "cpu.blocked_group_norm": [BlockedGroupNorm(1, 320, 32, 32, blocked, blocked, 32, 1e-5, "silu")],
        "cpu.blocked_normalize": [BlockedNormalization(1, 96, 56, 56, blocked, blocked, 1e-5)],
        "cpu.interleave": [
            Interleave(1, 1, 32, 64, 64, (2, 2), (1, 1), (126, 126)),
            Interleave(1, 1, 64, 1, 400, (1, 8), (0, 4), (1, 3192)),
            Interleave(1, 1, 16, 16, 16, (4, 4), (0, 0), (64, 64)),
        ],
    }
