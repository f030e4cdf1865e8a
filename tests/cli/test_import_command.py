from __future__ import annotations

from pathlib import Path

import pytest

from robustcaps.data import export_toys
from tests.models.released_checkpoint import released_variables
from tests.tensorflow_files import write_checkpoint

SUITE = Path(__file__).parents[2] / "benchmarks" / "hinton2018.toml"
WEIGHTS = "runs/hinton2018/matrix-capsnet-hinton2018.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    write_checkpoint(tmp_path / "theirs" / "model.ckpt-1", released_variables())
    return tmp_path / "theirs"


def test_import_then_attack(cli, tmp_path, checkpoint):
    result = cli("import", "hinton2018", checkpoint)
    assert result.returncode == 0, result.stderr
    assert "test accuracy not measured: the files of smallnorb were missing" in result.stdout
    assert WEIGHTS in result.stdout and (tmp_path / WEIGHTS).is_file()
    export_toys(tmp_path / "data" / "smallnorb", limit=6)
    result = cli("import", "hinton2018", checkpoint / "model.ckpt-1.index", "--limit", "5")
    assert result.returncode == 0 and "n = 5)" in result.stdout, result.stderr
    words = ("attack", "matrix-capsnet:hinton2018", "fgsm", "--data", "smallnorb", "--weights", WEIGHTS, "--limit", "3")
    result = cli(*words, "--data-set", "eyes=both")
    assert result.returncode == 0 and "n = 3" in result.stdout, result.stderr
    result = cli(*words)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "model 'matrix-capsnet:hinton2018': it was built for 2 channels of 32 pixels" in result.stderr


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_the_benchmark_lacks_is_said_in_one_line(cli, tmp_path, command):
    result = cli(command, SUITE)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "robustcaps data get smallnorb" in result.stderr
    export_toys(tmp_path / "data" / "smallnorb", limit=2)
    result = cli(command, SUITE)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "capsule_toronto/norb_em_checkpoints.tar.gz" in result.stderr
    assert "run 'robustcaps import hinton2018 FOLDER'" in result.stderr


def test_a_damaged_checkpoint_is_one_line(cli, checkpoint):
    path = checkpoint / "model.ckpt-1.index"
    path.write_bytes(path.read_bytes()[:-3])
    result = cli("import", "hinton2018", checkpoint)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"error: {path}: not a complete index of a TensorFlow checkpoint" in result.stderr
