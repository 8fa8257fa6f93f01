"""The shapes of well-known models, against the published numbers of parameters; VGG-16 also in tests/train."""

from __future__ import annotations

import pytest

from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import MODELS


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [("vgg16", 54, 14_728_266), ("resnet50", 161, 25_557_032), ("bert-base", 199, 109_482_240)],
)
def test_published_numbers_of_parameters(model, tensors, parameters):
    shapes = [shape for _, shape in MODELS[model]()]
    assert len(shapes) == tensors and Layout.of(shapes).size == parameters
    assert len({name for name, _ in MODELS[model]()}) == tensors
