"""Configuration of Sphinx; tables that come from code or from results/ are written before the pages are read."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))

from docs.generate.pages import write_pages

project = "robustcaps"
author = "The robustcaps developers"
project_copyright = author
release = version = importlib.metadata.version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
exclude_patterns = ["_build", "generated", "generate"]
default_role = "code"
suppress_warnings = ["myst.header"]  # included tables begin wherever they are included

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"robustcaps {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_theme_options = {"navigation_with_keys": True}


def escape_docstring(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keep `**options` and |x| of a docstring, which is plain text, from being read as markup."""
    lines[:] = [re.sub(r"([*|])", r"\\\1", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Write the generated tables before Sphinx looks for its sources; escape docstrings before napoleon reads them."""
    app.connect("autodoc-process-docstring", escape_docstring, priority=100)
    app.connect("builder-inited", lambda built: write_pages(Path(built.srcdir) / "generated"))
