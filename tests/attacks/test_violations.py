from __future__ import annotations

import subprocess
import sys

import pytest

from robustcaps.attacks.violations import CELL_VIOLATIONS, ROW_VIOLATIONS, Violation, describe_violation

NAMES_IN_ROWS = {
    *("not-a-tensor", "wrong-shape", "wrong-dtype", "wrong-device", "not-finite", "outside-box", "outside-ball"),
    *("no-parameters", "outside-range", "other-image"),
    *("wrong-order", "changed-inputs", "changed-weights", "changed-buffers", "changed-structure", "changed-mode"),
    *("changed-requires-grad", "changed-counts", "changed-grad-mode", "changed-global-rng", "changed-torch-settings"),
}


def test_the_names_in_stored_rows_are_stable():
    assert NAMES_IN_ROWS == ROW_VIOLATIONS
    assert {"raised", "exited", "timed-out", "flooded-output"} == CELL_VIOLATIONS


@pytest.mark.parametrize("violation", Violation)
def test_every_violation_has_a_sentence_of_its_own(violation):
    assert describe_violation(str(violation)) == violation.sentence != str(violation)
    assert [each.sentence for each in Violation].count(violation.sentence) == 1
    assert violation.sentence[0].islower() and not violation.sentence.endswith(".")


def test_an_unknown_name_stands_for_itself():
    assert describe_violation("from-the-future") == "from-the-future"


def test_violations_and_tables_do_not_import_torch():
    code = (
        "import sys, robustcaps.attacks.violations, robustcaps.analysis.tables.summary; print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
