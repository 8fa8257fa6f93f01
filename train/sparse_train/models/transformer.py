"""A transformer that predicts the next token from those before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

DEVIATION = 0.02  # of embeddings at the start


class Transformer(nn.Module):
    """Embeddings of tokens and positions, layers of attention to what came before, and a softmax with tied weights.

    Layers normalise their inputs, not their outputs, which trains without a long warm-up (Xiong et al., ICML 2020).

    Args:
        tokens: of the vocabulary.
        block: most tokens at a time.
        width: of embeddings and layers; a multiple of ``heads``.
        layers: how many, with feed-forward parts four times as wide.
        heads: of attention.
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
