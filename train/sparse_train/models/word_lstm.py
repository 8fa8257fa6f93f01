"""An LSTM that predicts the next word (Zaremba et al., 2014)."""

from __future__ import annotations

from torch import Tensor, nn

UNIFORM = 0.1  # weights of embedding and output start within it


class WordLSTM(nn.Module):
    """Embedding, LSTM layers and a softmax over the vocabulary, with dropout between them.

    The state is zero where a block begins.

    Args:
        tokens: of the vocabulary.
        width: of embedding and layers.
        layers: how many.
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
