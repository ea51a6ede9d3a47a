"""An encoder in Relax: tokens of one text in, rows of its last layer out."""

from __future__ import annotations

import json

from hetero_tvm.host.tvm import IRModule, relax
from hetero_tvm.language.encoder import EncoderLayers
from hetero_tvm.language.layers import LayerBuilder, symbol
from hetero_tvm.language.step import KERNELS
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.targets.base.compiling import StepKernels

INPUTS = ("ids", "positions")
_MOST_TEXTS = 1 << 24


def build_rows(weights: DecoderWeights, kernels: StepKernels) -> IRModule:
    """``main(ids [n], positions [n])``, which gives rows [n, width]; it calls kernels only."""
    layers, d = EncoderLayers(weights, kernels, symbol("n")), weights.decoder
    builder = layers.builder
    inputs = [relax.Var(name, relax.TensorType([layers.rows], "int32")) for name in INPUTS]
    attrs = {"tir_var_upper_bound": {"n": d.context}, "global_symbol": "main"}
    with builder.function("main", inputs, attrs=attrs):
        with builder.dataflow():
            ids, positions = inputs
            x, _ = layers.embedding(ids, positions)
            biases, windows = layers.biases(positions), layers.windows(positions)
            for number in range(len(d.layers)):
                x = layers.layer(x, biases, number, windows)
            if not d.norms_after:
                x = layers.norm(x, weights.names.norm)
            result = builder.emit_output(x)
        builder.emit_func_output(result)
    return builder.get().with_attr(KERNELS, json.dumps(layers.kernel_table()))


def build_dense(
    weights: DecoderWeights, kernels: StepKernels, n: int, k: int, activation: str | None
) -> IRModule:
    """``main(rows [r, k])``, which gives the rows [r, n] of a layer ``linear``."""
    layers = LayerBuilder(weights, kernels, symbol("r"))
    builder = layers.builder
    x = relax.Var("rows", layers.type(layers.rows, k))
    attrs = {"tir_var_upper_bound": {"r": _MOST_TEXTS}, "global_symbol": "main"}
    with builder.function("main", [x], attrs=attrs):
        with builder.dataflow():
            result = builder.emit_output(layers.linear(x, ["linear"], n, k, activation=activation))
        builder.emit_func_output(result)
    return builder.get()
