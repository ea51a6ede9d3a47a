"""Design spaces for CPUs, tried in this order; a new space is one file and one entry here."""

from __future__ import annotations

from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.chains.expand_depthwise import ExpandDepthwiseSpace
from hetero_tvm.schedules.cpu.halves.attention import Bf16AttentionSpace
from hetero_tvm.schedules.cpu.halves.conv2d import Bf16Conv2dSpace
from hetero_tvm.schedules.cpu.image_norms.channel_norm import BlockedNormalizeSpace
from hetero_tvm.schedules.cpu.image_norms.group_norm import BlockedGroupNormSpace
from hetero_tvm.schedules.cpu.images.conv2d import Conv2dSpace
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from hetero_tvm.schedules.cpu.images.interleave import InterleaveSpace
from hetero_tvm.schedules.cpu.images.pool2d import Pool2dSpace
from hetero_tvm.schedules.cpu.images.pool2d_plain import PlainPool2dSpace
from hetero_tvm.schedules.cpu.images.relayout import RelayoutSpace
from hetero_tvm.schedules.cpu.integers.attention.products import QuantBatchMatmulSpace
from hetero_tvm.schedules.cpu.integers.attention.softmax import QuantSoftmaxSpace
from hetero_tvm.schedules.cpu.integers.bf16_matmul import Bf16MatmulSpace
from hetero_tvm.schedules.cpu.integers.byte_table import ByteTableSpace
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicGatedMatmulSpace, DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.quant_conv2d import QuantConv2dSpace
from hetero_tvm.schedules.cpu.integers.quant_matmul import QuantMatmulSpace
from hetero_tvm.schedules.cpu.integers.stored_matmul import StoredMatmulSpace
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.products.gated_matmul import GatedMatmulSpace
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.rows.add_norm import AddNormSpace
from hetero_tvm.schedules.cpu.rows.elementwise import ElementwiseSpace
from hetero_tvm.schedules.cpu.rows.embedding_norm import EmbeddingNormSpace
from hetero_tvm.schedules.cpu.rows.forest import ForestSpace
from hetero_tvm.schedules.cpu.rows.group_norm import GroupNormSpace
from hetero_tvm.schedules.cpu.rows.normalization import NormalizeSpace
from hetero_tvm.schedules.cpu.rows.normalization_axis import NormalizeAxisSpace
from hetero_tvm.schedules.cpu.rows.recurrence import RecurrenceSpace
from hetero_tvm.schedules.cpu.rows.rope import RopeSpace
from hetero_tvm.schedules.cpu.rows.softmax import SoftmaxSpace
from hetero_tvm.schedules.cpu.rows.softmax_axis import SoftmaxAxisSpace

CPU_SPACES: tuple[DesignSpace, ...] = (
    MatmulSpace(),
    GatedMatmulSpace(),
    BatchMatmulSpace(),
    DynamicMatmulSpace(),
    DynamicGatedMatmulSpace(),
    StoredMatmulSpace(),
    Bf16MatmulSpace(),
    Bf16Conv2dSpace(),
    QuantMatmulSpace(),
    QuantConv2dSpace(),
    QuantBatchMatmulSpace(),
    QuantSoftmaxSpace(),
    ByteTableSpace(),
    AttentionSpace(),
    Bf16AttentionSpace(),
    NormalizeSpace(),
    NormalizeAxisSpace(),
    AddNormSpace(),
    EmbeddingNormSpace(),
    GroupNormSpace(),
    BlockedGroupNormSpace(),
    BlockedNormalizeSpace(),
    SoftmaxSpace(),
    SoftmaxAxisSpace(),
    BlockedConv2dSpace(),
    DepthwiseSpace(),
    ExpandDepthwiseSpace(),
    RopeSpace(),
    Conv2dSpace(),
    ElementwiseSpace(),
    Pool2dSpace(),
    PlainPool2dSpace(),
    RelayoutSpace(),
    InterleaveSpace(),
    RecurrenceSpace(),
    ForestSpace(),
)
