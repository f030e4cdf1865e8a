"""Fill the README with the numbers of the reference run (results/) and of the shipped weights' cards."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from robustcaps.analysis.claims import claim_summary_markdown
from robustcaps.analysis.tables.summary import goal_grid
from robustcaps.models.zoo import shipped_cards

ROOT = Path(__file__).parent.parent


def results() -> str:
    """Return the quick benchmark's tables and figures."""
    table = pd.read_csv(ROOT / "results" / "quick" / "table.csv")
    n = table["n"].iloc[0]
    return "\n".join(
        [
            f"`make run` on {n} images of unseen toys: shares in % (Wilson 95 %), by eps in parts of the pixel range.",
            "",
            "Accuracy under attack:",
            "",
            goal_grid(table, "untargeted").markdown(),
            "Success of targeted attacks, mean over every target class, the true one included:",
            "",
            goal_grid(table, "targeted").markdown(),
            "![accuracy against eps](results/quick/figures/accuracy.png)",
            "![targeted success against eps](results/quick/figures/targeted.png)",
        ]
    )


def weights() -> str:
    """Return the shipped weights as a table."""
    lines = ["| data | model | parameters | test accuracy (Wilson 95 %) | made by |", "|---|---|---:|---|---|"]
    for card in shipped_cards():
        low, high = (100 * end for end in card.interval)
        accuracy = f"{100 * card.accuracy:.2f} % ({low:.2f}-{high:.2f}, n = {card.n_test:,})"
        if card.robust_accuracy is not None:
            accuracy += f"; {100 * card.robust_accuracy:.1f} % under PGD, eps {card.adversary_eps:g}"
        lines.append(f"| {card.data} | `{card.name}` | {card.parameters:,} | {accuracy} | `{card.command}` |")
    return "\n".join(lines)


def attacks() -> str:
    """Return the table of all attacks with their worst case, and its figure of the cost."""
    folder = ROOT / "results" / "all-attacks"
    table = pd.read_csv(folder / "table.csv")
    parts = [
        f"`robustcaps run benchmarks/all-attacks.toml` on {table['n'].max()} toys, accuracy in % (Wilson 95 %):",
        "",
    ]
    untargeted = table[table["goal"] == "untargeted"]
    for norm, part in untargeted.groupby("norm", sort=False):
        parts += [f"eps in {norm}:", "", goal_grid(part, "untargeted").markdown()]
    figures = {"accuracy against cost": "cost", "from which model to which": "transfer"}
    parts += [f"![{words}](results/all-attacks/figures/{name}.png)" for words, name in figures.items()]
    return "\n".join(parts)


def ablation() -> str:
    """Return the table of models of the ablation."""
    return (ROOT / "results" / "ablation" / "models.md").read_text(encoding="utf-8").rstrip()


def passes() -> str:
    """Return the passes of our sweeps and of other libraries', as `make perf` counted them."""
    return (ROOT / "results" / "perf" / "passes.md").read_text(encoding="utf-8").rstrip()


def perf() -> str:
    """Return the table that `make perf` wrote."""
    return (ROOT / "results" / "perf" / "table.md").read_text(encoding="utf-8").rstrip()


def trust() -> str:
    """Return the verdicts on the zoo, its gradients by loss, and their figures."""
    folder = ROOT / "results" / "trust"
    parts = [
        "`robustcaps run benchmarks/trust.toml`; *on logits* and *on the training loss* say what the textbook attack",
        "(PGD, 20 steps) climbs, *corrected* is what is left after all checks and remedies:",
        "",
        (folder / "verdicts.md").read_text(encoding="utf-8"),
        "Gradients of each loss at the images themselves, the check of Hinton et al. 2018:",
        "",
        (folder / "gradients.md").read_text(encoding="utf-8"),
        "![what stays of the robust accuracy](results/trust/figures/verdicts.png)",
        "![gradients by loss](results/trust/figures/gradients.png)",
    ]
    return "\n".join(parts)


def claims() -> str:
    """Return what papers claim and what is found, and the figures of the published results."""
    figures = {
        "accuracy against eps, beside the published curves": "attacks/figures/accuracy",
        "smallest perturbations in L2, beside the published means": "minimal-l2/figures/means",
        "votes attacked, and the routed network": "vote/figures/accuracy",
        "from which model to which": "blackbox/figures/transfer",
        "novel viewpoints": "viewpoints/figures/views",
        "past the detector": "detect/figures/detection",
    }
    drawings = [f"![{words}](results/{name}.png)" for words, name in figures.items()]
    found = claim_summary_markdown(pd.read_csv(ROOT / "results" / "claims.csv"))
    return "\n".join([found, "The evidence of each is in [results/claims.md](results/claims.md).", "", *drawings])


def sharpness() -> str:
    """Return robust accuracy against the sharpness of EM routing: the table of three attacks, and the figure."""
    folder = ROOT / "results" / "sharpness"
    table = pd.read_csv(folder / "table.csv")
    shown = table[table["attack"].isin(["fgsm", "bim, 10 steps, training loss", "worst case of all"])]
    routing = pd.read_csv(folder / "routing.csv").groupby("model", sort=False)
    entropies = [f"{model} {part['entropy'].mean():.2f} ({part['status'].iloc[0]})" for model, part in routing]
    return "\n".join(
        [
            f"`robustcaps run benchmarks/sharpness.toml` on {table['n'].max()} toys, accuracy in % (Wilson 95 %). Mean",
            f"entropy of the assignments: {'; '.join(entropies)}.",
            "",
            goal_grid(shown, "untargeted").markdown(),
            "![accuracy against the sharpness of routing](results/sharpness/figures/sharpness.png)",
        ]
    )


def calibration() -> str:
    """Return recall and false alarms on the collection."""
    return (ROOT / "results" / "calibration" / "report.md").read_text(encoding="utf-8").rstrip()


SECTIONS = {
    "results": results,
    "ablation": ablation,
    "calibration": calibration,
    "claims": claims,
    "attacks": attacks,
    "passes": passes,
    "perf": perf,
    "sharpness": sharpness,
    "trust": trust,
    "weights": weights,
}


def filled(readme: str) -> str:
    """Return the README with its sections between `<!-- NAME -->` and `<!-- end -->` made anew."""
    for name, section in SECTIONS.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        readme, count = re.subn(pattern, lambda found: found[1] + section() + "\n" + found[2], readme, flags=re.DOTALL)  # noqa: B023
        if count != 1:
            raise ValueError(f"README.md: {count} sections named '{name}', not one.")
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
