"""The speech recogniser of Ok-Topk's LSTM on AN4: DeepSpeech 2 (Amodei et al., ICML 2016) that hears in one direction.

Two convolutions over the spectrogram, five LSTM layers of 800 cells, a lookahead convolution over the next frames in
place of the other direction, one linear layer to the characters; batch normalisation between them.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Length = TypeVar("Length", int, Tensor)

LOOKAHEAD = 20  # frames, of 20 ms
CONVOLUTIONS = (((41, 11), (2, 2)), ((21, 11), (2, 1)))  # kernel and stride: bins, frames


class SpeechLSTM(nn.Module):
    """A network from spectrograms to characters; by default with the published 27,569,568 parameters.

    In evaluation a clip has the same result in every batch, however much it is padded. In training the batch
    normalisation of the convolutions counts padding, as DeepSpeech's does; no other layer sees it.

    Args:
        characters: with the blank.
        bins: of the spectrograms.
        channels: of a convolution.
        convolutions: how many of `CONVOLUTIONS`.
        hidden, layers: cells of an LSTM layer, and how many layers.
    """

    def __init__(
        self,
        characters: int = 29,
        bins: int = 161,
        channels: int = 32,
        convolutions: int = 2,
        hidden: int = 800,
        layers: int = 5,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        planes = 1
        for kernel, stride in CONVOLUTIONS[:convolutions]:
            convolution = nn.Conv2d(planes, channels, kernel, stride, padding=(kernel[0] // 2, kernel[1] // 2))
            self.convolutions.append(nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.Hardtanh(0, 20)))
            planes, bins = channels, _strided(bins, stride[0])
        self.norms = nn.ModuleList([nn.Identity(), *(nn.BatchNorm1d(hidden) for _ in range(layers - 1))])
        self.layers = nn.ModuleList(nn.LSTM(hidden if i else planes * bins, hidden) for i in range(layers))
        self.lookahead = nn.Conv1d(hidden, hidden, LOOKAHEAD + 1, groups=hidden, bias=False)
        self.last_norm = nn.BatchNorm1d(hidden)
        self.linear = nn.Linear(hidden, characters, bias=False)

    def forward(self, spectrograms: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, T', characters)`` for frames of 20 ms, and how many of each are no padding.

        Spectrograms are ``(B, bins, T)``, a frame for 10 ms, of which ``frames`` ``(B,)`` int64 on the CPU are no
        padding; T' is the half of T, rounded up.
        """
        x, frames = self._convolve(spectrograms[:, None], frames)
        packed = pack_padded_sequence(x.flatten(1, 2).transpose(1, 2), frames, batch_first=True, enforce_sorted=False)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            packed, _ = layer(_replace(packed, norm(packed.data)))
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        x = self.lookahead(pad(padded.transpose(1, 2), (0, LOOKAHEAD))).transpose(1, 2)
        real = torch.arange(x.shape[1]) < frames[:, None]
        logits = x.new_zeros(*x.shape[:2], self.linear.out_features)
        logits[real] = self.linear(self.last_norm(nn.functional.hardtanh(x[real], 0, 20)))
        return logits, frames

    def _convolve(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve ``(B, 1, bins, T)`` to ``(B, channels, bins', T')``; clear the padding after each layer."""
        for layer, (_, stride) in zip(self.convolutions, CONVOLUTIONS, strict=False):
            frames = _strided(frames, stride[1])
            x = layer(x)
            x = x * (torch.arange(x.shape[3]) < frames[:, None])[:, None, None].to(x.device)
        return x, frames


def _strided(length: Length, stride: int) -> Length:
    return (length - 1) // stride + 1


def _replace(packed: PackedSequence, data: Tensor) -> PackedSequence:
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
