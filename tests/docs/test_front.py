"""Numbers of the front page are those of records, of this release or the last minor one."""

from __future__ import annotations

import json
import re

import pytest
from packaging.version import Version

from runs import front

from .pages import ROOT

CHANGES = (ROOT / "CHANGELOG.md").read_text()
LAST = re.findall(r"^## \[(\d+\.\d+)\.\d+\]", CHANGES, re.MULTILINE)[0]
FIGURE = re.compile(r"!\[[^\]]*\]\((?:docs/)?(results/[\w-]+\.svg)\)")


def current(record: str) -> bool:
    read = json.loads((ROOT / record).read_text())
    return Version(read.get("made", read)["versions"]["sparse_mpi"]) >= Version(f"{LAST}.0.dev0")


@pytest.mark.parametrize("sentence", front.SENTENCES, ids=lambda of: of.says[:40])
def test_a_sentence_is_of_a_record_of_the_last_minor_release(sentence):
    pages = [(ROOT / name).read_text() for name in front.PAGES]
    assert any(sentence.pattern().search(page) for page in pages), sentence.says
    assert [sentence.renewed(page) for page in pages] == pages, "run python -m runs.front"
    assert current(sentence.record), f"{sentence.record} is older than {LAST}: measure it anew"


def test_the_readme_names_the_processor_of_its_records():
    page = (ROOT / "README.md").read_text()
    records = [json.loads((ROOT / of).read_text()) for of in {sentence.record for sentence in front.SENTENCES}]
    assert all(f"{of['cpus']} x {of['cpu']}" in page for of in (record.get("made", record) for record in records))


@pytest.mark.parametrize("name", front.PAGES)
def test_figures_are_of_records_of_the_last_minor_release(name):
    commands = json.loads((ROOT / "runs" / "figures.json").read_text())
    figures = FIGURE.findall((ROOT / name).read_text())
    drawn = [re.findall(r"docs/results/[\w-]+\.json", commands[f"docs/{figure}"]) for figure in figures]
    assert figures and all(records and all(map(current, records)) for records in drawn)


# Numbers that nothing measured: versions, sizes of the data, of jobs and of examples, and sections of links
GIVEN = re.compile(
    r"`[^`]+`|version [\w.]+|bfloat16|1 % of (?:the|its) entries|Python >= [\d.]+|GPT-2|SC'19|HPDC'24|VGG-16|ResNet-\d+"
    r"|H\d00|\d x AMD EPYC|\(\S+\)"
    r"|\d+ (?:ranks|hosts|steps|lines|seeds|epochs)|[\d.]+ million \w+|[\d.]+ [MG]bit/s"
)


def left(page: str) -> list[str]:
    """Return lines of prose and tables with numbers that no record says, once all sentences are gone."""
    page = re.sub(r"```.*?```|<!--.*?-->|^ {4}[^\n]*$", "", page, flags=re.DOTALL | re.MULTILINE)
    for sentence in front.SENTENCES:
        page = sentence.pattern().sub("", page)
    return [line for line in GIVEN.sub("", page).splitlines() if re.search(r"\d", line)]


@pytest.mark.parametrize("name", front.PAGES)
def test_other_numbers_are_not_measured(name):
    assert not left((ROOT / name).read_text())


def test_an_old_record_and_a_number_without_one_are_seen():
    assert not current("docs/results/allreduce-p4-cpu.json")
    assert left("On 8 hosts a sum takes 1,004 ms.") and not left("`x` needs Python >= 3.10, on 4 ranks.")
    of = front.Sentence("{:.0f} ms\ndense, {:.1f} by `x`", "", [])
    assert of.pattern().search("see 1,004 ms dense,\n9.1 by `x`.")
