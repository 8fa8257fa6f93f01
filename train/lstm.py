"""Train an LSTM on speech or on text: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/lstm.py --data espeak                 SYNTHETIC speech, 5 layers of 800
mpiexec -n 4 python train/lstm.py --tiny                        a little of it, a small model, in seconds
srun -n 32 python train/lstm.py --data an4 --data-dir ~/audio   speech, as published for Ok-Topk
mpiexec -n 4 python train/lstm.py --task text                   the Python reference, 2 layers of 500
srun -n 8 python train/lstm.py --data wikitext-2                text, as published for ADTopk

Options differ with the task: --task text --help tells those of text.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from functools import partial

import data.text
import speech
from language import LSTM_SETTINGS, extend_lstm, lstm_language_task
from program import Program, Settings, Tiny

TINY_TEXT = Settings(density=0.05, epochs=1, batch_size=32, lr=3e-3, warmup_epochs=0, optimizer="adam")


def add_task(task: str, parser: ArgumentParser) -> None:
    """Add the option by which `choose` came to ``task``."""
    text = "speech: characters from sound; text: the next word (default: the one that --data is for, or speech)"
    parser.add_argument("--task", choices=tuple(PROGRAMS), default=task, help=text)


def extend_text(parser: ArgumentParser) -> None:
    """Add the options of text."""
    add_task("text", parser)
    extend_lstm(parser)


PROGRAMS = {
    "speech": Program(
        "lstm",
        __doc__ or "",
        speech.speech_task,
        speech.SETTINGS,
        speech.FOLDERS,
        speech.TINY,
        partial(add_task, "speech"),
    ),
    "text": Program(
        "lstm",
        __doc__ or "",
        lstm_language_task,
        LSTM_SETTINGS,
        data.text.FOLDERS,
        Tiny("python-reference", TINY_TEXT),
        extend_text,
    ),
}


def choose(argv: Sequence[str]) -> Program:
    """The program for the task that a command line names, or else for its data set; speech if it has neither.

    A data set of the other task than the one named ends the process with a line on stderr.
    """
    parser = ArgumentParser(usage=SUPPRESS, add_help=False)
    parser.add_argument("--task")
    parser.add_argument("--data")
    known, _ = parser.parse_known_args(argv)
    meant = next((task for task, program in PROGRAMS.items() if known.data in program.folders), None)
    if meant and known.task in PROGRAMS and known.task != meant:
        sets = ", ".join(PROGRAMS[known.task].settings)
        parser.error(
            f"argument --data: {known.data} is for --task {meant}, not {known.task}; leave out --task, or take {sets}"
        )
    return PROGRAMS.get(known.task or meant or "speech", PROGRAMS["speech"])


if __name__ == "__main__":
    choose(sys.argv[1:]).run()
