"""Every NPU design space, tried in order; a new one is one file and one entry here."""

from __future__ import annotations

from hetero_tvm.schedules.npu.attention.space import NpuAttentionSpace
from hetero_tvm.schedules.npu.base import NpuSpace
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.images.depthwise import NpuDepthwiseSpace
from hetero_tvm.schedules.npu.images.depthwise_matrix import NpuDepthwiseMatrixSpace
from hetero_tvm.schedules.npu.images.global_pool import NpuGlobalPoolSpace
from hetero_tvm.schedules.npu.images.pool2d import NpuPool2dSpace
from hetero_tvm.schedules.npu.images.quantized_conv2d import NpuQuantizedConv2dSpace
from hetero_tvm.schedules.npu.images.quantized_depthwise import NpuQuantizedDepthwiseSpace
from hetero_tvm.schedules.npu.matmul.gated_matmul import NpuGatedMatmulSpace
from hetero_tvm.schedules.npu.matmul.quantized import NpuQuantizedMatmulSpace
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.schedules.npu.rows.embedding_norm import NpuEmbeddingNormSpace
from hetero_tvm.schedules.npu.rows.normalization import NpuNormalizationSpace
from hetero_tvm.schedules.npu.rows.softmax import NpuSoftmaxSpace
from hetero_tvm.schedules.npu.tensor_program.space import NpuProgramSpace

NPU_SPACES: tuple[NpuSpace, ...] = (
    NpuMatmulSpace(),
    NpuGatedMatmulSpace(),
    NpuAttentionSpace(),
    NpuNormalizationSpace(),
    NpuSoftmaxSpace(),
    NpuEmbeddingNormSpace(),
    NpuConv2dSpace(),
    NpuDepthwiseMatrixSpace(),
    NpuDepthwiseSpace(),
    NpuGlobalPoolSpace(),
    NpuPool2dSpace(),
    NpuQuantizedMatmulSpace(),
    NpuQuantizedConv2dSpace(),
    NpuQuantizedDepthwiseSpace(),
    NpuProgramSpace(),  # last: it takes what it can read
)
