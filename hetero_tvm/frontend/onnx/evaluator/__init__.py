"""Replacements for operators of onnx's evaluator: what it computes slowly, roughly or not at all."""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from hetero_tvm.frontend.onnx.evaluator.elements import (
    LRN,
    BatchNormalization,
    Erf,
    GatherElements,
    Hardmax,
    LogSoftmax,
    LpNormalization,
    OneHot,
    Pad,
    Resize,
    Softmax,
)
from hetero_tvm.frontend.onnx.evaluator.grids import DeformConv, GridSample
from hetero_tvm.frontend.onnx.evaluator.quantized import (
    ConvInteger,
    DequantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
)
from hetero_tvm.frontend.onnx.evaluator.recurrent import RNN
from hetero_tvm.frontend.onnx.evaluator.windows import (
    AveragePool,
    Conv,
    ConvTranspose,
    GlobalMaxPool,
    MaxPool,
)

#: Classes for the argument ``new_ops`` of :class:`onnx.reference.ReferenceEvaluator`.
REFERENCE_OPS: tuple[type[OpRun], ...] = (
    *(Erf, Conv, ConvTranspose, MaxPool, BatchNormalization, GatherElements, OneHot, LRN),
    *(Softmax, LogSoftmax, Hardmax, AveragePool, GlobalMaxPool, LpNormalization, Resize, DequantizeLinear),
    *(DeformConv, GridSample, Pad, QLinearConv, ConvInteger, MatMulInteger, QLinearMatMul, RNN),
)
