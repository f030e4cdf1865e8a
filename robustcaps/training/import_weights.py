"""Weights that others trained and published, written as ours are: safetensors and a model card."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustcaps.data import load_data
from robustcaps.data.base import Data, Progress
from robustcaps.data.files import data_folder, digest_of
from robustcaps.data.protocol import CATEGORIES
from robustcaps.errors import UserError
from robustcaps.models import hinton2018
from robustcaps.models.cards import ImportedCard, card_path, tensors_digest, write_weights
from robustcaps.models.tensorflow_checkpoint import TensorFlowCheckpoint, open_checkpoint
from robustcaps.models.zoo import model_options
from robustcaps.training.accuracy import accuracy_score, predict_classes
from robustcaps.utils.devices import pick_device
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson
from robustcaps.utils.versions import package_versions

TAG = "hinton2018"
DATA = "smallnorb"
DATA_OPTIONS = {"downsampling": "nearest"}
"""The released code keeps every other pixel (resize_images of TensorFlow 1), where we take means by default."""
EYES = {1: "left", 2: "both"}
"""Option `eyes` of the data by the number of channels."""
SOURCE = (
    "Hinton, Sabour and Frosst (ICLR 2018), checkpoint of the released code google-research/capsule_em; "
    "its README states a test error of 1.8 % (centre crop)"
)


def import_hinton2018(
    checkpoint: Path | str,
    *,
    out: Path | str,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> ImportedCard:
    """Convert the checkpoint that the authors of Hinton et al. 2018 released, and measure it where smallNORB is there.

    Args:
        checkpoint: A TensorFlow checkpoint: its prefix, one of its files, or its folder.
        out: The folder for matrix-capsnet-hinton2018.safetensors and its card (.json).
        data_dir: Directory that contains the datasets.
        limit: Measure the accuracy on so many test samples only.
        device: "auto", "cpu", "cuda" or "mps".
        progress: Called with the number of loaded and of all samples.

    Returns:
        The card; its accuracy is None where the files of smallNORB are missing.
    """
    opened = open_checkpoint(Path(checkpoint))
    network = hinton2018.load_released_network(opened)
    if network.classes != len(CATEGORIES) or network.channels not in EYES:
        raise UserError(
            f"{opened.index}: the network has {network.channels} channels and {network.classes} classes; "
            f"expected 1 or 2 (stereo) and {len(CATEGORIES)}."
        )
    data_options = {"eyes": EYES[network.channels], **DATA_OPTIONS}
    test = _load_test_split(data_options, data_dir, limit, progress)
    measured = _measure(network.model.to(pick_device(device)), test)
    weights = _create_folder(Path(out)) / f"{hinton2018.MODEL}-{TAG}.safetensors"
    write_weights(weights, network.model, half=False)
    machine = f"{pick_device(device).type}, {torch.get_num_threads()} threads"
    card = _make_card(opened, network, {"data_options": data_options, "machine": machine, **measured})
    write_atomically(card_path(weights), card.model_dump_json(indent=2) + "\n")
    return card


def _make_card(
    checkpoint: TensorFlowCheckpoint, network: hinton2018.ReleasedNetwork, circumstances: dict[str, Any]
) -> ImportedCard:
    """Return the card in the form in which JSON restores it (tuples become lists)."""
    card = ImportedCard(
        model=hinton2018.MODEL,
        options=model_options(hinton2018.MODEL, network.options),
        tag=TAG,
        data=DATA,
        data_digest="unknown",
        classes=network.classes,
        channels=network.channels,
        size=hinton2018.SIZE,
        class_names=CATEGORIES,
        source=SOURCE,
        source_digests={path.name: digest_of(path, packed=False).sha256 for path in _files_of(checkpoint)},
        variables=network.variables,
        unused=network.unused,
        parameters=sum(parameter.numel() for parameter in network.model.parameters()),
        command=shlex.join(["robustcaps", "import", TAG, checkpoint.prefix.name]),
        versions=package_versions(("robustcaps", "torch")),
        digest=tensors_digest(network.model.state_dict()),
        date=dt.datetime.now(tz=dt.UTC).date(),
        **circumstances,
    )
    return ImportedCard.model_validate_json(card.model_dump_json())


def _load_test_split(
    options: dict[str, Any], data_dir: Path | str | None, limit: int | None, progress: Progress | None
) -> Data | None:
    """Return the test split, or None if there is no folder of smallNORB; damaged files are an error."""
    if not (data_folder(data_dir) / DATA).is_dir():
        return None
    return load_data(DATA, split="test", limit=limit, data_dir=data_dir, progress=progress, **options)


def _measure(model: nn.Module, test: Data | None) -> dict[str, Any]:
    """Return the fields of the card about accuracy."""
    if test is None:
        reason = f"not measured: the files of {DATA} were missing; get them with 'robustcaps data get {DATA}'"
        return {"accuracy": None, "n_test": None, "interval": None, "evaluation": f"{reason} and import again"}
    accuracy = accuracy_score(predict_classes(model, test.images), test.labels)
    low, high = wilson(round(accuracy * len(test)), len(test))
    evaluation = f"{DATA}, the first {len(test)} samples of the test split, centre crop"
    return {"accuracy": accuracy, "n_test": len(test), "interval": (float(low), float(high)), "evaluation": evaluation}


def _files_of(checkpoint: TensorFlowCheckpoint) -> list[Path]:
    """Return the files that hold the variables."""
    shards = {variable.shard for variable in checkpoint.variables.values()}
    return [checkpoint.index, *(checkpoint.shard_path(shard) for shard in sorted(shards))]


def _create_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot create the folder: {error.strerror}.") from error
    return folder
