from __future__ import annotations

from robustcaps.analysis.published import attack_curves, published_size


def test_published_curves_are_the_papers():
    accuracy = attack_curves("untargeted").set_index(["model", "attack", "eps"])["value"]
    assert accuracy["CNN", "fgsm", 0.1] == 0.58 and accuracy["matrix capsules", "bim", 0.5] == 0.55
    assert len(accuracy) == 19
    success = attack_curves("targeted").set_index(["model", "attack", "eps"])["value"]
    assert success["CNN", "bim", 0.25] == 0.84 and success["matrix capsules", "fgsm", 0.0] == 0.2


def test_published_sizes_are_the_papers():
    assert published_size("cnn-small", "fashion-mnist", "foolbox.boundary") == 1.24
    assert published_size("matrix-capsnet", "mnist", "deepfool") == 2.02
    assert published_size("cnn", "toys", "cw") is None and published_size("mine", "mnist", "cw") is None
