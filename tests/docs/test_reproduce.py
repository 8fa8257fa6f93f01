"""The claims of `make reproduce` stand on their pages, their jobs can be started, and what is missed is said."""

from __future__ import annotations

import json
import re
from itertools import takewhile

import pytest

from runs import claims, reproduce

from .options import calls, help_of
from .pages import ROOT

HOUR = 60


def words(text: str) -> str:
    return " ".join(text.split())


def test_each_claim_stands_on_its_page():
    pages = {claim.page: words((ROOT / claim.page).read_text()) for claim in claims.CLAIMS.values()}
    assert not [name for name, claim in claims.CLAIMS.items() if words(claim.says) not in pages[claim.page]]


@pytest.mark.parametrize("origin", ["rivals", "compare-vgg16", "sparse-volume", "select-cpu"])
def test_claims_are_read_from_records(origin):
    """From those that their commands write today."""
    record = json.loads((ROOT / "docs" / "results" / f"{origin}.json").read_text())
    found = [claim for claim in claims.CLAIMS.values() if claim.origin == origin]
    assert found and all(reading(record) for claim in found for reading in claim.readings)


def test_the_page_of_the_last_run_has_known_jobs():
    page = (ROOT / "docs/reference/reproduced.md").read_text()
    assert set(re.findall(r"^\| `(.*?)` ", page, re.MULTILINE)) <= set(claims.JOBS)


def test_jobs_fit_in_an_hour_and_each_has_claims():
    assert sum(job.minutes for job in claims.JOBS.values()) <= HOUR
    assert {claim.job for claim in claims.CLAIMS.values()} == set(claims.JOBS)
    needs = {need for job in claims.JOBS.values() for need in job.needs}
    assert needs == {"root", *claims.PROGRAMS, "numba", "torch", "scipy", "sklearn", "pytest"}
    assert all(low <= high for claim in claims.CLAIMS.values() for low, high in claim.bands)


def test_jobs_have_the_options_of_their_programs(capsys, monkeypatch):
    for job in claims.JOBS.values():
        found = calls(f"python {job.command}".replace("OUT", "out.json"))
        assert found or (ROOT / re.search(r"tests/\S+\.py", job.command)[0]).exists()
        for program, *options in found:
            own = list(takewhile(lambda word: word != "--", options))  # behind it are another program's
            assert help_of(program, own, monkeypatch) == 0, job.command
    capsys.readouterr()


TEXTS = {"what": "a value", "page": "README.md", "says": "", "why": "", "origin": ""}
RECORD = {
    "rows": [{"name": "a", "k": 8, "ranks": 4, "sent": 12.0}, {"name": "b", "k": 8, "ranks": 2, "sent": 2.0}],
    "by name": {"a": {"ms": [3.0, 1.0, 2.0]}, "b": {"ms": [2.0]}},
}


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ({"read": "rows > name=b, a > sent", "times": 10}, [20, 120]),
        ({"read": "rows > sent", "over": "rows > k(P-1)/P"}, [2, 0.5]),
        ({"read": "rows > -1 > sent, k"}, [2, 8]),
        ({"read": "by name > * > ms", "take": "ends"}, [1, 3]),
        ({"read": "by name > a > ms", "over": "by name > b > ms", "take": "median"}, [1]),
        ({"read": [{"read": "rows > 0 > k", "minus": "rows > 1 > sent"}, {"read": "rows > sent"}]}, [6, 12, 2]),
    ],
)
def test_numbers_are_read_at_a_path(entry, values):
    assert claims.claim("job", TEXTS | entry).read(RECORD) == values


WRITES = "import json, sys; json.dump({'value': 2.0}, open(sys.argv[1], 'w'))"


def made(monkeypatch, code: str, bands, needs=()):
    """A table of one claim, whose job is a line of Python."""
    job = claims.Job(f"-c {json.dumps(code)} OUT", 0.01, needs)
    claim = claims.claim("job", TEXTS | {"read": "value", "between": bands})
    monkeypatch.setattr(reproduce, "JOBS", {"job": job})
    monkeypatch.setattr(reproduce, "CLAIMS", {"one": claim})


@pytest.mark.parametrize(
    ("code", "bands", "verdict", "said"),
    [
        (WRITES, [(1.9, 2.1)], "held", "2"),
        (WRITES, [(2.1, 3)], "missed", "2"),
        (WRITES, [(1.9, 2.1)] * 2, "missed", "2"),
        (WRITES.replace("value", "other"), [(1.9, 2.1)], "failed", "no such number"),
        ("print('why'); exit(3)", [(1.9, 2.1)], "failed", "status 3: why"),
        ("pass", [(1.9, 2.1)], "failed", "no record"),
    ],
)
def test_what_becomes_of_a_claim(monkeypatch, tmp_path, capsys, code, bands, verdict, said):
    made(monkeypatch, code, bands)
    page = tmp_path / "page.md"
    status = reproduce.main(["--out", str(tmp_path), "--page", str(page)])
    assert status == (verdict != "held")
    assert [claim["verdict"] for claim in json.loads((tmp_path / "record.json").read_text())["claims"]] == [verdict]
    printed, text = capsys.readouterr().out, page.read_text()
    assert f"{verdict:7} one: " in printed and said in printed
    assert f"**1 {verdict}**" in text and text == (tmp_path / "README.md").read_text() and text in printed
    assert "| `job` | 1/1 |" in text if verdict == "held" else f"- {verdict}: `one`, a value: " in text


def test_what_a_machine_cannot_do_is_skipped_with_the_reason(monkeypatch, tmp_path, capsys):
    made(monkeypatch, "exit(3)", [(0, 1)], ("nothing",))
    assert reproduce.main(["--out", str(tmp_path)]) == 0
    assert "skipped one: a value: no nothing" in capsys.readouterr().out


def test_a_name_that_there_is_not_is_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        reproduce.main(["--only", "volume.packed", "wires"])
    assert ended.value.code == 2 and "--only takes names of --list, got wires" in capsys.readouterr().err
