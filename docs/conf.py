"""The site: `make docs`. Pages are Markdown; the reference comes from docstrings, and from the help of commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sphinx.pycode import ModuleAnalyzer

import txstore

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

import aio_stub  # noqa: E402

# The methods of txstore.aio are made at run time. Their order and overloads are those of the file for type checkers.
ModuleAnalyzer.cache["module", "txstore.aio.faces"] = ModuleAnalyzer.for_string(
    aio_stub.source(), "txstore.aio.faces", aio_stub.STUB
)

project = "TxStore"
author = "The TxStore authors"
copyright = author
version = release = txstore.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",
    "docstrings",
    "modules",
    "for_language_models",
]
exclude_patterns = ["_build", "_extensions"]
nitpicky = False

# -- Markdown, and the notebooks of the gallery, which are run when the site is built
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # what was run before another change of the code says nothing
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_merge_streams = True

# -- Python: docstrings are of numpy's style, with single backticks around code
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["tensorflow", "torch"]
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False

# -- What a reader sees
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
html_theme = "pydata_sphinx_theme"
html_title = "TxStore"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options: dict[str, Any] = {
    "header_links_before_dropdown": 6,
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
}
html_sidebars = {"index": []}


def _inside(app: Any, name: str, source: list[str]) -> None:
    """Links to files above the pages lead to the pages that include these."""
    source[0] = (
        source[0]
        .replace("](../../CONTRIBUTING.md", "](/understand/contributing.md")
        .replace("](../../CHANGELOG.md", "](/reference/changelog.md")
    )


def setup(app: Any) -> None:
    app.connect("source-read", _inside)
