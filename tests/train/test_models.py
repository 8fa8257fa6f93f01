"""The models of the programs: their published sizes and settings, what they see, and that tiny ones learn."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch

import bert
import gpt2
from gpt2 import GPT2
from lstm import PROGRAM as LSTM
from sparse_mpi.comm import NullComm
from sparse_mpi.predict.models import MODELS
from sparse_train.models.language import SpeechLSTM, Transformer, WordLSTM, for_answering, for_pretraining
from sparse_train.models.vision import VGG16, ResNet, ViT
from sparse_train.tasks.language import LSTM_SETTINGS, Shape

from .small_program import tiny
from .small_training import losses_of

WORDS = 33_278  # of wikitext-2
LAYERS = 2 * (2 * 500 * 2000 + 2 * 2000)  # of the LSTM of words
SMALL = Shape(layers=2, width=16, heads=4, block=16, vocabulary=40)


def count(model):
    return sum(p.numel() for p in model.parameters())


def gpt2_of(size):
    return GPT2(50_257, Shape(*gpt2.SIZES[size], block=1024, vocabulary=50_257))


PUBLISHED = {
    "vgg16": (lambda: VGG16(10, 3), 14_728_266),
    "vgg16 tiny": (lambda: VGG16(10, 1, slimness=8), 232_130),
    "resnet20": (lambda: ResNet(20, 10, 3, 32), 269_722),  # with projections in place of its shortcuts 272,474
    "resnet50": (lambda: ResNet(50, 1000, 3, 224), 25_557_032),
    "resnet101": (lambda: ResNet(101, 1000, 3, 224), 44_549_160),
    "resnet152": (lambda: ResNet(152, 1000, 3, 224), 60_192_808),
    "vit base": (lambda: ViT("base"), 86_567_656),
    "vit small": (lambda: ViT("small"), 22_050_664),
    "gpt2 small": (lambda: gpt2_of("small"), 124_439_808),
    "gpt2 medium": (lambda: gpt2_of("medium"), 354_823_168),
    "bert pretrain": (lambda: for_pretraining(bert.BASE, bert.PIECES), 133_547_324),
    "bert squad": (lambda: for_answering(bert.BASE, bert.PIECES), 108_893_186),
    "speech lstm": (SpeechLSTM, 27_569_568),
    "speech lstm tiny": (lambda: SpeechLSTM(channels=8, convolutions=1, hidden=64, layers=2), 223_152),
    "word lstm": (lambda: WordLSTM(WORDS), 2 * WORDS * 500 + WORDS + LAYERS),
    "word lstm, tied": (lambda: WordLSTM(WORDS, tied=True), WORDS * 500 + WORDS + LAYERS),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_the_published_number_of_parameters(name):
    make, parameters = PUBLISHED[name]
    with torch.device("meta"):
        assert count(make()) == parameters


def test_the_library_knows_the_shapes_of_vgg16():
    assert MODELS["vgg16"] == tuple((name, tuple(p.shape)) for name, p in VGG16(10, 3).named_parameters())


SETTINGS = {
    "resnet --data cifar10": {"lr": 0.1, "milestones": (81, 122), "epochs": 164, "weight_decay": 1e-4, "momentum": 0.9},
    "resnet --data cifar100": {"lr": 0.0125, "lr_times_ranks": True, "epochs": 80, "weight_decay": 5e-5},
    "resnet --data imagenet": {"lr": 0.0125, "warmup_epochs": 5, "milestones": (30, 60, 80), "density": 0.0275},
    "vit --data cifar10": {"lr": 1e-3, "warmup_epochs": 5, "weight_decay": 0.05},
    "vit --data cifar100": {"lr": 1e-3, "epochs": 100, "density": 0.021},
    "vit --data imagenet": {"lr": 5e-5, "batch_size": 32, "optimizer": "adamw", "schedule": "linear"},
    "gpt2 --data wikitext-103": {"optimizer": "adamw", "lr": 5e-5, "batch_size": 2},
    "transformer --data wikitext-2": {"batch_size": 64, "lr": 2e-3, "lr_times_ranks": True, "optimizer": "adam"},
    "lstm --data an4": {
        **{"density": 0.02, "batch_size": 2, "lr": 1e-3, "clip_norm": 400, "momentum": 0.9, "weight_decay": 1e-4},
        **{"schedule": "exponential", "decay": pytest.approx(1 / 1.01), "task": "speech"},
    },
    "lstm --task text": {"task": "text"},
    "bert": {"optimizer": "adamw", "schedule": "linear", "epochs": 3, "warmup_epochs": 3 / 10, "task": "pretrain"},
    "bert --data squad --epochs 7": {"batch_size": 4, "warmup_epochs": pytest.approx(7 / 10), "task": "squad"},
    "bert --task squad --tiny": {"data": "python-cloze", "density": 0.021, "warmup_epochs": 1 / 10},
}


@pytest.mark.parametrize("line", SETTINGS)
def test_settings_are_those_published(line):
    name, *options = line.split()
    args = vars(import_module(name).PROGRAM.parse(options))
    assert {option: args[option] for option in SETTINGS[line]} == SETTINGS[line]
    assert gpt2.SHAPES["wikitext-103"] == (12, 768, 12, 1024, 50_257)
    assert (LSTM_SETTINGS["wikitext-2"].lr, LSTM_SETTINGS["wikitext-2"].clip_norm) == (1e-3, 0.1)


LOOKING_BACK = {
    "gpt2": lambda: GPT2(40, SMALL),
    "transformer": lambda: Transformer(40, block=16, width=16, layers=2, heads=4, dropout=0.1),
    "word lstm": lambda: WordLSTM(40, 8),
    "word lstm, tied": lambda: WordLSTM(40, 8, tied=True),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", LOOKING_BACK)
def test_a_language_model_sees_only_what_came_before(name, gradients):
    torch.manual_seed(0)
    model = LOOKING_BACK[name]().eval()
    tokens = torch.arange(20).reshape(2, 10)
    changed = tokens.clone()
    changed[:, 6] = 39
    with torch.set_grad_enabled(gradients):  # without, torch takes other kernels
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 10, 40)
    off = 0 if "lstm" in name else 1e-6  # an LSTM has not read the later words: equal to the bit
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=off)
    assert (before[:, 6:] - after[:, 6:]).abs().amax((0, 2)).min() > (0 if "lstm" in name else 1e-4)


def test_the_transformer_tells_the_order_of_what_came_before_and_its_layers_start_with_weights_of_their_own():
    torch.manual_seed(0)
    model = Transformer(40, block=16, width=16, layers=2, heads=2, dropout=0.0).eval()
    one, other = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
    assert not torch.allclose(one, other)
    one, other = (layer.linear1.weight for layer in model.layers)
    assert not torch.equal(one, other)


# Of a tiny model's loss on 256 bytes, how far it is from an even guess's at first, and what it is below after 15 steps
LEARNS = {"gpt2": (0.1, 3.9), "transformer": (0.2, 3.9), "lstm --task text --block 32 --batch-size 32": (0.1, 3.6)}


@pytest.mark.parametrize("name", LEARNS)
def test_a_tiny_model_learns_in_few_steps(name, tmp_path):
    task, args = tiny(name, tmp_path)
    assert count(task.model) < 300_000
    off, last = LEARNS[name]
    kind = torch.optim.AdamW if args.optimizer == "adamw" else torch.optim.Adam
    losses = losses_of(task, kind(task.model.parameters(), 1e-2 if "lstm" in name else args.lr), 15)
    assert losses[0] == pytest.approx(math.log(256), abs=off) and losses[-1] < last


@pytest.mark.parametrize(("name", "parameters"), [("resnet", 17_254), ("vit", 202_186)])
def test_a_tiny_model_of_images_learns_with_all_its_parameters_and_the_same_from_a_batch_again(
    name, parameters, tmp_path
):
    task, _ = tiny(name, tmp_path)
    assert count(task.model) == parameters
    first, again = (task.forward_and_loss(next(task.train(3, 2)))[0].item() for _ in range(2))
    loss, sums = task.forward_and_loss(next(task.train(0)))
    loss.backward()
    assert first == again and 0 < loss.item() < 10 and sums[0] == 17  # 1437 images in 89 steps
    for name, parameter in task.model.named_parameters():  # softmax takes no notice of a key's bias
        assert parameter.grad.isfinite().all() and (parameter.grad.any() or "k_proj.bias" in name), name


def test_options_go_before_a_size_and_a_size_before_the_defaults():
    given = ["--tiny", "--size", "small", "--layers", "1", "--width", "24", "--vocabulary", "300", "--block", "32"]
    config = gpt2.PROGRAM.make(gpt2.PROGRAM.parse(given), NullComm()).model.model.config
    assert (config.n_layer, config.n_embd, config.n_head, config.n_positions) == (1, 24, 12, 32)
    assert config.vocab_size == 300


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ("", "speech"),
        ("--data an4", "speech"),
        ("--data=an4 --lr 0.1", "speech"),
        ("--data ptb", "text"),
        ("--task text", "text"),
        ("--task text --data wikitext-2", "text"),
        ("--task speech --tiny", "speech"),
        ("--task neither", "speech"),
    ],
)
def test_the_task_of_an_lstm_is_that_of_the_data(options, task):
    assert LSTM.chosen(options.split()) is LSTM.programs[task]
