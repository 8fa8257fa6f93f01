"""The site: `make docs` builds it into build/docs, with a search without a network."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from types import GenericAlias
from typing import Union

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import _MockObject
from sphinx.util.docutils import SphinxDirective

from sparse_mpi import __version__
from sparse_mpi.__main__ import parser

project = "sparse_mpi"
author = "the sparse_mpi developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
nitpicky = True
# No network, and so no inventories: names of NumPy, torch and Python lead nowhere
# Neither do type variables, and what the library keeps to itself
OURS = r"""(?x) sparse_mpi\. ( .*\.[A-Z] | rows\.Block
    | algorithms\.(hybrid\.Hybrid | published\.StaleState)
    | comm\.(job\.call_log\.Watched | streams\.(Branch | Marks) | background\.Span)
    | collectives\.messages\.Format
    | training\.(fsdp_units\.Unit | optimizer_rule\.Rule | buckets?\.Buckets?)
    | training\.(door\.ReplicatedState | named_gradients\.NamedGradients)
    | reduction\.(engine\.Absence | second_moment\.SecondMoment | settings\.Settings)
    | monitor\.watch\.(Watch | Quality) )"""
nitpick_ignore_regex = [("py:.*", r"(?!sparse_mpi\.).*"), ("py:.*", OURS)]

myst_heading_anchors = 4  # as forges make them
myst_enable_extensions = ["colon_fence"]  # for tabs

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Docstrings need none of these, and the environment of `make docs` has none
autodoc_mock_imports = ["torch", "mpi4py", "numba", "cupy", "lightning", "transformers"]
# Annotations that are evaluated, as in training/ddp_state.py, show what stands there
_MockObject.__or__ = lambda mock, other: Union[mock, other]  # noqa: UP007
_MockObject.__getitem__ = lambda mock, key: GenericAlias(mock, key)
python_maximum_signature_line_length = 100
add_module_names = False
napoleon_use_param = False  # arguments that are described together stay together
napoleon_use_rtype = False
default_role = "literal"  # docstrings have Python's names in single backticks

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {
        "removed": "#b31d28",
        "removed-behind": "#ffeef0",
        "added": "#176f2c",
        "added-behind": "#e6ffec",
    },
    "dark_css_variables": {
        "removed": "#ff8182",
        "removed-behind": "#3c1618",
        "added": "#6fdd8b",
        "added-behind": "#12301b",
    },
}
copybutton_prompt_text = r"\+(?!\+)"  # from a diff, the new lines are copied
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # no output
html_title = f"sparse_mpi {release}"
html_show_sphinx = False
html_copy_source = False
linkcheck_timeout = 30
linkcheck_workers = 2


class Commands(SphinxDirective):
    """What every command says with --help, a section each."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        os.environ["COLUMNS"] = "88"  # the width of what argparse prints
        return [self.section(command) for command in commands(parser())]

    def section(self, command: argparse.ArgumentParser) -> nodes.section:
        """Return the section of a command."""
        name = re.sub(r"^python -m sparse_mpi *", "", command.prog) or "sparse_mpi"
        section = nodes.section("", nodes.title("", name), ids=[nodes.make_id(name)])
        text = command.format_help()
        section += nodes.literal_block(text, text, language="text", classes=["help"])
        return section


def commands(above: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of all commands below it, without deprecated names."""
    yield above
    for action in above._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield from commands(action.choices[choice.dest])


# Pages that lie above docs/ on a forge, and what they are in the site
ABOVE = {
    "README": "index",
    "CONTRIBUTING": "guides/contributing",
    "CHANGELOG": "reference/changelog",
    "REPRODUCE": "guides/reproduce",
    "examples/README": "guides/examples",
}


def adapt(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links to pages above docs/ to the site's."""
    source[0] = re.sub(
        rf"\]\((?:\.\./)+({'|'.join(ABOVE)})\.md",
        lambda link: f"](/{ABOVE[link[1]]}.md",
        source[0],
    )


def setup(app: Sphinx) -> None:
    """Tell Sphinx about what is above."""
    app.add_directive("commands", Commands)
    app.connect("source-read", adapt)
