"""Questions are read from SQuAD's files or made up, shown in windows, and answers judged as SQuAD judges them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparse_mpi.comm import NullComm
from sparse_train.data.questions import Answer, Question, ask, load_cloze, load_squad
from sparse_train.data.vocabulary import WordPiece, train_pieces
from sparse_train.tasks.squad import Answering, Windows, exact, f1, words

CONTEXT = "Super Bowl 50 decided the champion. The Denver Broncos, of the AFC, won 24–10; it was in Santa Clara's Café."
ASKED = [
    ("q1", "Who won?", [("Denver Broncos", 40), ("The Denver Broncos", 36)]),
    ("q2", "Where was it?", [("Santa Clara's Café", CONTEXT.index("Santa"))]),
]


def content(asked=ASKED):
    questions = [
        {"id": name, "question": text, "answers": [{"text": t, "answer_start": s} for t, s in answers]}
        for name, text, answers in asked
    ]
    paragraphs = [{"context": CONTEXT, "qas": questions}]
    return {"version": "1.1", "data": [{"title": "Super_Bowl_50", "paragraphs": paragraphs}]}


def write(folder, **files):
    for name, data in files.items():
        (folder / f"{name}-v1.1.json").write_text(data if isinstance(data, str) else json.dumps(data))


def questions(folder):
    write(folder, train=content(), dev=content(ASKED[:1]))
    return load_squad(folder)


def test_files_of_squad_are_read(tmp_path):
    data = questions(tmp_path)
    assert [question.name for question in data.train] == ["q1", "q2"] and len(data.test) == 1
    assert data.train[0] == Question(
        "q1", "Who won?", CONTEXT, (Answer("Denver Broncos", 40), Answer("The Denver Broncos", 36))
    )


def test_answers_that_are_a_few_characters_off_are_put_right(tmp_path):
    write(tmp_path, train=content([("q", "Who?", [("Denver Broncos", 42)])]), dev=content())
    assert load_squad(tmp_path).train[0].answers[0].start == 40


def test_made_up_questions_ask_for_a_term_that_is_there_once():
    sentences = ['The "yield" of "b".', 'Call "print()" or "b" or "sorted()".', 'No term: "two words".']
    context = " ".join(sentences)
    assert list(ask("p", sentences)) == [
        Question("p-0", 'The what of "b".', context, (Answer("yield", 5),)),
        Question("p-1", 'Call "print()" or "b" or what.', context, (Answer("sorted()", context.index("sorted")),)),
    ]


def test_the_python_reference_gives_hundreds_of_questions():
    data = load_cloze(Path("nowhere"))
    assert len(data.train) > 400 and len(data.test) > 40
    assert not {question.context for question in data.train} & {question.context for question in data.test}
    for question in [*data.train, *data.test]:
        (answer,) = question.answers
        assert question.context[answer.start :].startswith(answer.text) and "what" in question.text


SPECIAL = WordPiece(train_pieces([CONTEXT] * 3, 80))


def windows(folder, length=40, stride=8):
    return Windows(questions(folder).train, SPECIAL, length, stride, asked=12)


def test_labels_lead_back_to_the_answers(tmp_path):
    made = windows(tmp_path)
    batch = made.batch(made.all)
    whole = 0
    for row, window in enumerate(batch.windows):
        start, end = int(batch.starts[row]), int(batch.ends[row])
        if start:
            whole += 1
            scores = -abs(np.arange(40) - start), -abs(np.arange(40) - end)
            assert made.best(window, *scores)[1] == made.questions[window.question].answers[0].text
        else:
            assert end == 0
    assert 2 <= whole < len(made.all)


def test_windows_cover_the_context_in_the_form_of_bert(tmp_path):
    made = windows(tmp_path)
    batch = made.batch(made.all)
    context = SPECIAL.encode([CONTEXT])[0].ids.tolist()
    asked = SPECIAL.encode(["Who won?"])[0].ids.tolist()
    mine = [row for row, window in enumerate(batch.windows) if window.question == 0]
    assert [batch.windows[row].first for row in mine] == [8 * number for number in range(len(mine))]
    covered = 0
    for row in mine:
        first, count = batch.windows[row].first, int(batch.attended[row].sum())
        part = context[first : first + 40 - 3 - len(asked)]
        shown = [SPECIAL.cls, *asked, SPECIAL.sep, *part, SPECIAL.sep]
        assert batch.tokens[row].tolist() == shown + [SPECIAL.pad] * (40 - count)
        assert batch.parts[row].tolist() == [0] * (len(asked) + 2) + [1] * (len(part) + 1) + [0] * (40 - count)
        assert first <= covered
        covered = first + len(part)
    assert covered == len(context)


def test_windows_with_gaps_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--stride must be at most 25, .* got 26"):
        windows(tmp_path, stride=26)


def test_the_best_span_goes_forward_is_short_and_lies_in_the_context(tmp_path):
    made = windows(tmp_path, length=100)
    window, before = made.all[0], len(SPECIAL.encode(["Who won?"])[0].ids) + 2
    spans = SPECIAL.encode([CONTEXT])[0].spans
    starts, ends = np.zeros((2, 100))
    starts[[0, before + 5]], ends[[0, before + 2, before + 36, before + 34]] = [9, 5], [9, 4, 3, 2]
    score, text = made.best(window, starts, ends)
    assert score == 7 and text == CONTEXT[spans[5, 0] : spans[34, 1]]  # 30 tokens: 36 is too far, 2 is before


def test_words_are_compared_without_case_punctuation_and_articles():
    assert words("The  Denver-Broncos, a TEAM!") == ["denverbroncos", "team"]
    assert exact("the Denver Broncos.", "Denver broncos") == 1 and exact("Denver", "Denver Broncos") == 0
    assert f1("Denver", "The Denver Broncos") == pytest.approx(2 / 3)
    assert f1("to be or not to be", "to to to be") == pytest.approx(2 * 3 / 10)
    assert f1("Boston", "Denver") == f1("", "the") == 0


class Oracle(torch.nn.Module):
    """Gives token t of a window the scores that a table has for its tokens."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, tokens, attention_mask, token_type_ids):
        starts, ends = (torch.stack(rows) for rows in zip(*map(self.table, tokens), strict=True))
        return SimpleNamespace(start_logits=starts, end_logits=ends)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_question_is_judged_once_by_its_best_window(tmp_path, size):
    made = windows(tmp_path)
    batch = made.batch(made.all)
    labels = {tuple(t.tolist()): (s, e) for t, s, e in zip(batch.tokens, batch.starts, batch.ends, strict=True)}

    def table(tokens):
        start, end = labels[tuple(tokens.tolist())]
        sure = 5.0 if start else 1.0  # a window without the answer points at [CLS], and is less sure
        return tuple(torch.nn.functional.one_hot(place, 40) * sure for place in (start, end))

    args = Namespace(batch_size=2, seed=1, spares=0)
    sums = np.zeros(5)
    for rank in range(size):
        task = Answering(Oracle(table), made, made, args, NullComm(size, rank))
        task.model.eval()
        sums += sum((task.forward_and_loss(batch)[1].numpy() for batch in task.test()), np.zeros(5))
    assert sums[0] == len(made.all) and sums[2] == 2
    scores = task.scores(sums)
    assert scores["f1"] == scores["exact"] == 1 and scores["loss"] > 0
    task.model.train()
    assert np.isnan(task.scores(task.forward_and_loss(batch)[1])["f1"])
