"""Measure the vital signs of routing of every shipped capsule network and record them in its model card.

`python benchmarks/vitals.py [DATASET...]` needs the datasets (ROBUSTCAPS_DATA); weights and all other fields stay as
they are.
"""

from __future__ import annotations

import sys

import robustcaps as rc
from robustcaps.introspection.vitals import summarise_routing
from robustcaps.models.cards import card_path, read_card
from robustcaps.models.zoo import WEIGHTS, shipped_cards
from robustcaps.training.result import VITALS_SAMPLES
from robustcaps.utils.files import write_atomically


def main(datasets: list[str]) -> None:
    """Write the vital signs of all shipped weights, or of those for some datasets, into their cards."""
    for card in shipped_cards():
        if datasets and card.data not in datasets:
            continue
        model = rc.load_model(card.name, data=card.data)
        data = rc.load_data(card.data, split="test", limit=VITALS_SAMPLES, **card.data_options)
        vitals = summarise_routing(model, data)
        if vitals is None:
            continue
        path = card_path(WEIGHTS / card.data / f"{card.stem}.safetensors")
        updated = read_card(path).model_copy(update={"routing": vitals})
        write_atomically(path, updated.model_dump_json(indent=2) + "\n")
        entropies = ", ".join(f"{layer} {each['entropy']:.2f}" for layer, each in vitals.layers.items())
        changed = vitals.changed["uniform assignments"]
        print(f"{card.name} on {card.data}: {vitals.status} (entropy {entropies}; uniform changes {changed:.0%})")


if __name__ == "__main__":
    main(sys.argv[1:])
