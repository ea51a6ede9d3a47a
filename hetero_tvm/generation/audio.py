"""Features of audio for Whisper: logarithms of power by mel channel and frame, by NumPy alone."""

from __future__ import annotations

import functools
import os
import wave
from pathlib import Path

import numpy as np

from hetero_tvm.errors import InputError

RATE = 16000
"""Samples per second."""
_WINDOW, _HOP = 400, 160
_LOWEST = 1e-10
_RANGE = 8.0
"""Powers of ten below the loudest that are kept."""
_LINEAR, _STEP = 1000.0, 200.0 / 3
"""Hz up to which the mel scale is linear, Hz per mel there (Slaney, 1998); then it is logarithmic."""


def read_wave(path: str | os.PathLike[str]) -> np.ndarray:
    """Samples of a WAV file, float32 [samples] from -1 to 1; the mean of its channels.

    Raises
    ------
    InputError : it is no WAV file of whole numbers, or has another rate than 16 kHz.
    """
    path = Path(path)
    hint = f"convert it: ffmpeg -i {path.name} -ar {RATE} -ac 1 -c:a pcm_s16le out.wav"
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            data = np.frombuffer(file.readframes(count), np.uint8)
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"cannot read {path}: {error}", hint=hint) from None
    if rate != RATE:
        raise InputError(f"{path} has {rate} samples per second, expected {RATE}", hint=hint)
    data = data[: data.size // (width * channels) * width * channels]
    if width == 1:
        samples = data.astype(np.float32) / 128 - 1
    elif width == 3:
        wide = np.zeros((data.size // 3, 4), np.uint8)
        wide[:, 1:] = data.reshape(-1, 3)
        samples = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        samples = data.view(f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return samples.reshape(-1, channels).mean(1, dtype=np.float32)


def log_mel(samples: np.ndarray, mels: int, frames: int) -> np.ndarray:
    """Features float32 [mels, frames] of samples at 16 kHz, padded with silence.

    Raises
    ------
    InputError : there are more samples than the frames have, or none.
    """
    longest = frames * _HOP
    if samples.ndim != 1 or not 0 < samples.size <= longest:
        raise InputError(
            f"the audio has {samples.size / RATE:.1f} s, expected at most {longest / RATE:g} s",
            hint="cut it into pieces, at pauses",
        )
    padded = np.zeros(longest, np.float64)
    padded[: samples.size] = samples
    padded = np.pad(padded, _WINDOW // 2, mode="reflect")
    window = np.hanning(_WINDOW + 1)[:-1]
    pieces = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP][:frames]
    power = np.abs(np.fft.rfft(pieces * window, axis=1)) ** 2
    logs = np.log10(np.maximum(_filters(mels) @ power.T, _LOWEST))
    logs = np.maximum(logs, logs.max() - _RANGE)
    return ((logs + 4) / 4).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _filters(mels: int) -> np.ndarray:
    """Triangles of equal area over the frequencies of a window, float64 [mels, frequencies]."""
    top = _LINEAR / _STEP
    growth = np.log(6.4) / 27
    highest = top + np.log(RATE / 2 / _LINEAR) / growth
    at = np.linspace(0, highest, mels + 2)
    edges = np.where(at < top, at * _STEP, _LINEAR * np.exp(growth * (at - top)))
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    slopes = edges[:, None] - frequencies
    rising = -slopes[:-2] / np.diff(edges)[:-1, None]
    falling = slopes[2:] / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return triangles * (2 / (edges[2:] - edges[:-2]))[:, None]
