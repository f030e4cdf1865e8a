"""What a plugin package should test: that its parts are found, keep the rules, and do what they promise."""

from pathlib import Path

import robustcaps as rc

SUITE = Path(__file__).parents[1] / "example.toml"


def test_its_suite_runs(tmp_path):
    table = rc.run(SUITE, out=tmp_path).table.set_index(["attack", "eps"])
    assert table["invalid"].sum() == 0
    assert table.loc[("fgsm", 0.3), "accuracy"] < table.loc[("fgsm", 0.1), "accuracy"]
