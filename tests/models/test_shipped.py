"""What is shipped works together: the weights on the toys, and the suites in benchmarks/."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

import robustcaps as rc
from robustcaps.models.zoo import IMPORTED_TAGS, WEIGHTS, find_shipped_weights, shipped_cards
from robustcaps.suite.spec import load_collection, load_suite, meant_for
from robustcaps.utils.statistics import wilson

FILES = os.environ.get("ROBUSTCAPS_DATA")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MISSING = r"data\[\d\]: dataset '[a-z0-9-]+': (no folder data/|data/eth80/1/\d contains 0 files)"
"""What a suite may lack where it is checked."""
CARDS = {f"{card.name} ({card.data})": card for card in shipped_cards()}


@pytest.fixture(scope="module")
def toys():
    return rc.load_data("toys", limit=450)


LEAST = {"toys": 0.9, "mnist": 0.985, "fashion-mnist": 0.8, "eth80": 0.55}
"""Test accuracy below which weights are not worth shipping, where they were trained on all samples as they are."""
LEAST_ON_MNIST = {"cnn": 0.992, "vector-capsnet-small": 0.992, "matrix-capsnet-small": 0.988}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_shipped_models_are_as_good_as_their_cards_say(toys, card):
    """Measured again on the toys; where the files of a dataset are not here, the card's own figure counts."""
    model = rc.load_model(card.name, data=card.data, device="cpu")
    if card.data == "toys":
        rows = rc.evaluate(model, toys, rc.load_attack("clean"))
        low, high = wilson(int((~rows["fooled"]).sum()), len(rows), confidence=0.999)
        assert low <= card.accuracy <= high
    else:
        images = torch.rand(3, card.channels, card.size, card.size, generator=torch.Generator().manual_seed(0))
        assert model(images).shape == (3, card.classes) and bool(model(images).isfinite().all())
    if card.limit is None and card.adversary_eps is None and card.noise is None:
        assert card.accuracy >= max(LEAST[card.data], LEAST_ON_MNIST.get(card.model, 0) * (card.data == "mnist"))


@pytest.mark.slow
@pytest.mark.skipif(FILES is None, reason="needs ROBUSTCAPS_DATA")
@pytest.mark.parametrize("card", [card for card in CARDS.values() if card.data != "toys"], ids=lambda card: card.name)
def test_cards_of_other_datasets_are_true(card):
    data = rc.load_data(card.data, data_dir=FILES, **card.data_options)
    rows = rc.evaluate(rc.load_model(card.name, data=card.data, device="cpu"), data, rc.load_attack("clean"))
    assert 1 - rows["fooled"].mean() == pytest.approx(card.accuracy, abs=2 / card.n_test)


def test_all_weights_together_are_small_enough():
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*.safetensors")) < 90e6


@pytest.mark.parametrize("model", ["cnn", "cnn-small", "vector-capsnet-small", "matrix-capsnet-small"])
@pytest.mark.parametrize(
    ("attack", "options"),
    [("fgsm", {}), pytest.param("pgd", {"steps": 5}, marks=pytest.mark.slow)],
    ids=["fgsm", "pgd"],
)
def test_rows_of_real_models_do_not_depend_on_the_batch_size(toys, model, attack, options):
    network, made = rc.load_model(model, device="cpu"), rc.load_attack(attack, eps=[0.01, 0.03], **options)
    some = (toys.images[:37], toys.labels[:37])
    reference = rc.evaluate(network, some, made, batch_size=64)
    for size in (1, 3, 16):
        pd.testing.assert_frame_equal(rc.evaluate(network, some, made, batch_size=size), reference, check_exact=True)


def test_the_two_cnns_are_different_networks(toys):
    one, other = (rc.load_model(name, device="cpu") for name in ("cnn:a", "cnn:b"))
    assert (one(toys.images[:50]) - other(toys.images[:50])).abs().max() > 0.1


@pytest.mark.parametrize("suite", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.name)
def test_every_benchmark_is_valid(cli, suite):
    """As far as that can be told: here there are no files of data."""
    result = cli("check", suite)
    if result.returncode == 0:
        assert "fine." in result.stdout
    else:
        assert result.returncode == 2 and re.search(MISSING, result.stderr), result.stderr


@pytest.mark.parametrize("suite", sorted(BENCHMARKS.glob("*.toml")), ids=lambda path: path.name)
def test_every_model_of_a_benchmark_is_shipped_or_trained_there_or_can_be_imported(suite):
    for part in load_collection(suite).suites:
        loaded = load_suite(part)
        for model in (model for model in loaded.models if model.train is None):
            name, _, tag = model.use.partition(":")
            if model.weights is not None:
                assert tag in IMPORTED_TAGS and model.weights.stem == f"{name}-{tag}"
                continue
            for data in (data for data in loaded.data if meant_for(model.data, data)):
                assert find_shipped_weights(name, tag, data.use).is_file()


def test_what_needs_downloads_is_not_part_of_the_full_benchmark():
    suites = load_collection(BENCHMARKS / "full.toml").suites
    assert not any(model.weights for suite in suites for model in load_suite(suite).models)


def test_check_refuses_images_that_a_model_was_not_built_for(cli, tmp_path):
    suite = tmp_path / "stereo.toml"
    quick = (BENCHMARKS / "quick.toml").read_text()
    suite.write_text(quick.replace('use = "toys"', 'use = "toys"\neyes = "both"'))
    result = cli("check", suite)
    assert result.returncode == 2
    assert "models[0]: it was built for 1 channels of 32 pixels, 5 classes; 'toys' has 2 channels" in result.stderr


@pytest.mark.slow
def test_the_quick_benchmark_runs(cli, tmp_path):
    result = cli("run", BENCHMARKS / "quick.toml", "--out", "o")
    assert result.returncode == 0, result.stderr
    table = pd.read_csv(tmp_path / "o" / "table.csv")
    assert table[table["attack"] == "clean"]["accuracy"].min() > 0.8
    iterative = table[table["attack"] == "bim"]
    assert iterative[iterative["eps"] == iterative["eps"].max()]["accuracy"].max() < 0.25
    ranking = pd.read_csv(tmp_path / "o" / "ranking.csv")
    assert len(ranking) == 5 and ranking["verdict"].notna().sum() == 2 and ranking["routing"].notna().sum() == 2
    assert 0 < sum(path.stat().st_size for path in (tmp_path / "o" / "cells").iterdir()) < 3_000_000
