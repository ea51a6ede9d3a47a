"""Features of audio: known sounds, files of every width, and those of transformers."""

import wave

import numpy as np
import pytest

from hetero_tvm.errors import InputError
from hetero_tvm.generation.audio import RATE, log_mel, read_wave


def write(path, samples, width=2, channels=1, rate=RATE):
    integers = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        integers += 128
    raw = integers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.tobytes())
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_files_of_every_width(tmp_path, width):
    samples = np.sin(np.arange(800) / 9) * 0.7
    got = read_wave(write(tmp_path / "a.wav", samples, width))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, samples, atol=2.0 ** (2 - 8 * width) + 1e-6)


def test_channels_become_their_mean(tmp_path):
    pairs = np.stack([np.full(50, 0.5), np.full(50, -0.25)], 1)
    got = read_wave(write(tmp_path / "a.wav", pairs.reshape(-1), channels=2))
    np.testing.assert_allclose(got, np.full(50, 0.125), atol=1e-4)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="8000 samples per second"):
        read_wave(write(tmp_path / "a.wav", np.zeros(9), rate=8000))
    (tmp_path / "b.wav").write_bytes(b"no sound")
    for name in ("b.wav", "none.wav"):
        with pytest.raises(InputError, match="cannot read"):
            read_wave(tmp_path / name)
    for samples in (np.zeros(0), np.zeros(161 * 20)):
        with pytest.raises(InputError, match="the audio has"):
            log_mel(samples, 80, 20)


def test_a_tone_is_in_its_channel_while_it_sounds():
    frames = 100
    tone = np.sin(2 * np.pi * 1000 * np.arange(frames // 2 * 160) / RATE)
    features = log_mel(tone, 80, frames)
    assert (features.shape, features.dtype) == ((80, frames), np.float32)
    assert set(features[:, 5:45].argmax(0)) <= {24, 25, 26}  # 15 of 45 mels
    assert (features[:, 55:] == features.min()).all()  # silence


@pytest.mark.exhaustive
@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(mels):
    transformers = pytest.importorskip("transformers")
    samples = np.random.default_rng(0).standard_normal(RATE * 3).astype(np.float32) * 0.1
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    want = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
    np.testing.assert_allclose(log_mel(samples, mels, 3000), want, atol=2e-4)  # theirs is rounded on the way
