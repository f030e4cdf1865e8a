"""The reference run in results/ as tables for the manual: leaderboard, claims, findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from docs.generate.markdown import RESULTS, code, plain, table
from robustcaps.analysis.claims import claim_summary_markdown
from robustcaps.analysis.published import published_size
from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.models.zoo import shipped_cards

PAPERS = {
    "sabour2017": "Sabour et al. 2017",
    "hinton2018": "Hinton et al. 2018",
    "frosst2018": "Frosst et al. 2018",
    "michels2019": "Michels et al. 2019",
    "gu2021": "Gu et al. 2021",
    "hahn2019": "Hahn et al. 2019",
    "marchisio2023": "Marchisio et al. 2023",
    "later": "later work",
}
"""What the claims of each page begin with."""


class Share(NamedTuple):
    """A share with its Wilson interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, line: Any, name: str) -> Share:
        """Return a share of a table's line."""
        return cls(line[name], line[f"{name}_low"], line[f"{name}_high"])

    @property
    def words(self) -> str:
        """The share in a sentence: '6 % (3-12)'."""
        return f"{100 * self.value:.0f} % ({100 * self.low:.0f}-{100 * self.high:.0f})"

    def __str__(self) -> str:
        """Return it in percent: '6 (3-12)'."""
        return f"{100 * self.value:.0f} ({100 * self.low:.0f}-{100 * self.high:.0f})"


def verdicts() -> pd.DataFrame:
    """Return the verdicts on the zoo."""
    return pd.read_csv(RESULTS / "trust" / "verdicts.csv", keep_default_na=False)


def leaderboard() -> str:
    """Return the shipped weights by dataset, the most robust first, with the verdict on each."""
    names = _names_by_label()
    cards = {(card.data, card.name): card for card in shipped_cards()}
    table_ = verdicts().sort_values(["corrected", "clean"], ascending=False, kind="stable")
    parts = []
    for data in dict.fromkeys(verdicts()["data"]):
        lines = table_[table_["data"] == data]
        on_logits = lines[lines["diagnostic"] == "on logits"]
        eps = on_logits.iloc[0]
        rows = [_leader(line, lines, cards[data, names[data, line["model"]]]) for _, line in on_logits.iterrows()]
        parts += [f"### {data}, {eps['norm']}, eps {eps['eps']:g}", "", table(_LEADER, rows, numeric=_LEADER[1:-2])]
    return "\n".join(parts)


_LEADER = [
    *("model", "parameters", "test accuracy %", "robust accuracy %", "textbook PGD %", "on the training loss %"),
    *("verdict", "routing"),
]


def _names_by_label() -> dict[tuple[str, str], str]:
    """Return the model:tag of each (dataset, label)."""
    models = json.loads((RESULTS / "trust" / "run.json").read_text(encoding="utf-8"))["models"]
    return {(model["data"], model["label"]): f"{model['name']}:{model['tag']}" for model in models}


def _leader(line: Any, lines: pd.DataFrame, card: Any) -> list[str]:
    """Return a model's line; the corrected accuracy is the lowest that any diagnosis of it found."""
    own = lines[lines["model"] == line["model"]]
    lowest = own.loc[own["corrected"].idxmin()]
    on_training = own[own["diagnostic"] == "on the training loss"]
    naive = str(Share.of(on_training.iloc[0], "naive")) if len(on_training) else ""
    status = [f"{one['status']} {one['diagnostic']}" for _, one in own.iterrows() if one["status"] != "trusted"]
    routing = card.routing.status if card.routing else ""
    shares = [f"{100 * card.accuracy:.1f}", str(Share.of(lowest, "corrected")), str(Share.of(line, "naive")), naive]
    return [code(card.name), f"{card.parameters:,}", *shares, ", ".join(status) or "trusted", routing]


def claims() -> pd.DataFrame:
    """Return every judged claim."""
    return pd.read_csv(RESULTS / "claims.csv")


def claim_summary() -> str:
    """Return the finding of each claim on each dataset."""
    return claim_summary_markdown(claims())


def claims_of(page: str) -> str:
    """Return the claims of a paper with the evidence for each finding."""
    found = claims()
    found = found[found["paper"].str.startswith(PAPERS[page])]
    rows = [
        [plain(line["claim"]), line["data"], f"**{line['finding']}**", plain(line["evidence"])]
        for _, line in found.iterrows()
    ]
    return table(["claim", "on", "our finding", "evidence"], rows)


def routing_answer() -> str:
    """Return how many routings differ in robustness from no routing, and which, an item per dataset."""
    items = []
    for data, part in routing_groups().groupby("data", sort=False):
        compared = part[part["p"].notna()]
        different = compared[compared["p"] < ALPHA]
        named = [
            f"*{line['group']}* by {100 * line['difference']:+.1f} points ({100 * line['difference_low']:.1f} to "
            f"{100 * line['difference_high']:.1f})"
            for line in different.to_dict("records")
        ]
        items.append(
            f"- {data}: {len(different)} of {len(compared)} differ significantly{': ' * bool(named)}{'; '.join(named)}."
        )
    return "\n".join(items)


def routing_groups() -> pd.DataFrame:
    """Return the robust AUC of the networks with one body, by routing."""
    return pd.read_csv(RESULTS / "routing" / "auc.csv")


def findings() -> str:
    """Return the main findings of the reference run, each with its figures and where they come from."""
    return "\n".join(f"{number}. {text}" for number, text in enumerate(_findings(), start=1))


def _findings() -> Iterator[str]:
    yield _masking()
    yield _matched()
    yield _routing()
    yield _advantage()
    yield _claim_counts()


def _require(holds: bool, words: str) -> None:
    """Refuse to print a sentence that the reference run does not support any more."""
    if not holds:
        raise ValueError(f"The reference run does not show that {words}: rewrite the finding.")


def _masking() -> str:
    """Say what stays of the published robustness once the attack does not climb a flat loss."""
    found = verdicts()
    found = found[(found["data"] == "toys") & (found["diagnostic"] == "on the training loss")]
    line = found.set_index("model").loc["matrix-capsnet-small"]
    _require(str(line["status"]) == "masked", "attacks on the training loss overstate robustness")
    return (
        "**Attacking the training loss, as published evaluations of capsules did, overstates robustness.** "
        "matrix-capsnet-small keeps "
        f"{Share.of(line, 'naive').words} of the toys at eps {line['eps']:g} under PGD on its training loss, but "
        f"{Share.of(line, 'corrected').words} once every check and remedy is applied; the verdict is "
        f"*{line['status']}* ([leaderboard](docs/results/leaderboard.md))."
    )


def _matched() -> str:
    """Say how capsules and the CNN compare under the worst case of all attacks."""
    eps = 0.03
    found = pd.read_csv(RESULTS / "all-attacks" / "table.csv")
    worst = found[(found["attack"] == "worst case of all") & (found["norm"] == "linf") & (found["eps"] == eps)]
    cnn, capsules = (
        Share.of(worst[worst["model"] == name].iloc[0], "accuracy") for name in ("cnn", "matrix-capsnet-small")
    )
    pairs = pd.read_csv(RESULTS / "all-attacks" / "comparisons.csv")
    pair = pairs[(pairs["attack"] == "worst case of all") & (pairs["norm"] == "linf") & (pairs["eps"] == eps)].iloc[0]
    _require(capsules.value <= cnn.value or pair["p"] >= 0.05, "matrix capsules are no more robust than a CNN")
    return (
        "**Under the worst case of all attacks, matrix capsules are no more robust than a CNN.** On the toys at eps "
        f"{eps:g}, matrix-capsnet-small keeps {capsules.words} and the CNN {cnn.words} (n = {worst['n'].max()}, "
        f"McNemar, Holm: p = {pair['p']:.2f}; [all attacks](docs/results/attacks.md))."
    )


def _routing() -> str:
    """Say whether routing makes capsules robust, by networks with one body."""
    found = routing_groups()
    living = found[found["routing"].fillna("").str.contains("alive")]
    _require(not ((living["p"] < ALPHA) & (living["difference"] > 0)).any(), "living routing adds no robustness")
    places, shown = [], ("em, sharp, by position", "uniform", "cnn")
    for data, words in {"toys": "the toys", "mnist": "MNIST"}.items():
        groups = found[found["data"] == data].set_index("group")
        alive, none, cnn = (Share.of(groups.loc[name], "auc").words for name in shown)
        places.append(f"on {words} {alive} with living EM routing, {none} without routing and {cnn} as a CNN")
    return (
        "**It is not the routing.** With nothing but the routing exchanged in one network (equal parameters, "
        f"{found['models'].max()} trainings each), robust AUC is {'; '.join(places)} (n = {found['n'].max()}). "
        "No living routing is significantly more robust than none ([routing](docs/results/routing.md))."
    )


def _advantage() -> str:
    """Say where capsules do keep an advantage: robust AUC on the toys, perturbations of Carlini-Wagner on MNIST."""
    pairs = pd.read_csv(RESULTS / "quick" / "differences.csv")
    auc = pairs[(pairs["first"] == "vector-capsnet-small") & (pairs["second"] == "cnn:a")].iloc[0]
    sizes = pd.read_csv(RESULTS / "minimal-l2" / "sizes.csv")
    sizes = sizes[(sizes["data"] == "mnist") & (sizes["attack"] == "cw") & (sizes["first"] == "cnn")]
    size = sizes.set_index("second").loc["vector-capsnet-small"]
    published = [published_size(model, "mnist", "cw") for model in ("vector-capsnet-small", "cnn")]
    _require(bool(auc["difference_low"] > 0 and size["high"] < 0), "capsules with dynamic routing keep an advantage")
    return (
        "**Capsules with dynamic routing do keep an advantage.** Their robust AUC on the toys is "
        f"{100 * auc['auc_first']:.0f} %, the CNN's {100 * auc['auc_second']:.0f} % (difference "
        f"{100 * auc['difference']:.0f}, 95 % CI {100 * auc['difference_low']:.0f} to "
        f"{100 * auc['difference_high']:.0f} points, n = {auc['n']}; [first benchmark](docs/results/quick.md)). On "
        f"MNIST, Carlini-Wagner needs a mean L2 of {size['mean_second']:.2f} on them and {size['mean_first']:.2f} on "
        f"the CNN; Michels et al. found {published[0]:.2f} and {published[1]:.2f} "
        "([smallest perturbations](docs/results/michels2019.md))."
    )


def _claim_counts() -> str:
    """Say how many of the claims agree."""
    counts = claims()["finding"].value_counts()
    return (
        f"**Of {counts.sum()} judgements of published claims, {counts['agrees']} agree**, {counts['differs']} differ "
        f"and {counts['undecided']} are undecided, on small networks and other data than the papers' "
        "([every claim](docs/results/claims.md))."
    )
