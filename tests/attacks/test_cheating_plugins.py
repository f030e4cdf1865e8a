"""The catalogue: plugins that cheat, break or crash, in one run with honest attacks; each is caught by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pytest

import robustcaps as rc
from robustcaps.analysis.results import Results
from robustcaps.attacks.violations import CELL_VIOLATIONS, ROW_VIOLATIONS, Violation
from robustcaps.benchmark import Run
from robustcaps.execution.execute_cell import Outcome
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from tests.attacks.spatial import test_membership as spatial_cheats
from tests.conftest import PLUGIN

HEAD = '''
import ctypes, functools, os, random, sys, time
import numpy as np


@rc.model("normed", pretrained=True)
def normed(*, classes, channels, size):
    """The levels behind a batch norm."""
    return nn.Sequential(nn.BatchNorm2d(channels), *levels(classes=classes, channels=channels, size=size))


class Agreeable(torch.Tensor):
    """Says yes to every question."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        answer = super().__torch_function__(function, types, args, kwargs or {})
        return torch.ones_like(answer) if answer.dtype == torch.bool else answer * 0
'''

FUNCTION = """

@rc.attack("{name}")
def cheat(model, images, labels, eps):
    {body}
"""

LAZY = """

@rc.attack("gives up after one eps")
class Lazy(rc.Attack):
    def run(self, model, images, goal, budget, draws):
        return images

    def run_sweep(self, model, images, goal, budgets, draws):
        yield images
"""

CHEATS = {
    "leaves the ball": ("return (images + 2 * eps).clamp(0, 1)", "outside-ball"),
    "leaves the box": ("return images.round() + eps * (2 * images.round() - 1)", "outside-box"),
    "leaves the box and the ball": ("return 9 * images", "outside-box"),
    "returns NaN": ("return images * torch.nan", "not-finite"),
    "crops": ("return images[..., :4]", "wrong-shape"),
    "drops a sample": ("return images[1:]", "wrong-shape"),
    "answers in float64": ("return images.double()", "wrong-dtype"),
    "answers elsewhere": ("return images.to('meta')", "wrong-device"),
    "shuffles": ("return images.roll(1, 0)", "wrong-order"),
    "returns nothing": ("return None", "not-a-tensor"),
    "returns an array": ("return images.numpy()", "not-a-tensor"),
    "returns a tensor that says yes": ("return (1 - images).as_subclass(Agreeable)", "not-a-tensor"),
    "gives up after one eps": (LAZY, "not-a-tensor"),
    "edits the images": ("return images.data.mul_(0)", "changed-inputs"),
    "shrinks the images": ("images.data = images.data[:1]; return images", "changed-inputs"),
    "edits all copies of the images": (
        "images.copy_(1 - images); model.originals.copy_(images); return images.clone()",
        "changed-inputs",
    ),
    "hides its passes": ("model(images); model.counts.forwards.zero_(); return images", "changed-counts"),
    "makes up passes": ("model.counts.queries.sub_(1); return images", "changed-counts"),
    "edits the labels": ("labels.add_(1); return images", "changed-inputs"),
    "edits weights": ("model.model[2].weight.data.mul_(-1); return images", "changed-weights"),
    "shrinks weights": ("model.model[2].weight.data = torch.zeros(3, 1); return images", "changed-weights"),
    "doubles weights' digits": ("model.double(); model.model[2].bias.data += 1; return images", "changed-weights"),
    "edits buffers": ("model.model[0].running_mean.add_(9); return images", "changed-buffers"),
    "turns on training": ("model.train(); return images", "changed-mode"),
    "turns off gradients": ("model.requires_grad_(False); return images", "changed-requires-grad"),
    "turns off autograd": ("torch.set_grad_enabled(False); return images", "changed-grad-mode"),
    "replaces forward": ("model.model.forward = lambda x: torch.ones(len(x), 3); return images", "changed-structure"),
    "replaces forward by a partial": (
        "model.model.forward = functools.partial(torch.randn, 3); return images",
        "changed-structure",
    ),
    "replaces the class's forward": (
        "type(model.model[2]).forward = lambda self, x: -torch.ones(len(x), 3); return images",
        "changed-structure",
    ),
    "replaces the class": ("model.model[2].__class__ = nn.Identity; return images", "changed-structure"),
    "replaces a layer": ("model.model[2] = nn.Flatten(); return images", "changed-structure"),
    "hooks the output": (
        "model.model.register_forward_hook(lambda module, inputs, out: -out); return images",
        "changed-structure",
    ),
    "replaces layer and method": (
        "model.model[0] = nn.Identity(); model.model.forward = lambda x: -x; return images",
        "changed-structure",
    ),
    "seeds torch": ("torch.manual_seed(0); return images", "changed-global-rng"),
    "draws from numpy": ("np.random.rand(); return images", "changed-global-rng"),
    "draws from Python": ("random.random(); return images", "changed-global-rng"),
    "changes the default dtype": ("torch.set_default_dtype(torch.float64); return images", "changed-torch-settings"),
    "changes the default device": ("torch.set_default_device('meta'); return images", "changed-torch-settings"),
    "changes the threads": (
        "torch.set_num_threads(torch.get_num_threads() + 1); return images",
        "changed-torch-settings",
    ),
    "switches determinism": ("torch.use_deterministic_algorithms(True); return images", "changed-torch-settings"),
    "raises": ("1 / 0", "raised"),
    "edits weights and raises": ("model.model[2].weight.data.mul_(-1); raise ValueError('x' * 9_999_999)", "raised"),
    "exits": ("sys.exit(0)", "exited"),
    "exits at once": ("os._exit(0)", "exited"),
    "crashes": ("ctypes.string_at(0)", "exited"),
    "sleeps": ("time.sleep(999)", "timed-out"),
    "prints megabytes": ("print('spam ' * 1_000_000); return images", "flooded-output"),
    "writes megabytes": ("[os.write(1, b'spam' * 9999) for _ in range(99)]; return images", "flooded-output"),
}
"""Name: (what it does, what it is called). Those that end their worker come last: every new one takes seconds."""

HARMLESS = {
    "replaces the model in its hands": "model.model = nn.Identity(); return images",
    "replaces its own forward": "model.forward = lambda x: -x; return images",
    "replaces its own select": "model.select = lambda rows: lambda x: -torch.ones(len(x), 3); return images",
}
"""What fools only itself."""

HONEST = ("fgsm", "darken", "jitter")
JITTER = '''

@rc.attack("jitter")
def jitter(model, images, labels, eps, draws):
    """Noise that belongs to the samples."""
    print("honest attacks may print")
    return (images + eps * (2 * draws.uniform(tuple(images.shape[1:])) - 1)).clamp(0, 1)
'''
EPS = [0.05, 0.11]
SUITE = 'batch_size = 8\n[[data]]\nuse = "dots"\nlimit = 12\n[[models]]\nuse = "normed"\n'


def attack_block(name: str) -> str:
    limit = "time_limit = 1\n" if name == "sleeps" else ""
    return f"[[attacks]]\nuse = {json.dumps(name)}\neps = {EPS}\n{limit}"


@dataclass(frozen=True)
class Trial:
    """What became of everybody: the first run, its rows, the rows of honest attacks alone, and a second run."""

    first: Run
    rows: pd.DataFrame
    alone: dict[str, pd.DataFrame]
    second: Run

    @property
    def failures(self) -> dict[str, Outcome]:
        return {outcome.cell.names["attack"]: outcome for outcome in self.first.failures}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    folder = tmp_path_factory.mktemp("trial")
    (plugin := folder / "cheats.py").write_text(PLUGIN + HEAD + JITTER + "".join(map(source, CHEATS | HARMLESS)))
    (suite := folder / "suite.toml").write_text(SUITE + "".join(map(attack_block, ordered())))
    (again := folder / "again.toml").write_text(
        SUITE + "".join(map(attack_block, [*HONEST, "leaves the ball", "raises"]))
    )
    with pytest.MonkeyPatch.context() as patch:
        for kind in (ATTACKS, DATASETS, MODELS):
            kind.names()
            patch.setattr(kind, "_entries", dict(kind._entries))
        first = rc.run(suite, folder / "out", plugins=[plugin])
        rows = Results(folder / "out").rows()
        second = rc.run(again, folder / "out", plugins=[plugin])
        yield Trial(first, rows, {name: honest_rows(name) for name in HONEST}, second)


def source(name: str) -> str:
    body = HARMLESS.get(name) or CHEATS[name][0]
    return body if body == LAZY else FUNCTION.format(name=name, body=body)


def ordered() -> list[str]:
    """Honest attacks come first, and after those that leave their worker alive."""
    fatal = list(CHEATS).index("exits at once")
    return ["jitter", *HARMLESS, *list(CHEATS)[:fatal], "darken", "fgsm", *list(CHEATS)[fatal:]]


def honest_rows(name: str) -> pd.DataFrame:
    data = rc.load_data("dots", limit=12)
    model = rc.build_model("normed", classes=3, channels=1, size=6)
    return rc.evaluate(model, data, rc.load_attack(name, eps=EPS), suite="suite", model_name="normed", batch_size=5)


def test_every_violation_has_its_cheat():
    of_transformations = {violation for _, _, violation in spatial_cheats.CHEATS}
    assert {violation for _, violation in CHEATS.values()} | of_transformations == set(Violation)


@pytest.mark.parametrize("name", [name for name, (_, violation) in CHEATS.items() if violation in ROW_VIOLATIONS])
def test_a_cheat_is_caught_by_its_name_and_fools_nobody(trial, name):
    rows = trial.rows[trial.rows["attack"] == name]
    assert len(rows) == 24 and not rows["fooled"].any()
    tried = rows["eps"] >= (EPS[1] if name == "gives up after one eps" else EPS[0])
    attacked = rows[tried & (rows["clean_pred"] == rows["label"])]
    assert set(attacked["violation"]) == {CHEATS[name][1]} and not attacked["valid"].any()
    assert name not in trial.failures


@pytest.mark.parametrize("name", [name for name, (_, violation) in CHEATS.items() if violation in CELL_VIOLATIONS])
def test_a_failure_is_told_by_its_name_and_counts_nothing(trial, name):
    failure = trial.failures[name]
    assert failure.violation == CHEATS[name][1] and failure.rows is None
    assert name not in set(trial.rows["attack"])
    stored = json.loads((trial.first.out / "cells" / f"{failure.cell.id}.failed.json").read_text())
    assert stored["violation"] == failure.violation and stored["traceback"] == failure.trace
    assert len(failure.trace) < 10_000 and len(failure.reason) < 1_000


REASONS = {
    "raises": "ZeroDivisionError: division by zero",
    "exits": "SystemExit: 0",
    "exits at once": "the worker process exited with code 0",
    "crashes": "the worker process was killed by signal SIGSEGV",
    "sleeps": "killed: exceeded its time limit of 1 s",
    "prints megabytes": "killed: printed more than 1,000,000 bytes",
}


@pytest.mark.parametrize("name", REASONS)
def test_a_failure_says_what_happened(trial, name):
    assert trial.failures[name].reason == REASONS[name]


@pytest.mark.parametrize("name", HARMLESS)
def test_who_edits_only_the_model_in_its_hands_fools_only_itself(trial, name):
    rows = trial.rows[trial.rows["attack"] == name]
    assert len(rows) == 24 and not rows["fooled"].any()


@pytest.mark.parametrize("name", HONEST)
def test_honest_attacks_notice_nothing(trial, name):
    together = trial.rows[trial.rows["attack"] == name].reset_index(drop=True)
    assert together["fooled"].any() or name == "jitter"
    assert together["valid"].all() and together.equals(trial.alone[name])


def test_a_second_run_retries_only_what_failed(trial):
    assert trial.second.computed == 1 and trial.second.reused == len(HONEST) + 1
    assert [outcome.cell.task.label for outcome in trial.second.failures] == ["raises"]


def test_the_record_and_the_report_name_the_failures(trial):
    record = json.loads((trial.first.out / "run.json").read_text())
    assert {cell["violation"] for cell in record["cells"]} == {"", "raised"}
    assert "normed / dots / raises: failed (raised)" in (trial.first.out / "report.html").read_text()
