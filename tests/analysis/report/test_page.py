"""What a page says without its scripts: it is HTML that a reader, a printer and a screen reader understand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
import typer

from robustcaps.analysis.report.provenance import describe_suite
from robustcaps.analysis.report.rendering import script_json
from robustcaps.analysis.results import Results
from robustcaps.cli.commands.results import report
from tests.analysis.report.conftest import NASTY


class Reader(HTMLParser):
    """Collects the tags of a page, its texts, and the contents of its scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def page(finished):
    return (finished / "report.html").read_text(encoding="utf-8")


def test_every_section_is_there_and_every_name_is_text(page):
    reader = Reader(page)
    text = " ".join("".join(reader.words).split())
    for wanted in (
        NASTY.replace("\u2028", "\\u2028"),
        "What was found",
        "models by robust AUC",
        "Accuracy under attack, by model",
        "Accuracy under attack, by attack",
        "Targeted attacks: share of a class",
        "level0",
        "Gradients by loss",
        "Can these numbers be trusted?",
        "against the cost of the attack",
        "Gallery",
        "rows invalid (outside-ball: the attack returned an image farther than eps",
        "How this was made",
        "@software{robustcaps",
    ):
        assert wanted in text, wanted
    assert "img" not in reader.tags and reader.tags.count("h1") == 1


def test_nothing_is_requested_and_only_the_scripts_of_the_page_may_run(page):
    reader = Reader(page)
    policy = next(value for name, value in reader.attributes if name == "content" and "default-src" in (value or ""))
    assert "default-src 'none'" in policy and "img-src data:" in policy
    executed = [script for script in reader.scripts if not script.startswith('{"figures"')]
    assert len(executed) == len(reader.scripts) - 1
    for script in executed:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert not [value for name, value in reader.attributes if name in ("src", "srcset") and value]
    assert len(page) < 5_000_000


def test_the_same_results_give_the_same_page(finished, page):
    results = Results(finished)
    results.write_report()
    assert (finished / "report.html").read_text(encoding="utf-8") == page


def test_tables_tell_what_their_cells_are(page):
    body = page.partition("<script")[0]
    tables = re.findall(r"<table.*?</table>", body, re.DOTALL)
    with_body = [table for table in tables if "<td" in table]
    assert len(with_body) > 5 and all('scope="col"' in table for table in with_body)


@pytest.mark.parametrize("text", ["</script>", "<!--", "\u2028\u2029", "]]>", "&lt;", "'\"\\"])
def test_json_in_a_script_cannot_end_it(text):
    safe = str(script_json({"name": text}))
    assert json.loads(safe) == {"name": text}
    assert safe.isascii() and not {"<", ">", "&"} & set(safe)


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))


def test_the_page_is_opened_in_the_browser(finished, monkeypatch):
    opened = []
    monkeypatch.setattr(typer, "launch", opened.append)
    report(finished, open_page=True)
    assert opened == [(finished / "report.html").as_uri()]


def test_the_citation_is_lines_to_copy(page):
    entry = re.search(r'<pre id="citation">(.*?)</pre>', page, re.DOTALL)
    assert entry and "\\n" not in entry[1]
    lines = entry[1].splitlines()
    assert (lines[0], lines[-1]) == ("@software{robustcaps,", "}") and len(lines) >= 5


def test_attacks_are_listed_with_the_norm_that_they_used(finished):
    grid = next(grid for grid in describe_suite(Results(finished).record) if grid.title == "Attacks")
    assert {row[3].text for row in grid.rows} == {"linf"}
