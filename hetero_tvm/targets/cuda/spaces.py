"""Design spaces for GPUs, tried in this order; a new space is one file and one entry here."""

from __future__ import annotations

from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.cuda.attention.float32 import CudaFloatAttentionSpace
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from hetero_tvm.schedules.cuda.images.conv2d import CudaConv2dSpace
from hetero_tvm.schedules.cuda.images.depthwise import CudaDepthwiseSpace
from hetero_tvm.schedules.cuda.images.pool2d import CudaPool2dSpace
from hetero_tvm.schedules.cuda.products.batch_matmul import CudaBatchMatmulSpace
from hetero_tvm.schedules.cuda.products.gated_matmul import CudaGatedMatmulSpace
from hetero_tvm.schedules.cuda.products.gemv import CudaGemvSpace
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.rows.add_norm import CudaAddNormSpace
from hetero_tvm.schedules.cuda.rows.embedding_norm import CudaEmbeddingNormSpace
from hetero_tvm.schedules.cuda.rows.group_norm import CudaGroupNormSpace
from hetero_tvm.schedules.cuda.rows.normalization import CudaNormalizationSpace
from hetero_tvm.schedules.cuda.rows.softmax import CudaSoftmaxSpace
from hetero_tvm.schedules.cuda.tensor_program.arg_reduce import CudaArgReduceSpace
from hetero_tvm.schedules.cuda.tensor_program.elementwise import CudaElementwiseSpace
from hetero_tvm.schedules.cuda.tensor_program.reduce import CudaReduceSpace
from hetero_tvm.schedules.cuda.tensor_program.transpose import CudaTransposeSpace

CUDA_SPACES: tuple[DesignSpace, ...] = (
    CudaGemvSpace(),  # before the tiled products, which serve more rows better
    CudaMatmulSpace(),
    CudaGatedMatmulSpace(),
    CudaBatchMatmulSpace(),
    CudaDepthwiseSpace(),
    CudaConv2dSpace(),
    CudaAttentionSpace(),
    CudaFloatAttentionSpace(),
    CudaSoftmaxSpace(),
    CudaNormalizationSpace(),
    CudaAddNormSpace(),
    CudaGroupNormSpace(),
    CudaEmbeddingNormSpace(),
    CudaPool2dSpace(),
    CudaTransposeSpace(),  # before the pointwise kernels, which could do it, slowly
    CudaElementwiseSpace(),
    CudaReduceSpace(),
    CudaArgReduceSpace(),
)
