"""Fills the findings of the README with the figures of the reference run: python -m docs.generate.readme."""

from __future__ import annotations

import re

from docs.generate.markdown import ROOT
from docs.generate.results import findings

README = ROOT / "README.md"


def filled(readme: str) -> str:
    """Return the README with the findings between `<!-- findings -->` and `<!-- end -->` made anew."""
    pattern = r"(<!-- findings -->\n).*?(<!-- end -->)"
    text, count = re.subn(pattern, lambda found: f"{found[1]}{findings()}\n{found[2]}", readme, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"README.md: {count} sections of findings, not one.")
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
