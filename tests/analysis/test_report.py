from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

NASTY = "<script>alert('x')</script> & \"co\""


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def report(cli, suite, plugin, tmp_path):
    suite.write_text(suite.read_text().replace('"blunt"', json.dumps(NASTY)))
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 0, result.stderr
    return tmp_path / "o" / "report.html"


def test_the_page_shows_everything_and_escapes_every_name(report):
    page = Reader()
    page.feed(report.read_text())
    assert "script" not in page.tags and {"svg", "table"} <= page.tags
    text = "\n".join(page.words)
    for wanted in (NASTY, "Accuracy under attack", "Success of targeted attacks", "fgsm to every class", "100.0"):
        assert wanted in text
    assert "http://" not in report.read_text().replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_a_browser_shows_the_page(report, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    command = ["chromium", *flags, "--dump-dom", report.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "Accuracy under attack" in shown and shown.count("<svg") == 4 and "<script" not in shown
