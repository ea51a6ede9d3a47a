"""What encoders and decoders share, before code is generated."""

import numpy as np

from hetero_tvm.host.tvm import relax
from hetero_tvm.language.layers import LayerBuilder, symbol
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.contracts import Linear, RowNorm
from hetero_tvm.ops.decoding.storage import Storage
from tests import tiny_llama
from tests.language.test_step import KERNELS


def builder(tmp_path, **changes):
    import dataclasses

    from hetero_tvm.language.checkpoints.checkpoint import SafetensorsFolder
    from hetero_tvm.language.families.architectures import describe

    folder = SafetensorsFolder(tiny_llama.write(tmp_path))
    decoder, names = describe(folder.config)
    decoder = dataclasses.replace(decoder, **changes)
    return LayerBuilder(DecoderWeights(decoder, names, folder, Storage("f32")), KERNELS, symbol("n"))


def contracts(layers, emit):
    """Contracts of what ``emit(x)`` calls, in order."""
    x = relax.Var("x", layers.type(layers.rows, layers.decoder.width))
    called = []
    layers.call = lambda op, arguments, ty: called.append(op) or relax.Var("y", ty)
    emit(x)
    return called


def test_norms_stand_before_the_block_or_after_the_addition(tmp_path):
    def mlp(layers, **options):
        return [
            type(op) for op in contracts(layers, lambda x: layers.feed_forward(x, "layers.0.", **options))
        ]

    assert mlp(builder(tmp_path)) == [RowNorm, Linear, Linear]
    assert mlp(builder(tmp_path, norms_after=True)) == [Linear, Linear, RowNorm]
    assert mlp(builder(tmp_path, norms_after=True), last=True) == [Linear, Linear]


def test_products_count_what_they_read(tmp_path):
    layers = builder(tmp_path)
    (op,) = contracts(layers, lambda x: layers.linear(x, ["layers.0.self_attn.q_proj"], 32, 32))
    assert (op.n, op.k, op.residual) == (32, 32, False)
    assert layers.read == 4 * 32 * 32
    assert np.dtype(op.storage.dtype) == np.float32
