"""Every design space by name; a new space is one file and one entry here."""

from __future__ import annotations

from hetero_tvm.errors import RecordError
from hetero_tvm.schedules.base import DesignSpace
from hetero_tvm.schedules.cpu.add_norm import AddNormSpace
from hetero_tvm.schedules.cpu.attention import AttentionSpace
from hetero_tvm.schedules.cpu.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.conv2d import Conv2dSpace
from hetero_tvm.schedules.cpu.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.depthwise import DepthwiseSpace
from hetero_tvm.schedules.cpu.elementwise import ElementwiseSpace
from hetero_tvm.schedules.cpu.embedding_norm import EmbeddingNormSpace
from hetero_tvm.schedules.cpu.gated_matmul import GatedMatmulSpace
from hetero_tvm.schedules.cpu.group_norm import GroupNormSpace
from hetero_tvm.schedules.cpu.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.normalize import NormalizeSpace
from hetero_tvm.schedules.cpu.normalize_axis import NormalizeAxisSpace
from hetero_tvm.schedules.cpu.pool2d import Pool2dSpace, RelayoutSpace
from hetero_tvm.schedules.cpu.rope import RopeSpace
from hetero_tvm.schedules.cpu.softmax import SoftmaxSpace
from hetero_tvm.schedules.cuda.add_norm import CudaAddNormSpace
from hetero_tvm.schedules.cuda.arg_reduce import CudaArgReduceSpace
from hetero_tvm.schedules.cuda.attention import CudaAttentionSpace
from hetero_tvm.schedules.cuda.attention_f32 import CudaFloatAttentionSpace
from hetero_tvm.schedules.cuda.batch_matmul import CudaBatchMatmulSpace
from hetero_tvm.schedules.cuda.conv2d import CudaConv2dSpace
from hetero_tvm.schedules.cuda.depthwise import CudaDepthwiseSpace
from hetero_tvm.schedules.cuda.embedding_norm import CudaEmbeddingNormSpace
from hetero_tvm.schedules.cuda.gated_matmul import CudaGatedMatmulSpace
from hetero_tvm.schedules.cuda.gemv import CudaGemvSpace
from hetero_tvm.schedules.cuda.group_norm import CudaGroupNormSpace
from hetero_tvm.schedules.cuda.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.normalize import CudaNormalizeSpace
from hetero_tvm.schedules.cuda.pointwise import CudaPointwiseSpace
from hetero_tvm.schedules.cuda.pool2d import CudaPool2dSpace
from hetero_tvm.schedules.cuda.reduce import CudaReduceSpace
from hetero_tvm.schedules.cuda.softmax import CudaSoftmaxSpace
from hetero_tvm.schedules.cuda.transpose import CudaTransposeSpace

CPU_SPACES: tuple[DesignSpace, ...] = (
    MatmulSpace(),
    GatedMatmulSpace(),
    BatchMatmulSpace(),
    AttentionSpace(),
    NormalizeSpace(),
    NormalizeAxisSpace(),
    AddNormSpace(),
    EmbeddingNormSpace(),
    GroupNormSpace(),
    SoftmaxSpace(),
    BlockedConv2dSpace(),
    DepthwiseSpace(),
    RopeSpace(),
    Conv2dSpace(),
    ElementwiseSpace(),
    Pool2dSpace(),
    RelayoutSpace(),
)

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
    CudaNormalizeSpace(),
    CudaAddNormSpace(),
    CudaGroupNormSpace(),
    CudaEmbeddingNormSpace(),
    CudaPool2dSpace(),
    CudaTransposeSpace(),  # before the pointwise kernels, which could do it, slowly
    CudaPointwiseSpace(),
    CudaReduceSpace(),
    CudaArgReduceSpace(),
)

_BY_NAME = {space.name: space for space in (*CPU_SPACES, *CUDA_SPACES)}


def space_named(name: str) -> DesignSpace:
    """The space that a record or a tuning worker names.

    Raises
    ------
    RecordError : no space has that name (the record comes from another version).
    """
    if name not in _BY_NAME:
        raise RecordError(f"no design space is called {name!r}", hint=f"known: {', '.join(sorted(_BY_NAME))}")
    return _BY_NAME[name]
