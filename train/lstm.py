"""Train an LSTM on speech or on text: a replica on every MPI rank, gradients reduced sparsely.

mpiexec -n 4 python train/lstm.py --data espeak                           SYNTHETIC speech, 5 layers of 800
mpiexec -n 4 python train/lstm.py --tiny                                  a little of it, a small model, in seconds
srun --mpi=pmix -n 32 python train/lstm.py --data an4 --data-dir ~/audio  speech, settings published for Ok-Topk
mpiexec -n 4 python train/lstm.py --task text                             the Python reference, 2 layers of 500
srun --mpi=pmix -n 8 python train/lstm.py --data wikitext-2               text, as published for ADTopk

Options differ with the task: --task text --help lists the ones of text.
"""

from __future__ import annotations

from sparse_train.data import corpus
from sparse_train.tasks import speech
from sparse_train.tasks.language import LSTM_SETTINGS, check_vocabulary, extend_lstm, lstm_language_task
from sparse_train.trainer.program import ByTask, Program, Settings, Tiny

TINY_TEXT = Settings(epochs=1, batch_size=32, lr=3e-3, optimizer="adam")

PROGRAM = ByTask(
    {
        "speech": Program("lstm", __doc__ or "", speech.speech_task, speech.SETTINGS, speech.FOLDERS, speech.TINY),
        "text": Program(
            "lstm",
            __doc__ or "",
            lstm_language_task,
            LSTM_SETTINGS,
            corpus.FOLDERS,
            Tiny("python-reference", TINY_TEXT),
            extend_lstm,
            check_vocabulary,
        ),
    },
    "speech: characters from sound; text: the next word (default: the one that --data is for, or speech)",
)

if __name__ == "__main__":
    PROGRAM.run()
