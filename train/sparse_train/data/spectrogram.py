"""Log spectrograms, the input of DeepSpeech."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

BINS = 161  # of 50 Hz, from 0 to 8 kHz
WINDOWS = 50  # as long as a second: 20 ms
STRIDES = 100  # a second


def log_spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the log magnitudes of a clip's short-time Fourier transform, with mean 0 and deviation 1.

    Windows of 20 ms make bins 50 Hz apart at any ``rate``, so that sounds need no resampling: below 16 kHz
    the upper bins are silent, above it those over 8 kHz are left out.

    Args:
        samples: ``(N,)`` int16, N > 0; fewer than a window are filled up with silence.
        rate: samples a second.

    Returns:
        ``(BINS, frames)`` float32.
    """
    window, stride = round(rate / WINDOWS), round(rate / STRIDES)
    sound = np.pad(samples.astype(np.float32) / 2**15, (0, max(0, window - len(samples))))
    frames = sliding_window_view(sound, window)[::stride] * np.hamming(window).astype(np.float32)
    levels = np.log1p(np.abs(np.fft.rfft(frames)[:, :BINS])).astype(np.float32)
    spectrogram = np.zeros((BINS, len(levels)), np.float32)
    spectrogram[: levels.shape[1]] = levels.T
    return (spectrogram - spectrogram.mean()) / max(spectrogram.std(), 1e-6)
