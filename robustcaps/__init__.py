"""robustcaps: how robust are capsule networks against adversarial attacks, honestly.

The public names below are loaded when first used, so that `import robustcaps` and `robustcaps --help` stay quick.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Read by the numerical libraries when they are first used. The first makes matrix products independent of the batch
# size, so that rows are too; the second keeps idle threads from spinning on a busy machine.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from robustcaps.analysis.collection import load_results
    from robustcaps.analysis.results import Results
    from robustcaps.attacks import Attack, Budget, Targeted, Untargeted, attack, load_attack
    from robustcaps.attacks.evaluation import evaluate
    from robustcaps.benchmark import run
    from robustcaps.data import load_data
    from robustcaps.data.base import Data
    from robustcaps.diagnostics.checks.base import Finding, diagnostic
    from robustcaps.diagnostics.gradients import measure_gradients
    from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, diagnostic_kind
    from robustcaps.diagnostics.kinds.detection import detection_rates
    from robustcaps.diagnostics.reconstruction_detector import ReconstructionDetector, detect
    from robustcaps.diagnostics.verdict import diagnose
    from robustcaps.errors import UserError
    from robustcaps.introspection.decoder import perturb_capsule
    from robustcaps.introspection.figures import draw_perturbations, draw_reconstructions, draw_vote_distances
    from robustcaps.introspection.routing import vote_distances
    from robustcaps.models.reconstruction import reconstruct
    from robustcaps.models.zoo import build_model, load_model
    from robustcaps.registry import (
        dataset,
        list_attacks,
        list_datasets,
        list_diagnostics,
        list_models,
        load_plugin,
        model,
    )
    from robustcaps.training import train
    from robustcaps.utils.grid import make_grid

_HOMES = {
    "Attack": "attacks",
    "Budget": "attacks",
    "Data": "data.base",
    "DiagnosticKind": "diagnostics.kinds.base",
    "Finding": "diagnostics.checks.base",
    "KindTable": "diagnostics.kinds.base",
    "ReconstructionDetector": "diagnostics.reconstruction_detector",
    "Results": "analysis.results",
    "Targeted": "attacks",
    "Untargeted": "attacks",
    "UserError": "errors",
    "attack": "attacks",
    "build_model": "models.zoo",
    "dataset": "registry",
    "detect": "diagnostics.reconstruction_detector",
    "detection_rates": "diagnostics.kinds.detection",
    "diagnose": "diagnostics.verdict",
    "diagnostic": "diagnostics.checks.base",
    "diagnostic_kind": "diagnostics.kinds.base",
    "draw_perturbations": "introspection.figures",
    "draw_reconstructions": "introspection.figures",
    "draw_vote_distances": "introspection.figures",
    "evaluate": "attacks.evaluation",
    "list_attacks": "registry",
    "list_datasets": "registry",
    "list_diagnostics": "registry",
    "list_models": "registry",
    "load_attack": "attacks",
    "load_data": "data",
    "load_model": "models.zoo",
    "load_plugin": "registry",
    "load_results": "analysis.collection",
    "make_grid": "utils.grid",
    "measure_gradients": "diagnostics.gradients",
    "model": "registry",
    "perturb_capsule": "introspection.decoder",
    "reconstruct": "models.reconstruction",
    "run": "benchmark",
    "train": "training",
    "vote_distances": "introspection.routing",
}

__all__ = [
    "Attack",
    "Budget",
    "Data",
    "DiagnosticKind",
    "Finding",
    "KindTable",
    "ReconstructionDetector",
    "Results",
    "Targeted",
    "Untargeted",
    "UserError",
    "attack",
    "build_model",
    "dataset",
    "detect",
    "detection_rates",
    "diagnose",
    "diagnostic",
    "diagnostic_kind",
    "draw_perturbations",
    "draw_reconstructions",
    "draw_vote_distances",
    "evaluate",
    "list_attacks",
    "list_datasets",
    "list_diagnostics",
    "list_models",
    "load_attack",
    "load_data",
    "load_model",
    "load_plugin",
    "load_results",
    "make_grid",
    "measure_gradients",
    "model",
    "perturb_capsule",
    "reconstruct",
    "run",
    "train",
    "vote_distances",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'robustcaps' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"robustcaps.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
