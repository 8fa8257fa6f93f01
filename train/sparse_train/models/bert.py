"""BERT from its configuration, as transformers has it, for pre-training and for answering questions.

Devlin and others, BERT, NAACL 2019.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from zipfile import is_zipfile

import torch

POSITIONS = 512  # longest sequence, in tokens
ENCODER = "bert."  # what the names of the encoder's weights begin with
POOLER = "bert.pooler."  # which questions and answers have no use for


class Shape(NamedTuple):
    """The size of a BERT."""

    layers: int
    width: int
    heads: int


def for_pretraining(shape: Shape, vocabulary: int) -> Any:
    """Make a ``BertForPreTraining``, with 133,547,324 parameters at base size and 30,522 pieces, as in Ok-Topk.

    The output layer has a weight of its own. If it shared that of the embedding, there would be 110,106,428 parameters.

    Raises ImportError: transformers is not installed; ValueError: see `_config`.
    """
    model = _transformers().BertForPreTraining(_config(shape, vocabulary))
    model.cls.predictions.decoder.bias = model.cls.predictions.bias  # two names, of one bias or two by version
    return model


def for_answering(shape: Shape, vocabulary: int) -> Any:
    """Make a ``BertForQuestionAnswering``, which gives each token a start and an end score.

    It has 108,893,186 parameters at base size.

    Raises ImportError, ValueError: see `for_pretraining`.
    """
    return _transformers().BertForQuestionAnswering(_config(shape, vocabulary))


def load_encoder(model: Any, path: Path) -> None:
    """Load the encoder's weights from a state dict that ``torch.save`` wrote, and leave the head as it is.

    The state dict may be in a dictionary under ``"model"``, as in the ``model.bin`` of a checkpoint.

    Raises FileNotFoundError: there is no such file; ValueError: it holds something else, or weights of other names or
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
    return _transformers().BertConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
    )


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise ImportError("BERT needs the package transformers: pip install transformers") from None
    return transformers
