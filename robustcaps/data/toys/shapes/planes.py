"""Planes: a fuselage with wings and a tail."""

from __future__ import annotations

from robustcaps.data.toys.parts import Parts, ball, box, cone, ellipsoid, mirrored, rod, slab, wheel


def _tube(nose: float, tail: float, radius: float, height: float = 0.0, tail_rise: float = 0.1) -> Parts:
    """A round fuselage from nose to tail: rounded in front, drawn out behind."""
    front = nose - 1.6 * radius
    back = tail + 0.38 * (nose - tail)
    return [
        ellipsoid((front, 0.0, height), (1.6 * radius, radius, radius)),
        rod((front, 0.0, height), (back, 0.0, height), radius),
        rod((back, 0.0, height), (tail, 0.0, height + tail_rise), radius, 0.3 * radius),
    ]


def _propeller(x: float, y: float, z: float, length: float) -> Parts:
    """Two blades and a spinner."""
    return [
        box((x, y, z), (0.05, 0.1, length)),
        box((x, y, z), (0.05, length, 0.1)),
        cone((x, y, z), (x + 0.16, y, z), 0.08),
    ]


def airliner() -> Parts:
    """An airliner with an engine under each swept wing."""
    return [
        *_tube(1.25, -1.25, 0.17),
        *mirrored(
            slab((0.2, 0.08, -0.06), (-0.32, 1.2, 0.06), 0.52, 0.16, 0.06),
            rod((0.36, 0.46, -0.17), (-0.04, 0.46, -0.17), 0.11, 0.09),
            slab((-1.05, 0.05, 0.08), (-1.28, 0.46, 0.12), 0.26, 0.13, 0.05),
        ),
        slab((-1.0, 0.0, 0.1), (-1.25, 0.0, 0.58), 0.38, 0.17, 0.05),
    ]


def biplane() -> Parts:
    """A biplane with struts, wheels and a propeller."""
    return [
        *_tube(0.8, -0.9, 0.19, tail_rise=0.08),
        *mirrored(
            slab((0.38, 0.0, -0.14), (0.38, 1.05, -0.12), 0.4, 0.36, 0.05),
            slab((0.45, 0.0, 0.44), (0.45, 1.1, 0.44), 0.42, 0.38, 0.05),
            rod((0.52, 0.75, -0.1), (0.58, 0.75, 0.44), 0.03),
            rod((0.3, 0.75, -0.1), (0.36, 0.75, 0.44), 0.03),
            rod((0.5, 0.14, 0.1), (0.5, 0.22, 0.44), 0.03),
            rod((0.45, 0.1, -0.1), (0.5, 0.28, -0.42), 0.035),
            wheel((0.5, 0.3, -0.42), 0.16, 0.08),
            slab((-0.78, 0.0, 0.08), (-0.8, 0.42, 0.08), 0.3, 0.22, 0.04),
        ),
        slab((-0.78, 0.0, 0.1), (-0.88, 0.0, 0.44), 0.34, 0.22, 0.04),
        *_propeller(0.82, 0.0, 0.0, 0.62),
        ball((-0.05, 0.0, 0.2), 0.12),
    ]


def delta_fighter() -> Parts:
    """A fighter with a delta wing and a needle nose."""
    return [
        rod((0.5, 0.0, 0.0), (-0.95, 0.0, 0.0), 0.16),
        cone((0.5, 0.0, 0.0), (1.4, 0.0, -0.03), 0.16),
        rod((-0.95, 0.0, 0.0), (-1.12, 0.0, 0.0), 0.13, 0.1),
        ellipsoid((0.42, 0.0, 0.13), (0.3, 0.1, 0.12)),
        *mirrored(
            slab((-0.18, 0.06, -0.05), (-0.82, 0.82, -0.05), 1.4, 0.12, 0.06),
            box((0.2, 0.18, -0.02), (0.5, 0.12, 0.2)),
        ),
        slab((-0.6, 0.0, 0.1), (-0.98, 0.0, 0.6), 0.62, 0.2, 0.05),
    ]


def glider() -> Parts:
    """A glider: very long slender wings and a slim tail boom."""
    return [
        ellipsoid((0.42, 0.0, 0.0), (0.5, 0.15, 0.16)),
        rod((0.4, 0.0, 0.02), (-0.95, 0.0, 0.08), 0.14, 0.05),
        *mirrored(
            slab((0.28, 0.0, 0.12), (0.22, 1.4, 0.24), 0.28, 0.12, 0.05),
            slab((-0.9, 0.0, 0.4), (-0.92, 0.38, 0.4), 0.18, 0.11, 0.04),
        ),
        slab((-0.84, 0.0, 0.05), (-0.95, 0.0, 0.42), 0.26, 0.18, 0.05),
    ]


def high_wing() -> Parts:
    """A light propeller plane whose wing sits on top of the cabin."""
    return [
        box((0.28, 0.0, 0.08), (0.7, 0.36, 0.44), taper=(0.75, 0.8)),
        rod((0.3, 0.0, -0.02), (0.85, 0.0, -0.02), 0.2, 0.15),
        rod((0.2, 0.0, 0.0), (-0.95, 0.0, 0.06), 0.2, 0.07),
        *mirrored(
            slab((0.28, 0.0, 0.32), (0.26, 1.15, 0.36), 0.38, 0.28, 0.06),
            rod((0.28, 0.18, -0.1), (0.28, 0.62, 0.32), 0.03),
            rod((0.2, 0.12, -0.14), (0.18, 0.34, -0.36), 0.035),
            wheel((0.18, 0.36, -0.38), 0.12, 0.08),
            slab((-0.88, 0.0, 0.08), (-0.9, 0.42, 0.08), 0.26, 0.18, 0.04),
        ),
        wheel((0.7, 0.0, -0.38), 0.1, 0.07),
        rod((0.7, 0.0, -0.15), (0.7, 0.0, -0.38), 0.035),
        slab((-0.82, 0.0, 0.06), (-0.98, 0.0, 0.48), 0.32, 0.18, 0.05),
        *_propeller(0.86, 0.0, -0.02, 0.6),
    ]


def bomber() -> Parts:
    """A bomber with four propeller engines on straight wings."""
    engines = [
        part
        for y, x in ((0.42, 0.42), (0.82, 0.36))
        for part in (
            rod((x, y, 0.0), (x - 0.5, y, 0.02), 0.1, 0.06),
            box((x + 0.02, y, 0.0), (0.04, 0.06, 0.4)),
            box((x + 0.02, y, 0.0), (0.04, 0.4, 0.06)),
        )
    ]
    return [
        *_tube(1.05, -1.1, 0.18),
        *mirrored(
            slab((0.15, 0.0, 0.0), (0.08, 1.3, 0.08), 0.46, 0.2, 0.07),
            *engines,
            slab((-0.98, 0.0, 0.1), (-1.0, 0.52, 0.12), 0.28, 0.2, 0.05),
            slab((-1.0, 0.5, -0.06), (-1.02, 0.5, 0.38), 0.26, 0.2, 0.05),
        ),
        ball((0.75, 0.0, 0.16), 0.13),
        ball((-0.1, 0.0, 0.18), 0.12),
    ]


def seaplane() -> Parts:
    """A seaplane on two long floats."""
    return [
        *_tube(0.8, -0.95, 0.18, tail_rise=0.14),
        *mirrored(
            slab((0.25, 0.0, 0.2), (0.22, 1.1, 0.24), 0.4, 0.3, 0.06),
            rod((0.75, 0.4, -0.46), (-0.3, 0.4, -0.46), 0.12, 0.1),
            cone((-0.3, 0.4, -0.46), (-0.65, 0.4, -0.38), 0.1),
            ellipsoid((0.75, 0.4, -0.46), (0.25, 0.12, 0.12)),
            rod((0.5, 0.1, -0.08), (0.5, 0.4, -0.4), 0.035),
            rod((-0.1, 0.1, -0.08), (-0.1, 0.4, -0.4), 0.035),
            slab((-0.85, 0.0, 0.16), (-0.88, 0.42, 0.16), 0.28, 0.2, 0.05),
        ),
        slab((-0.8, 0.0, 0.14), (-0.95, 0.0, 0.54), 0.34, 0.2, 0.05),
        box((0.25, 0.0, 0.22), (0.42, 0.26, 0.16), taper=(0.6, 0.8)),
        *_propeller(0.82, 0.0, 0.0, 0.6),
    ]


def t_tail() -> Parts:
    """A business jet with its engines at the rear and a T-shaped tail."""
    return [
        *_tube(1.15, -1.1, 0.18),
        *mirrored(
            slab((0.0, 0.05, -0.1), (-0.22, 1.05, 0.0), 0.46, 0.2, 0.06),
            rod((-0.35, 0.3, 0.12), (-0.85, 0.3, 0.12), 0.12, 0.09),
            box((-0.58, 0.2, 0.1), (0.3, 0.14, 0.06)),
            slab((-1.22, 0.0, 0.66), (-1.36, 0.5, 0.66), 0.28, 0.16, 0.05),
        ),
        slab((-0.9, 0.0, 0.08), (-1.2, 0.0, 0.68), 0.42, 0.28, 0.07),
    ]


def swept_fighter() -> Parts:
    """A jet fighter with swept wings, twin fins and missiles at the wing tips."""
    return [
        box((-0.35, 0.0, 0.0), (1.1, 0.44, 0.2), taper=(0.95, 0.75)),
        rod((0.2, 0.0, 0.03), (0.75, 0.0, 0.02), 0.17, 0.12),
        cone((0.75, 0.0, 0.02), (1.2, 0.0, 0.0), 0.12),
        ellipsoid((0.48, 0.0, 0.15), (0.26, 0.1, 0.12)),
        *mirrored(
            slab((0.0, 0.15, 0.0), (-0.45, 0.88, 0.0), 0.62, 0.24, 0.05),
            rod((-0.2, 0.9, 0.0), (-0.75, 0.9, 0.0), 0.045),
            slab((-0.85, 0.15, 0.0), (-1.1, 0.52, 0.0), 0.34, 0.18, 0.05),
            slab((-0.72, 0.18, 0.08), (-0.95, 0.3, 0.5), 0.36, 0.18, 0.05),
            rod((-0.85, 0.12, 0.0), (-1.08, 0.12, 0.0), 0.1, 0.08),
        ),
    ]


def twin_boom() -> Parts:
    """A plane with two tail booms and a pod between them."""
    return [
        ellipsoid((0.4, 0.0, 0.02), (0.58, 0.18, 0.18)),
        rod((0.35, 0.0, 0.0), (-0.25, 0.0, 0.02), 0.17, 0.1),
        *mirrored(
            slab((0.2, 0.0, 0.0), (0.14, 1.2, 0.1), 0.42, 0.24, 0.06),
            rod((0.52, 0.42, 0.02), (-1.0, 0.42, 0.1), 0.12, 0.05),
            cone((0.52, 0.42, 0.02), (0.72, 0.42, 0.02), 0.12),
            box((0.58, 0.42, 0.02), (0.04, 0.06, 0.5)),
            box((0.58, 0.42, 0.02), (0.04, 0.5, 0.06)),
            slab((-0.92, 0.42, 0.05), (-1.02, 0.42, 0.48), 0.34, 0.2, 0.05),
            slab((-0.95, 0.0, 0.14), (-0.95, 0.44, 0.14), 0.26, 0.26, 0.05),
        ),
    ]


FIGURES = (airliner, high_wing, bomber, seaplane, biplane, t_tail, delta_fighter, glider, swept_fighter, twin_boom)
