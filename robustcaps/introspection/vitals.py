"""Is the routing alive? Statistics of the assignments, and predictions with part of the routing switched off."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.capsules.interventions import UNIFORM, Intervention
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.introspection.routing_status import routing_status
from robustcaps.models.base import CapsuleClassifier
from robustcaps.models.cards import RoutingVitals
from robustcaps.models.inference import device_of, eval_mode, predict

BATCH = 16
DEAD_BELOW = 0.05
"""A capsule type is dead if its activation stays below this on all samples (Mitterreiter et al. 2023)."""
NETWORK = "network"
"""The layer of the rows about predictions."""


def measure_routing(model: nn.Module, data: Data, *, progress: Progress | None = None) -> pd.DataFrame:
    """Return the vital signs of a capsule network's routing.

    Args:
        model: A capsule network whose routing can be inspected.
        data: Samples, for example of the test split.
        progress: Called with the number of finished samples and of all samples.

    Returns:
        One row per (layer, sample): the normalised `entropy` of the assignments (1 is uniform), `sigma_ratio` (mean
        sigma over the square root of the variance floor, where there is one) and `dead`, the share of the layer's
        capsule types that are dead on all samples. And one row per (intervention, sample), of the layer 'network':
        whether the prediction is `right` and whether the intervention `changed` it.
    """
    if not isinstance(model, CapsuleClassifier) or not model.interventions:
        raise UserError("the model has no routing that can be inspected; capsule networks of the zoo have.")
    parts: list[pd.DataFrame] = []
    active: dict[str, Tensor] = {}
    device = device_of(model)
    with eval_mode(model), torch.inference_mode():
        for start in range(0, len(data), BATCH):
            images = data.images[start : start + BATCH].to(device)
            labels = data.labels[start : start + BATCH]
            indices = torch.arange(start, start + len(images)).numpy()
            for layer, statistics in model.routing_statistics(images).items():
                highest = statistics["activations"].amax(dim=0)
                active[layer] = torch.maximum(active[layer], highest) if layer in active else highest
                parts.append(_layer_rows(layer, indices, statistics))
            parts += _prediction_rows(model, images, labels, indices)
            if progress:
                progress(start + len(images), len(data))
    rows = pd.concat(parts, ignore_index=True)
    dead = {layer: float((highest < DEAD_BELOW).double().mean()) for layer, highest in active.items()}
    return rows.assign(dead=rows["layer"].map(dead))


def summarise_routing(model: nn.Module, data: Data) -> RoutingVitals | None:
    """Return the vital signs as model cards record them; None for a model without routing."""
    if not isinstance(model, CapsuleClassifier) or not model.interventions:
        return None
    rows = measure_routing(model, data)
    columns = [name for name in ("entropy", "sigma_ratio", "dead") if name in rows]
    layers = rows[rows["layer"] != NETWORK].groupby("layer", sort=False)[columns].mean()
    changed = rows[rows["layer"] == NETWORK].groupby("intervention", sort=False)["changed"].mean()
    changes = {str(name): round(float(share), 4) for name, share in changed.items() if name != "none"}
    statistics = {
        str(layer): {str(name): round(float(value), 4) for name, value in values.items()}
        for layer, values in layers.iterrows()
    }
    status = routing_status({layer: each["entropy"] for layer, each in statistics.items()}, changes[UNIFORM.name])
    return RoutingVitals(status=status, n=len(data), layers=statistics, changed=changes)


def _layer_rows(layer: str, indices: Any, statistics: dict[str, Tensor]) -> pd.DataFrame:
    columns: dict[str, Any] = {"layer": layer, "intervention": "", "index": indices}
    columns |= {name: statistics[name].cpu().numpy() for name in ("entropy", "sigma_ratio") if name in statistics}
    return pd.DataFrame(columns)


def _prediction_rows(model: CapsuleClassifier, images: Tensor, labels: Tensor, indices: Any) -> list[pd.DataFrame]:
    """Return the rows of all interventions, after those of the network as it is."""
    plain = predict(model(images)).cpu()

    def rows(intervention: Intervention | None) -> pd.DataFrame:
        logits = None if intervention is None else model.intervened_logits(images, intervention)
        predictions = plain if logits is None else predict(logits).cpu()
        columns = {"right": (predictions == labels).numpy(), "changed": (predictions != plain).numpy()}
        name = "none" if intervention is None else intervention.name
        return pd.DataFrame({"layer": NETWORK, "intervention": name, "index": indices, **columns})

    return [rows(None), *(rows(intervention) for intervention in model.interventions)]
