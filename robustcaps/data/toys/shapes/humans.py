"""Humans: a head on an upright trunk with two arms and two legs, in different poses and clothes."""

from __future__ import annotations

from robustcaps.data.toys.parts import Parts, Vector, ball, box, ellipsoid, mirrored, rod, wheel


def _limb(first: Vector, joint: Vector, last: Vector, radius: float) -> Parts:
    """Two bones and the joint between them."""
    return [
        rod(first, joint, radius, 0.85 * radius),
        ball(joint, 0.88 * radius),
        rod(joint, last, 0.85 * radius, 0.7 * radius),
    ]


def _arm(shoulder: Vector, elbow: Vector, hand: Vector, radius: float = 0.095) -> Parts:
    return [ball(shoulder, 1.15 * radius), *_limb(shoulder, elbow, hand, radius), ball(hand, radius)]


def _leg(hip: Vector, knee: Vector, ankle: Vector, radius: float = 0.135) -> Parts:
    """A leg with a foot that points forward."""
    x, y, z = ankle
    return [*_limb(hip, knee, ankle, radius), ellipsoid((x + 0.08, y, max(z - 0.02, 0.07)), (0.19, 0.09, 0.07))]


def _trunk(hips: float = 0.85, shoulders: float = 1.42, width: float = 0.27, x: float = 0.0) -> Parts:
    """Chest, hips, neck and head, standing at x."""
    return [
        rod((x, 0.0, hips), (x, 0.0, shoulders), 0.75 * width, width, flat=0.62),
        ellipsoid((x, 0.0, hips), (0.17, 0.8 * width, 0.15)),
        ellipsoid((x, 0.0, shoulders), (0.16, width, 0.1)),
        rod((x, 0.0, shoulders), (x, 0.0, shoulders + 0.2), 0.08),
        ellipsoid((x + 0.02, 0.0, shoulders + 0.34), (0.19, 0.17, 0.22)),
    ]


def standing() -> Parts:
    """A man who stands with his arms hanging."""
    return [
        *_trunk(),
        *mirrored(*_leg((0.0, 0.13, 0.85), (0.02, 0.15, 0.45), (0.0, 0.16, 0.08))),
        *mirrored(*_arm((0.0, 0.3, 1.4), (-0.02, 0.38, 1.1), (0.06, 0.4, 0.8))),
    ]


def cheering() -> Parts:
    """A man who throws both arms up."""
    return [
        *_trunk(),
        *mirrored(*_leg((0.0, 0.14, 0.85), (0.03, 0.22, 0.46), (0.0, 0.3, 0.08))),
        *mirrored(*_arm((0.0, 0.29, 1.4), (0.02, 0.5, 1.66), (0.04, 0.56, 2.05))),
    ]


def cowboy() -> Parts:
    """A cowboy: broad hat, bowed legs, hands at the hips."""
    return [
        *_trunk(),
        rod((0.02, 0.0, 1.86), (0.02, 0.0, 1.9), 0.42, flat=0.85),
        rod((0.02, 0.0, 1.9), (0.02, 0.0, 2.12), 0.21, 0.16),
        *mirrored(*_leg((0.0, 0.14, 0.85), (0.06, 0.3, 0.48), (0.0, 0.22, 0.08))),
        *mirrored(*_arm((0.0, 0.3, 1.4), (-0.1, 0.55, 1.18), (0.08, 0.3, 0.95))),
    ]


def lady() -> Parts:
    """A lady in a wide long skirt, her hair in a bun."""
    return [
        *_trunk(hips=0.95, width=0.23),
        rod((0.0, 0.0, 0.02), (0.0, 0.0, 1.08), 0.5, 0.17),
        ball((-0.14, 0.0, 1.92), 0.13),
        *mirrored(*_arm((0.0, 0.25, 1.4), (-0.06, 0.4, 1.14), (0.2, 0.3, 1.0), 0.08)),
    ]


def walking() -> Parts:
    """A man in mid-stride, his arms swinging."""
    return [
        *_trunk(x=0.05),
        *_leg((0.05, 0.12, 0.85), (0.28, 0.13, 0.5), (0.42, 0.13, 0.1)),
        *_leg((0.05, -0.12, 0.85), (-0.06, -0.13, 0.46), (-0.42, -0.13, 0.14)),
        *_arm((0.05, 0.3, 1.4), (-0.16, 0.38, 1.14), (-0.22, 0.36, 0.84)),
        *_arm((0.05, -0.3, 1.4), (0.14, -0.38, 1.1), (0.42, -0.34, 0.98)),
    ]


def soldier() -> Parts:
    """A soldier with helmet, pack and a rifle held across his chest."""
    return [
        *_trunk(),
        ellipsoid((0.0, 0.0, 1.86), (0.26, 0.25, 0.17)),
        box((-0.26, 0.0, 1.22), (0.24, 0.42, 0.46)),
        *mirrored(*_leg((0.0, 0.14, 0.85), (0.03, 0.18, 0.46), (0.0, 0.2, 0.08), 0.15)),
        *_arm((0.0, 0.3, 1.4), (0.06, 0.44, 1.14), (0.3, 0.22, 1.24)),
        *_arm((0.0, -0.3, 1.4), (0.02, -0.44, 1.12), (0.28, -0.2, 1.02)),
        rod((0.34, -0.5, 0.86), (0.34, -0.1, 1.08), 0.09, 0.06),
        rod((0.34, -0.1, 1.08), (0.34, 0.72, 1.5), 0.045),
    ]


def runner() -> Parts:
    """A runner who leans forward with one leg high behind."""
    return [
        rod((0.0, 0.0, 0.9), (0.2, 0.0, 1.42), 0.19, 0.26, flat=0.62),
        ball((0.0, 0.0, 0.9), 0.19),
        ellipsoid((0.2, 0.0, 1.42), (0.15, 0.27, 0.1)),
        rod((0.2, 0.0, 1.42), (0.3, 0.0, 1.62), 0.08),
        ellipsoid((0.34, 0.0, 1.74), (0.19, 0.17, 0.21)),
        *_leg((0.0, 0.12, 0.88), (0.46, 0.13, 0.84), (0.5, 0.13, 0.4)),
        *_limb((0.0, -0.12, 0.88), (-0.2, -0.13, 0.48), (-0.66, -0.13, 0.52), 0.135),
        ellipsoid((-0.7, -0.13, 0.44), (0.08, 0.09, 0.18)),
        rod((-0.16, -0.13, 0.48), (-0.2, -0.13, 0.0), 0.03),
        *_arm((0.2, 0.3, 1.4), (-0.12, 0.4, 1.28), (-0.06, 0.34, 0.98)),
        *_arm((0.2, -0.3, 1.4), (0.36, -0.4, 1.14), (0.62, -0.3, 1.36)),
    ]


def kneeling() -> Parts:
    """A man on one knee."""
    return [
        *_trunk(hips=0.55, shoulders=1.12),
        *_leg((0.0, 0.14, 0.55), (0.45, 0.17, 0.56), (0.45, 0.17, 0.1), 0.14),
        *_limb((0.0, -0.14, 0.55), (0.1, -0.18, 0.13), (-0.42, -0.18, 0.1), 0.14),
        ellipsoid((-0.5, -0.18, 0.12), (0.08, 0.09, 0.12)),
        *_arm((0.0, 0.3, 1.1), (0.2, 0.38, 0.84), (0.46, 0.24, 0.74)),
        *_arm((0.0, -0.3, 1.1), (-0.04, -0.4, 0.82), (0.14, -0.36, 0.58)),
    ]


def child() -> Parts:
    """A child with a large head and a cap, waving."""
    return [
        rod((0.0, 0.0, 0.45), (0.0, 0.0, 0.9), 0.23, 0.2, flat=0.8),
        ellipsoid((0.02, 0.0, 1.2), (0.3, 0.29, 0.31)),
        ellipsoid((0.0, 0.0, 1.36), (0.31, 0.3, 0.2)),
        ellipsoid((0.28, 0.0, 1.34), (0.22, 0.2, 0.04)),
        *mirrored(*_leg((0.0, 0.12, 0.48), (0.01, 0.14, 0.28), (0.0, 0.15, 0.08), 0.12)),
        *_arm((0.0, 0.22, 0.86), (0.02, 0.46, 1.0), (0.04, 0.58, 1.34), 0.085),
        *_arm((0.0, -0.22, 0.86), (0.0, -0.36, 0.66), (0.06, -0.42, 0.46), 0.085),
    ]


def weightlifter() -> Parts:
    """A weightlifter who holds a barbell overhead."""
    return [
        *_trunk(width=0.32),
        *_leg((0.0, 0.15, 0.85), (0.2, 0.22, 0.48), (0.16, 0.22, 0.08), 0.15),
        *_leg((0.0, -0.15, 0.85), (-0.14, -0.2, 0.46), (-0.26, -0.22, 0.08), 0.15),
        *mirrored(*_arm((0.0, 0.34, 1.4), (0.02, 0.52, 1.68), (0.05, 0.5, 2.06), 0.11)),
        rod((0.05, -0.95, 2.06), (0.05, 0.95, 2.06), 0.035),
        *mirrored(wheel((0.05, 0.82, 2.06), 0.26, 0.14)),
    ]


FIGURES = (standing, cowboy, walking, soldier, cheering, weightlifter, lady, runner, kneeling, child)
