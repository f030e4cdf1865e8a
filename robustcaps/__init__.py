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
    from robustcaps.analysis.figures import (
        draw_accuracy,
        draw_auc,
        draw_cost,
        draw_means,
        draw_norms,
        draw_target_maps,
        draw_targeted,
        draw_transfer_map,
    )
    from robustcaps.analysis.results import Results
    from robustcaps.analysis.run_comparison import RunComparison, compare
    from robustcaps.attacks import Attack, Budget, Targeted, Untargeted, attack, load_attack
    from robustcaps.attacks.evaluation import evaluate
    from robustcaps.benchmark import merge, run
    from robustcaps.data import load_data
    from robustcaps.data.base import Data
    from robustcaps.diagnostics.checks.base import Finding, diagnostic
    from robustcaps.diagnostics.gradients import measure_gradients
    from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, diagnostic_kind
    from robustcaps.diagnostics.kinds.detection import detection_rates, draw_detection
    from robustcaps.diagnostics.kinds.gradients import draw_gradients
    from robustcaps.diagnostics.kinds.overlap import draw_overlap
    from robustcaps.diagnostics.kinds.routing import draw_routing
    from robustcaps.diagnostics.kinds.verdict import draw_verdicts
    from robustcaps.diagnostics.kinds.viewpoints import draw_views
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
    from robustcaps.utils.figure_style import figure_style
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
    "RunComparison": "analysis.run_comparison",
    "Targeted": "attacks",
    "Untargeted": "attacks",
    "UserError": "errors",
    "attack": "attacks",
    "build_model": "models.zoo",
    "compare": "analysis.run_comparison",
    "dataset": "registry",
    "detect": "diagnostics.reconstruction_detector",
    "detection_rates": "diagnostics.kinds.detection",
    "diagnose": "diagnostics.verdict",
    "diagnostic": "diagnostics.checks.base",
    "diagnostic_kind": "diagnostics.kinds.base",
    "draw_accuracy": "analysis.figures",
    "draw_auc": "analysis.figures",
    "draw_cost": "analysis.figures",
    "draw_detection": "diagnostics.kinds.detection",
    "draw_gradients": "diagnostics.kinds.gradients",
    "draw_means": "analysis.figures",
    "draw_norms": "analysis.figures",
    "draw_overlap": "diagnostics.kinds.overlap",
    "draw_perturbations": "introspection.figures",
    "draw_reconstructions": "introspection.figures",
    "draw_routing": "diagnostics.kinds.routing",
    "draw_target_maps": "analysis.figures",
    "draw_targeted": "analysis.figures",
    "draw_transfer_map": "analysis.figures",
    "draw_verdicts": "diagnostics.kinds.verdict",
    "draw_views": "diagnostics.kinds.viewpoints",
    "draw_vote_distances": "introspection.figures",
    "evaluate": "attacks.evaluation",
    "figure_style": "utils.figure_style",
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
    "merge": "benchmark",
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
    "RunComparison",
    "Targeted",
    "Untargeted",
    "UserError",
    "attack",
    "build_model",
    "compare",
    "dataset",
    "detect",
    "detection_rates",
    "diagnose",
    "diagnostic",
    "diagnostic_kind",
    "draw_accuracy",
    "draw_auc",
    "draw_cost",
    "draw_detection",
    "draw_gradients",
    "draw_means",
    "draw_norms",
    "draw_overlap",
    "draw_perturbations",
    "draw_reconstructions",
    "draw_routing",
    "draw_target_maps",
    "draw_targeted",
    "draw_transfer_map",
    "draw_verdicts",
    "draw_views",
    "draw_vote_distances",
    "evaluate",
    "figure_style",
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
    "merge",
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
