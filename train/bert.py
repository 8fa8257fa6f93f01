"""Train BERT: --task pretrain predicts masked words of plain text, --task squad answers questions by a span of a text.

mpiexec -n 4 python train/bert.py --tiny                           a small model on the Python reference
mpiexec -n 4 python train/bert.py --task squad --tiny              the same on questions made up from it
srun --mpi=pmix -n 32 python train/bert.py --data-dir ~/wikipedia  as Ok-Topk's paper; leaves vocab.txt in --out
srun --mpi=pmix -n 8 python train/bert.py --task squad --data-dir ~/squad --model-from MODEL.pt --vocab-file VOCAB.txt

--help lists the options of pretrain, --task squad --help those of squad.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from sparse_mpi.cli.values import file, integer
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_train.data import corpus, questions
from sparse_train.data.corpus import Document
from sparse_train.data.vocabulary import WordPiece, read_pieces, train_pieces
from sparse_train.models import language
from sparse_train.models.language import Shape
from sparse_train.ranks.job import agreed
from sparse_train.tasks import masked
from sparse_train.tasks.masked import Examples, Pretraining
from sparse_train.tasks.squad import Answering, Windows
from sparse_train.tasks.task import seeded
from sparse_train.trainer.program import ByTask, Program, Settings, Tiny

BASE, SMALL = Shape(layers=12, width=768, heads=12), Shape(layers=2, width=64, heads=2)
PIECES, FEW_PIECES = 30_522, 1_000  # sizes of vocabularies, the second with --tiny
VOCABULARY_TEXT = 200_000_000  # characters that a vocabulary is trained with at most
MAX_QUESTION_PIECES = 64
TEXTS: dict[str, Callable[[Path], Iterable[Document]]] = {
    "wikipedia": corpus.wikipedia,
    "python-reference": lambda folder: corpus.documents(),
}
QUESTIONS: dict[str, Callable[[Path], questions.Questions]] = {
    "squad": questions.load_squad,
    "python-cloze": questions.load_cloze,
}
ELSEWHERE = "(comes with Python)"


def settings(epochs: int, batch_size: int, lr: float) -> Settings:
    return Settings(
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        warmup_epochs=epochs / 10,
        warmup_scales=True,
        weight_decay=0.01,
        optimizer="adamw",
        schedule="linear",
    )


def pretraining(args: Namespace, comm: Comm) -> Pretraining:
    def documents() -> Iterator[Document]:
        return islice(TEXTS[args.data](args.data_dir), args.documents)

    special = vocabulary(args, comm, lambda: (document.text for document in corpus.training(documents())))
    length = args.sequence or (48 if args.tiny else 128)
    pieces, lengths = agreed(comm, lambda: corpus.encoded(documents(), special, comm))
    runs = corpus.gathered(pieces, lengths, length - masked.FRAME, comm)
    model = seeded(args, lambda: language.for_pretraining(shape(args), len(special.vocabulary)))
    return Pretraining(model, Examples(runs, special, length), args, comm)


def answering(args: Namespace, comm: Comm) -> Answering:
    questions = agreed(comm, lambda: QUESTIONS[args.data](args.data_dir))
    special = vocabulary(args, comm, lambda: dict.fromkeys(question.context for question in questions.train))
    length = args.sequence or (96 if args.tiny else 384)
    stride, asked = args.stride or length // 3, min(MAX_QUESTION_PIECES, length // 3)
    train, test = (Windows(part, special, length, stride, asked) for part in questions)
    model = seeded(args, lambda: language.for_answering(shape(args), len(special.vocabulary)))
    if args.model_from:
        language.load_encoder(model, args.model_from)
    return Answering(model, train, test, args, comm)


def shape(args: Namespace) -> Shape:
    usual = SMALL if args.tiny else BASE
    return Shape(*(getattr(args, name) or getattr(usual, name) for name in Shape._fields))


def vocabulary(args: Namespace, comm: Comm, texts: Callable[[], Iterable[str]]) -> WordPiece:
    """Return the vocabulary of --vocab-file, or one that rank 0 trains; collective.

    Rank 0 writes it into the folder of results as vocab.txt.

    Raises JobError: on all ranks, when a file or a package is missing or damaged.
    """

    def work() -> list[str]:
        size = args.vocabulary or (FEW_PIECES if args.tiny else PIECES)
        pieces = read_pieces(args.vocab_file) if args.vocab_file else train_pieces(_some(texts()), size)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
        return pieces

    pieces = agreed(comm, lambda: work() if comm.rank == 0 else [])
    return WordPiece(tell(comm, "\n".join(pieces)).split("\n"))


def _some(texts: Iterable[str]) -> Iterator[str]:
    total = 0
    for text in texts:
        if total > VOCABULARY_TEXT:
            return
        total += len(text)
        yield text


def _extend(parser: ArgumentParser, sequence: int) -> None:
    add = parser.add_argument_group("BERT").add_argument
    for name, size in BASE._asdict().items():
        add(f"--{name}", type=integer(1), metavar="N", help=f"of the encoder (default: {size})")
    text = f"pieces of a sequence, at most {language.POSITIONS} (default: {sequence})"
    add("--sequence", type=integer(16, language.POSITIONS), metavar="S", help=text)
    text = f"pieces of the vocabulary that is trained on the training text (default: {PIECES})"
    add("--vocabulary", type=integer(1), metavar="V", help=text)
    text = "a vocabulary to take instead: a piece of WordPiece a line"
    add("--vocab-file", type=file("vocab.txt"), metavar="FILE", help=text)


def extend_pretraining(parser: ArgumentParser) -> None:
    _extend(parser, sequence=128)
    text = "take the first N documents only; every rank holds the pieces of all (default: no limit)"
    parser.add_argument("--documents", type=integer(1), metavar="N", help=text)


def extend_answering(parser: ArgumentParser) -> None:
    _extend(parser, sequence=384)
    text = "pieces from one window of a context to the next (default: a third of --sequence)"
    parser.add_argument("--stride", type=integer(1), metavar="N", help=text)
    text = "take the encoder's weights from this state dict of pre-training, or model.bin of a checkpoint; needs its "
    text += "--vocab-file"
    parser.add_argument("--model-from", type=file("model.bin"), metavar="FILE", help=text)


def check(args: Namespace) -> None:
    if args.vocabulary and args.vocab_file:
        raise ValueError(
            f"--vocabulary: {args.vocabulary} has no effect beside --vocab-file {args.vocab_file}, which has its own "
            "size; leave one of them out"
        )
    if getattr(args, "model_from", None) and not args.vocab_file:
        raise ValueError("--model-from: needs the vocabulary of that model; give its vocab.txt with --vocab-file")


# Li and Hoefler, Ok-Topk, PPoPP 2022: 32 ranks and more, density, batch and rate of wikipedia. Devlin and others, BERT,
# NAACL 2019: weight decay, and the settings of squad. Epochs of wikipedia and all of the Python reference: ours.
PROGRAM = ByTask(
    {
        "pretrain": Program(
            "bert",
            __doc__ or "",
            pretraining,
            {"wikipedia": settings(3, 8, 2e-4), "python-reference": settings(10, 8, 2e-4)},
            {"wikipedia": "wikipedia", "python-reference": ELSEWHERE},
            Tiny("python-reference", settings(1, 32, 3e-3)),
            extend_pretraining,
            check,
        ),
        "squad": Program(
            "bert-squad",
            __doc__ or "",
            answering,
            {"squad": settings(2, 4, 3e-5), "python-cloze": settings(3, 4, 3e-5)},
            {"squad": "squad", "python-cloze": ELSEWHERE},
            Tiny("python-cloze", settings(1, 16, 3e-3)),
            extend_answering,
            check,
        ),
    },
    "pretrain: masked words; squad: answers (default: the one that --data is for, or pretrain)",
)

if __name__ == "__main__":
    PROGRAM.run()
