"""The runner of the pages: nothing is skipped in silence, and what fails is named by page and line."""

from __future__ import annotations

import shutil

import pytest

from .outputs import difference
from .pages import Page
from .running import environment, folder_of, named, run_commands, run_python


def page(*lines: str) -> Page:
    return Page("docs/page.md", "\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["# A", "", "```", "print(1)", "```"], (4, "a block of language '' cannot be run")),
        (["```yaml", "a: 1", "```"], (2, "a block of language 'yaml' cannot be run")),
        (["```{code-block} python", "1", "```"], (2, "cannot be run")),
        (["```text", "1", "```"], (2, "no block that is run prints this")),
        (["```python", "1", "```", "```text", "1", "```", "```text", "1", "```"], (8, "no block that is run")),
        (["<!-- not run: x -->", "    a", "", "```text", "1", "```"], (5, "no block that is run prints this")),
        (["Save this as `a.py`:", "", "```python", "1", "```"], (4, "a.py is saved, and nothing else")),
    ],
)
def test_a_block_that_would_be_skipped_is_a_problem(lines, problem):
    [(line, said)] = page(*lines).problems
    assert line == problem[0] and problem[1] in said


@pytest.mark.parametrize(
    ("shown", "printed", "percent", "same"),
    [
        ("a\nb", "\na  \nb\n\n", 0, True),
        ("a\n b", "a\nb", 0, False),
        ("a ... c", "a b\nb c", 0, True),
        ("a ... c", "a b", 0, False),
        ("1,200 ms (x2)", "1,100 ms (x2)", 10, True),
        ("1,200 ms (x2)", "1,000 ms (x2)", 10, False),
        ("1,200 ms (x2)", "1,200 ms (x3)", 10, False),
        ("-1e-3 ...", "-1.01e-3 4 5", 2, True),
        ("1 a", "a", 2, False),
    ],
)
def test_what_is_printed_is_what_is_shown(shown, printed, percent, same):
    assert (difference(shown, printed, percent) is None) == same


@pytest.mark.jobs
def test_python_of_a_page_shares_names_and_fails_at_its_line(tmp_path):
    good = ["<!-- first:", "a = 1", "-->", "```python", "print(a)", "```", "```text", "1", "```"]
    run_python(page(*good), tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)docs/page.md:11: .*line 12.*NameError.*write <!-- not run"):
        run_python(page(*good, "```python", "a += 1", "b", "```"), tmp_path)
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)docs/page.md:8: the page shows\n\n    2\n.*printed:\n\n    1"
    ):
        run_python(page(*good[:7], "2", "```"), tmp_path)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_commands_of_a_page_find_its_files_and_fail_at_their_line(tmp_path):
    text = ["    cat a.txt | wc -l", "", "```text", "1", "```", "Save this as `a.txt`", "```text", "b", "```"]
    seen = page(*text, "    false; :")
    assert not seen.problems and named(seen) == set()
    with pytest.raises(pytest.fail.Exception, match=r"(?s)docs/page.md:10: .*false; :.*ended with status 1"):
        run_commands(seen, seen.commands(), folder_of(seen, tmp_path), environment())
