"""Models that predict the next token: an LSTM (Zaremba et al., 2014), and a transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

UNIFORM = 0.1  # weights of embedding and output start within it


class WordLSTM(nn.Module):
    """Embedding, LSTM layers and a softmax over the vocabulary, with dropout between them.

    The state is zero where a block begins.

    Args:
        width: of embedding and layers.
        dropout: share of the activations.
        tied: whether embedding and output have the same weights.
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
        """Return the logits of what follows each of ``tokens``: (B, T) int64 -> (B, T, vocabulary) float32."""
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.output(self.dropout(states))


DEVIATION = 0.02  # of embeddings at the start


class Transformer(nn.Module):
    """Embeddings of tokens and positions, layers of attention to what came before, and a softmax with tied weights.

    Layers normalise their inputs, not their outputs, which trains without a long warm-up (Xiong et al., ICML 2020).

    Args:
        block: most tokens at a time.
        width: of embeddings and layers; a multiple of ``heads``.
        layers: how many, with feed-forward parts four times as wide.
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
        """Return the logits of what follows each of ``tokens``: (B, T) int64 -> (B, T, vocabulary) float32."""
        length = tokens.shape[1]
        inputs = self.embedding(tokens) + self.position(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device)
        states = self.dropout(inputs)
        for layer in self.layers:
            states = layer(states, mask, is_causal=True)
        return linear(self.norm(states), self.embedding.weight)
