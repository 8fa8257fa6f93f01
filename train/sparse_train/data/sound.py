"""Sound files of one channel of 16 bits, and their log spectrograms, the input of DeepSpeech.

The formats are RIFF (``.wav``), NIST SPHERE (``.sph``), and bare samples (``.raw``).
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

RAW_RATE = 16_000  # of files that cannot say, which are AN4's, as is their order of bytes
_ORDERS = {b"01": "<i2", b"10": ">i2"}  # how SPHERE names little and big endian


class Sound(NamedTuple):
    """The samples of a sound file."""

    samples: np.ndarray  # (N,) int16
    rate: int  # samples a second


def read_sound(path: Path) -> Sound:
    """Read the sound in ``path``, whose suffix tells the format.

    Raises ValueError: no such file inside, more than one channel, samples other than 16-bit integers.
    """
    if path.suffix == ".raw":
        return _sound(path, path.read_bytes(), ">i2", RAW_RATE)
    return _read_sphere(path) if path.suffix == ".sph" else _read_wav(path)


def _read_wav(path: Path) -> Sound:
    try:
        with wave.open(str(path)) as file:
            kind, rate, content = file.getparams()[:2], file.getframerate(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} is no RIFF file of plain samples: {error}") from None
    if kind != (1, 2):
        raise ValueError(f"{path} has {kind[0]} channels of {kind[1]} bytes a sample; expected 1 of 2 bytes")
    return _sound(path, content, "<i2", rate)


def _read_sphere(path: Path) -> Sound:
    content = path.read_bytes()
    title, _, rest = content.partition(b"\n")
    length = rest.partition(b"\n")[0].strip()  # of the header, with these two lines
    if title != b"NIST_1A" or not length.isdigit():
        raise ValueError(f"{path} is no SPHERE file: it starts with {content[:8]!r}")
    lines = (line.split(None, 2) for line in content[: int(length)].splitlines()[2:])
    fields = {line[0]: line[2] for line in lines if len(line) == 3}
    channels, coding = fields.get(b"channel_count", b"1"), fields.get(b"sample_coding", b"pcm")
    order, rate = _ORDERS.get(fields.get(b"sample_byte_format", b"")), fields.get(b"sample_rate", b"")
    if channels != b"1" or coding != b"pcm" or order is None or not rate.isdigit():
        raise ValueError(f"{path} is no SPHERE file of one channel of plain 16-bit samples: its header says {fields}")
    return _sound(path, content[int(length) :], order, int(rate))


def _sound(path: Path, content: bytes, order: str, rate: int) -> Sound:
    if len(content) % 2 or not content:
        raise ValueError(f"{path} is damaged: {len(content)} bytes of samples of 2 bytes; fetch it again")
    return Sound(np.frombuffer(content, order).astype(np.int16), rate)


BINS = 161  # of 50 Hz, from 0 to 8 kHz
WINDOWS = 50  # as long as a second: 20 ms
STRIDES = 100  # a second


def log_spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return ``(BINS, frames)`` float32, log magnitudes of the short-time Fourier transform of ``(N,)`` int16 samples.

    They have mean 0 and deviation 1. Windows of 20 ms make bins 50 Hz apart at any ``rate`` in Hz, so that sounds need
    no resampling: below 16 kHz the upper bins are silent, above it those over 8 kHz are left out.
    """
    window, stride = round(rate / WINDOWS), round(rate / STRIDES)
    sound = np.pad(samples.astype(np.float32) / 2**15, (0, max(0, window - len(samples))))
    frames = sliding_window_view(sound, window)[::stride] * np.hamming(window).astype(np.float32)
    levels = np.log1p(np.abs(np.fft.rfft(frames)[:, :BINS])).astype(np.float32)
    spectrogram = np.zeros((BINS, len(levels)), np.float32)
    spectrogram[: levels.shape[1]] = levels.T
    return (spectrogram - spectrogram.mean()) / max(spectrogram.std(), 1e-6)
