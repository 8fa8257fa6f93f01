"""Models that predict the next token: an LSTM (Zaremba et al., 2014), and a transformer.

The speech recogniser of Ok-Topk's LSTM on AN4: DeepSpeech 2 (Amodei et al., ICML 2016) that hears in one direction.

Two convolutions over the spectrogram, five LSTM layers of 800 cells, a lookahead convolution over the next frames in
place of the other direction, one linear layer to the characters; batch normalisation between them.

BERT from its configuration, as transformers has it, for pre-training and for answering questions.

Devlin and others, BERT, NAACL 2019.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import is_zipfile

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sparse_train.packages import needed

UNIFORM = 0.1  # weights of embedding and output start within it
DEVIATION = 0.02  # deviation of embeddings at the start
Length = TypeVar("Length", int, Tensor)
LOOKAHEAD = 20  # frames, of 20 ms
CONVOLUTIONS = (((41, 11), (2, 2)), ((21, 11), (2, 1)))  # kernel and stride: bins, frames
POSITIONS = 512  # longest sequence, in tokens
ENCODER = "bert."  # prefix of the names of the encoder's weights
POOLER = "bert.pooler."  # weights that questions and answers have no use for


class WordLSTM(nn.Module):
    """Embedding, LSTM layers and a softmax over the vocabulary, with dropout between them.

    The state is zero where a block begins.

    Args:
        width: units of embedding and layers.
        dropout: share of the activations.
        tied: True: embedding and output have the same weights.
    """

    def __init__(
        self, tokens: int, width: int = 500, layers: int = 2, dropout: float = 0.5, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.output = nn.Linear(width, tokens)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -UNIFORM, UNIFORM)
        nn.init.uniform_(self.output.weight, -UNIFORM, UNIFORM)
        nn.init.zeros_(self.output.bias)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.output(self.dropout(states))


class Transformer(nn.Module):
    """Embeddings of tokens and positions, layers of attention to earlier tokens, and a softmax with tied weights.

    Layers normalise their inputs, not their outputs, which trains without a long warm-up (Xiong et al., ICML 2020).

    Args:
        block: most tokens at a time.
        width: units of embeddings and layers; a multiple of ``heads``.
        layers: their number; feed-forward parts are four times as wide.
        dropout: share of the activations.
    """

    def __init__(self, tokens: int, block: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Embedding(block, width)
        self.layers = nn.ModuleList(  # not nn.TransformerEncoder, whose layers all start with the same weights
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        for weight in (self.embedding.weight, self.position.weight):
            nn.init.normal_(weight, std=DEVIATION)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        inputs = self.embedding(tokens) + self.position(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        states = self.dropout(inputs)
        for layer in self.layers:
            states = layer(states, mask, is_causal=True)
        return linear(self.norm(states), self.embedding.weight)


class SpeechLSTM(nn.Module):
    """A network from spectrograms to characters; by default with the published 27,569,568 parameters.

    In evaluation a clip has the same result in every batch, however much it is padded. In training the batch
    normalisation of the convolutions counts padding, as DeepSpeech's does; no other layer sees it.

    Args:
        characters: number of characters, with the blank.
        bins: number of bins of the spectrograms.
        channels: number of channels of a convolution.
        convolutions: the number of `CONVOLUTIONS` used.
        hidden, layers: cells of an LSTM layer, and the number of layers.
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
        """Return logits ``(B, T', characters)`` for frames of 20 ms, and the length of each without padding.

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
        for layer, (_, stride) in zip(self.convolutions, CONVOLUTIONS, strict=False):
            frames = _strided(frames, stride[1])
            x = layer(x)
            x = x * (torch.arange(x.shape[3]) < frames[:, None])[:, None, None].to(x.device)
        return x, frames


def _strided(length: Length, stride: int) -> Length:
    return (length - 1) // stride + 1


def _replace(packed: PackedSequence, data: Tensor) -> PackedSequence:
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int


def for_pretraining(shape: Shape, vocabulary: int) -> Any:
    """Make a ``BertForPreTraining``, with 133,547,324 parameters at base size and 30,522 pieces, as in Ok-Topk.

    The output layer has a weight of its own. If it shared that of the embedding, there would be 110,106,428 parameters.

    Raises ImportError: transformers is not installed; ValueError: see `_config`.
    """
    model = needed("transformers", "BERT").BertForPreTraining(_config(shape, vocabulary))
    model.cls.predictions.decoder.bias = model.cls.predictions.bias  # two names, of one bias or two by version
    return model


def for_answering(shape: Shape, vocabulary: int) -> Any:
    """Make a ``BertForQuestionAnswering``, which gives each token a start and an end score.

    It has 108,893,186 parameters at base size.

    Raises ImportError, ValueError: see `for_pretraining`.
    """
    return needed("transformers", "BERT").BertForQuestionAnswering(_config(shape, vocabulary))


def load_encoder(model: Any, path: Path) -> None:
    """Load the encoder's weights from a state dict that ``torch.save`` wrote, and leave the head as it is.

    The state dict may be in a dictionary under ``"model"``, as in the ``model.bin`` of a checkpoint.

    Raises FileNotFoundError: the file is missing; ValueError: it holds something else, or weights of other names or
    shapes.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {path}; --model-from expects the model that a pre-training run left")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True) if is_zipfile(path) else None
    except (pickle.UnpicklingError, RuntimeError):
        state = None
    state = state.get("model", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(f"{path} is no state dict, or damaged; expected tensors by name, saved by torch.save")
    theirs = {name: w for name, w in state.items() if name.startswith(ENCODER) and not name.startswith(POOLER)}
    mine = {name: weight for name, weight in model.state_dict().items() if name.startswith(ENCODER)}
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = (tuple(w[name].shape) if name in w else "nothing" for w in (mine, theirs))
        if here != there:
            raise ValueError(
                f"{path} does not fit: {name} is {there} there and {here} in this model; "
                "take the same --layers, --width, --heads and --vocab-file as in pre-training"
            )
    model.load_state_dict(theirs, strict=False)


def _config(shape: Shape, vocabulary: int) -> Any:
    """Return the configuration of a model of that shape. Raises ValueError: the width is no multiple of the heads."""
    if shape.width % shape.heads:
        raise ValueError(f"--width must be a multiple of --heads, got {shape.width} and {shape.heads}")
    return needed("transformers", "BERT").BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
    )
