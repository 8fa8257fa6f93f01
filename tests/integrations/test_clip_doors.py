"""A script's ``clip_grad_norm_`` may stay at each door: AdamW ends as with ``clip_norm=`` in its place."""

from __future__ import annotations

import pytest
import torch

from ..launch import launch
from ..prefork import copied


@pytest.mark.jobs
@pytest.mark.full("takes minutes")
@pytest.mark.parametrize("door", ["optimizer", "hook", "FSDP2", "Lightning", "Hugging Face", "Accelerate"])
def test_a_clip_that_is_left_in_costs_no_loss(tmp_path, door):
    words = copied("tests/integrations/clip_job.py", door, str(tmp_path / "losses.pt"))
    done = launch(None, *words, seconds=400, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr[-5000:]
    line, given = torch.tensor(torch.load(tmp_path / "losses.pt")).mean(0).tolist()  # single pairs differ by 0.03
    assert line <= given + 0.02 and line < 2.5
