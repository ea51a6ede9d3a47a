"""Sound: frames, windows, spectra, mel filters, and convolutions that stand for them."""

from __future__ import annotations

import numpy as np

from tests.campaign.blocks.block import F32, Block, kind


@kind
def spectra(b: Block) -> None:
    """STFT or DFT of windows, power, mel, logarithm, normalised."""
    b.size("b", 1, 2)
    length = b.pick(8, 12, 16, 15)
    step = b.pick(3, 4, 5, length)
    form = b.pick("stft", "stft", "conv", "dft")
    b.size("n", length, 60, 0.4)
    x = b.feed("x", F32, ("b", "n"))
    bins = length // 2 + 1
    if form == "stft":
        window = b.pick("hann", "hamming", "blackman", "none", "table")
        if window == "none":
            w = ""
        elif window == "table":
            w = b.weight(length)
        else:
            op = {"hann": "HannWindow", "hamming": "HammingWindow", "blackman": "BlackmanWindow"}[window]
            w = b.node(op, b.constant(np.int64(length)), periodic=b.pick(0, 1))
        args = [x, b.constant(np.int64(step)), w, b.constant(np.int64(length))]
        s = b.node("STFT", *args, onesided=b.pick(1, 1, 0))
        if b.nodes[-1].attribute[0].i == 0:
            bins = length
        power = b.node("ReduceSumSquare", s, axes=[-1], keepdims=0)
    elif form == "conv":
        wave = np.exp(-2j * np.pi * np.outer(np.arange(bins), np.arange(length)) / length)
        kernels = np.concatenate([wave.real, wave.imag])[:, None].astype(np.float32)
        y = b.node("Conv", b.node("Unsqueeze", x, b.ints(1)), b.constant(kernels), strides=[step])
        out = b.node("Split", y, b.ints(bins, bins), axis=1, results=2)
        power = b.node("Add", b.node("Mul", out, out), b.node("Mul", f"{out}_1", f"{out}_1"))
        power = b.node("Transpose", power, perm=[0, 2, 1])
    else:
        cut = b.node("Slice", x, b.ints(0), b.ints(length), b.ints(1))
        rows = b.node("Unsqueeze", cut, b.ints(2))
        s = b.node("DFT", rows, axis=1, onesided=1)
        power = b.node("ReduceSumSquare", s, axes=[-1], keepdims=0)
        if b.chance(0.3):
            b.result(b.node("DFT", b.node("DFT", rows, axis=1), axis=1, inverse=1))
    mel = b.rng.uniform(0, 1, (bins, 5)).astype(np.float32)
    y = b.node("MatMul", power, b.constant(mel))
    y = b.node("Log", b.node("Max", y, b.scalar(1e-6)))
    if b.chance():
        y = b.node("Max", y, b.node("Sub", b.node("ReduceMax", y, keepdims=0), b.scalar(3.0)))
    if b.chance() and form != "dft":
        y = b.node("Sub", y, b.node("ReduceMean", y, axes=[1]))
    b.result(y)
