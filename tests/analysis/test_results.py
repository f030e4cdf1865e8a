from __future__ import annotations

import builtins
import io
import json
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest

import robustcaps as rc
from robustcaps.analysis.results import Results, StoredCell
from robustcaps.attacks.example_columns import EXAMPLE_COLUMNS, EXAMPLE_NAMES
from robustcaps.errors import UserError
from robustcaps.execution.store import Store
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from robustcaps.utils.grid import grids_markdown
from tests.conftest import PLUGIN

SUITE = """
[[data]]
use = "dots"
limit = 12

[[models]]
use = "levels"

[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0

[[attacks]]
use = "fgsm"
eps = [0.05, 0.1]

[[attacks]]
use = "darken"
eps = [0.05, 0.1]

[[attacks]]
use = "darken"
name = "too far"
eps = 0.1
share = 2.0

[[diagnostics]]
use = "zero-gradient"
eps = 0.05

[[diagnostics]]
use = "gradients"
limit = 6
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The out folder of a run with attacks, one of which breaks the rules, verdicts and gradients."""
    folder = tmp_path_factory.mktemp("run")
    suite, plugin = folder / "small.toml", folder / "tiny_plugin.py"
    suite.write_text(SUITE)
    plugin.write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:  # what the plugin registers is forgotten after the run
        for registry in (ATTACKS, DATASETS, MODELS):
            registry.names("built-in ones")  # registers them, whatever is asked for
            patch.setattr(registry, "_entries", dict(registry._entries))
        result = rc.run(suite, folder / "o", plugins=[plugin])
    assert result.computed == 10 and not result.failures
    return result.out


@pytest.fixture
def out(finished, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(finished, tmp_path / "o")


@pytest.fixture
def reads(monkeypatch):
    """How often each run.json and each stored cell is read from now on, by the name of the file."""
    counts = Counter()

    def count(owner, name, *, of):
        original = getattr(owner, name)

        def counted(path, *args, **kwargs):
            writes = name == "open" and set(args[0] if args else kwargs.get("mode", "r")) & set("wxa")
            if isinstance(path, str | Path) and Path(path).match(of) and not writes:
                counts[Path(path).name] += 1
            return original(path, *args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(pq, "read_table", of="*.parquet")
    count(pd, "read_parquet", of="*.parquet")
    for of in ("run.json", "*.parquet"):
        count(io, "open", of=of)  # the methods of Path call this one
        count(builtins, "open", of=of)
    return counts


@pytest.fixture
def once_and_images(out):
    """The counts of reading run.json and every cell once, and attack cells again for the images of the report."""
    cells = json.loads((out / "run.json").read_text())["cells"]
    files = {cell["id"]: f"{cell['id']}.parquet" for cell in cells}
    assert len(files) == 10 and set(files.values()) == {path.name for path in (out / "cells").glob("*.parquet")}
    images = [files[cell["id"]] for cell in cells if cell["kind"] == "attack"]
    return Counter(["run.json", *files.values(), *images])


def test_to_write_everything_each_file_is_read_once_and_images_when_shown(out, once_and_images, reads):
    written = Results(out).write_all()
    assert reads == once_and_images
    names = {path.name for path in written}
    assert {"table.csv", "verdicts.md", "gradients.csv", "accuracy.svg", "verdicts.png", "report.html"} <= names


def test_whatever_is_used_each_file_is_read_once_and_images_when_shown(out, once_and_images, reads):
    results = Results(out)
    assert reads == Counter(["run.json"])
    assert set(results.table["model"]) == {"levels", "blunt"} and len(results.verdicts) == 2
    assert results.tables["gradients"]["n"].tolist() == [6, 6] and results.tables["transfer"].empty
    masking, undecided = results.findings
    assert masking.startswith("Gradient masking: 2 trusted. ")
    assert undecided.startswith("No significant difference between levels and blunt (robust AUC ")
    invalid = results.violations.set_index(["model", "attack"])["rows"]
    assert invalid.to_dict() == {("levels", "too far"): 12, ("blunt", "too far"): 12}
    assert {"accuracy", "cost", "verdicts", "gradients"} <= {name for name, _ in results.figures()}
    assert results.tables["ranking"]["verdict"].isin(["trusted", "suspicious", "masked"]).all()
    assert len(results.main_grids()) == 4 and len(list(results.sections())) == 2
    results.write_tables()
    results.write_figures()
    results.write_report()
    assert len(results.rows()) == 2 * 12 * 5 and len(results.rows("gradients")) == 2 * 6
    assert reads == once_and_images


def test_the_counter_of_reads_counts(out, reads):
    Results(out).write_tables()
    Results(out).write_tables()
    assert set(reads.values()) == {2}


def test_what_is_written_again_has_the_same_bytes(out):
    patterns = ("*.csv", "*.md", "*.tex", "figures/*.*")
    before = {path: path.read_bytes() for pattern in patterns for path in out.glob(pattern)}
    Results(out).write_all()
    assert {path: path.read_bytes() for path in before} == before


def test_tables_and_figures_of_a_former_run_are_removed(out):
    former = [out / "overlap.csv", out / "overlap.md", out / "figures" / "overlap.svg"]
    for path in former:
        path.write_text("from a former run")
    Results(out).write_all()
    assert not any(path.exists() for path in former)


def test_a_published_folder_is_read_from_its_tables(out):
    computed = {name: table for name, table in Results(out).tables.items() if not table.empty}
    shutil.rmtree(out / "cells")
    results = rc.load_results(out)
    assert isinstance(results, Results)
    assert not results.has_rows and results.has_tables
    assert {name for name, table in results.tables.items() if not table.empty} == set(computed)
    for name, table in computed.items():
        assert results.tables[name].to_csv(float_format="%.6g") == table.to_csv(float_format="%.6g")
        assert grids_markdown(results.grids(name)) == (out / f"{name}.md").read_text()
    assert results.tables["overlap"].empty


def test_a_published_folder_of_diagnostics_alone_is_read_from_its_tables(out):
    shutil.rmtree(out / "cells")
    for path in out.glob("*.csv"):
        if path.stem != "verdicts":
            path.unlink()
    results = Results(out)
    assert results.table.empty and len(results.verdicts) == 2


def test_nothing_published_is_replaced_where_there_are_no_cells_to_make_it_from(out):
    shutil.rmtree(out / "cells")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    results = Results(out)
    for write in (results.write_tables, results.write_figures, results.write_report, results.write_all):
        with pytest.raises(UserError, match="no cell of this run is finished"):
            write()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["table", "verdicts", "tables", "findings", "violations", "attacks"])
def test_a_run_without_a_finished_cell_has_nothing_to_show(tmp_path, name):
    cell = {"id": "0" * 16, "names": {"model": "m"}, "kind": "attack", "status": "unfinished"}
    (tmp_path / "run.json").write_text(json.dumps({"suite": {"name": "s"}, "cells": [cell]}))
    results = Results(tmp_path)
    assert not results.has_rows and not results.has_tables
    with pytest.raises(UserError, match=r"no cell of this run is finished, so there is nothing to show\."):
        getattr(results, name)
    with pytest.raises(UserError, match="no cell of this run is finished"):
        results.rows("verdict")


def test_an_unfinished_run_shows_the_cells_that_are_finished(out):
    first, *_ = json.loads((out / "run.json").read_text())["cells"]
    (out / "cells" / f"{first['id']}.parquet").unlink()
    table = Results(out).table
    assert table[(table["model"] == first["names"]["model"]) & (table["attack"] == first["names"]["attack"])].empty
    assert not table.empty


def test_a_complete_run_has_no_problems(out):
    assert Results(out).problems == []


def test_missing_failed_and_damaged_cells_are_listed_and_the_others_shown(out, reads):
    first, second, third, *_, last = (out / "cells" / f"{cell['id']}.parquet" for cell in record_of(out)["cells"])
    first.unlink()
    second.write_bytes(second.read_bytes()[:-9] + b"x" + second.read_bytes()[-8:])
    third.write_bytes(last.read_bytes())
    reads.clear()
    results = Results(out)
    labels = [cell["label"] for cell in record_of(out)["cells"]]
    gone, damaged, *swapped = results.problems
    assert gone == f"{labels[0]}: its file is gone"
    assert damaged == f"{labels[1]}: {second}: damaged: its checksum is missing or does not match its content."
    assert [text.startswith(f"{labels[2]}: {third}: damaged: it belongs to another cell, ") for text in swapped] == [
        True
    ]
    assert not results.table.empty and set(reads.values()) <= {1, 2}
    page = results.write_report().read_text()
    assert "3 cells are missing here" in page and "its file is gone" in page


def record_of(out):
    return json.loads((out / "run.json").read_text())


def test_no_flipped_bit_of_the_record_changes_what_is_shown(out):
    content = (out / "run.json").read_bytes()
    shown = Results(out).record
    random = Random(1)
    for bit in random.sample(range(8 * len(content)), 300):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (out / "run.json").write_bytes(bytes(flipped))
        with suppress(UserError):
            assert Results(out).record == shown


SHAPES = [
    *("3", "null", '""', '{"suite": [], "cells": []}', '{"suite": {}, "cells": {}}', '{"suite": {}, "cells": [3]}'),
    *('{"suite": {}, "cells": [{"id": "a"}]}', '{"suite": {}, "cells": [{"id": "../a", "names": {}}]}'),
    *('{"suite": {}, "cells": [], "models": [{}]}', '{"suite": {"title": 3}, "cells": []}'),
    *('{"suite": {}, "cells": [], "versions": []}', '{"suite": {"figures": []}, "cells": []}'),
]


@pytest.mark.parametrize("content", SHAPES)
def test_a_record_of_the_wrong_shape_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        UserError, match=r"run\.json: not the record of a run\. Run the suite again to renew it\. \(.+\)$"
    ):
        Results(tmp_path)


def test_a_record_without_a_checksum_is_not_trusted(out):
    record = record_of(out)
    del record["checksum"]
    (out / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"run\.json: damaged: its checksum is missing or does not match\."):
        Results(out)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, r"run\.json: cannot be read: nested too deeply\."),
        ("{", r"run\.json: cannot be read: "),
        (b"\xff\xfe", r"run\.json: cannot be read: "),
        ("[]", r"run\.json: not the record of a run\. Run the suite again to renew it\."),
        ('{"suite": {}}', r"run\.json: not the record of a run\. Run the suite again to renew it\."),
    ],
)
def test_a_damaged_record_is_named(tmp_path, content, words):
    (tmp_path / "run.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        Results(tmp_path)


@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_a_folder_without_a_run_is_named(tmp_path, folder):
    with pytest.raises(UserError, match=r"run\.json: no such file\. Is .* the out folder of `robustcaps run`\?"):
        rc.load_results(tmp_path / folder)


def test_examples_are_read_on_demand_and_rows_leave_them_out(out, monkeypatch):
    results = Results(out)
    assert not set(EXAMPLE_COLUMNS) & set(results.rows().columns)
    examples = results.examples()
    assert list(examples.columns) == [*EXAMPLE_NAMES, *EXAMPLE_COLUMNS]
    assert examples.groupby(["model", "attack", "eps"]).size().tolist() == [6] * 10
    assert set(examples["image_shape"]) == {"1x6x6"} and examples["original"].map(len).eq(2 * 36).all()
    loaded = []
    original = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *args, **kw: loaded.append(original(*args, **kw)) or loaded[-1])
    Results(out).rows()
    assert loaded and all(not set(EXAMPLE_COLUMNS) & set(table.column_names) for table in loaded)


def test_an_older_run_and_a_published_one_have_no_examples(out):
    store = Store(out)
    for cell in Results(out).record["cells"]:
        if cell["kind"] == "attack":
            rows = store.read(StoredCell(cell["id"], cell["names"], cell["kind"])).drop(columns=list(EXAMPLE_COLUMNS))
            identity = {"id": cell["id"], "names": cell["names"], "label": "", "settings": cell["settings"]}
            store.save(SimpleNamespace(**identity), rows, 1.0)
    expected = Results(out).examples()
    assert expected.empty and list(expected.columns) == [*EXAMPLE_NAMES, *EXAMPLE_COLUMNS]
    Results(out).write_tables()
    shutil.rmtree(out / "cells")
    assert Results(out).examples().empty


def test_a_damaged_cell_has_no_examples(out):
    damaged = next(cell for cell in Results(out).record["cells"] if cell["kind"] == "attack")
    path = out / "cells" / f"{damaged['id']}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    results = Results(out)
    assert len(results.problems) == 1 and len(results.examples()) in {48, 54}
