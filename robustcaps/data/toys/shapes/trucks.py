"""Trucks: a high cab, a frame on large wheels, and a load bed or machine behind."""

from __future__ import annotations

from robustcaps.data.toys.parts import Parts, ball, box, ellipsoid, mirrored, moved, rod, wheel


def _wheels(*axles: float, apart: float = 0.36, radius: float = 0.2, width: float = 0.16) -> Parts:
    """A pair of wheels on each axle."""
    return mirrored(*(wheel((x, apart, radius), radius, width) for x in axles))


def _frame(front: float, rear: float, height: float = 0.3) -> Parts:
    return [box(((front + rear) / 2, 0.0, height), (front - rear, 0.6, 0.12))]


def _flat_cab(front: float, length: float = 0.5, top: float = 1.1, width: float = 0.84) -> Parts:
    """A cab over the engine, with a sloping windscreen, mirrors and a bumper."""
    middle, sill = front - length / 2, 0.3 + 0.5 * (top - 0.3)
    return [
        box((middle, 0.0, (0.25 + sill) / 2), (length, width, sill - 0.25)),
        box(
            (middle - 0.04, 0.0, (sill + top) / 2),
            (length - 0.08, width - 0.04, top - sill),
            taper=(0.8, 0.88),
            lean=-0.04,
        ),
        box((front, 0.0, 0.26), (0.1, width + 0.04, 0.14)),
        *mirrored(box((front - 0.06, width / 2 + 0.05, sill + 0.12), (0.05, 0.08, 0.2))),
    ]


def _nosed_cab(front: float, top: float = 1.05, width: float = 0.76, nose: float = 0.42) -> Parts:
    """A cab behind a bonnet with mudguards."""
    back = front - nose
    return [
        box((front - nose / 2, 0.0, 0.48), (nose, 0.72 * width, 0.4), taper=(0.94, 0.85)),
        box((back - 0.2, 0.0, 0.46), (0.42, width, 0.4)),
        box((back - 0.22, 0.0, (0.66 + top) / 2), (0.4, width - 0.04, top - 0.66), taper=(0.78, 0.86)),
        box((front, 0.0, 0.26), (0.08, width + 0.06, 0.12)),
        *mirrored(rod((front - 0.02, 0.28, 0.5), (front + 0.04, 0.28, 0.5), 0.07)),
    ]


def box_truck() -> Parts:
    """A delivery truck with a tall closed box."""
    return [
        *_frame(1.0, -1.05),
        *_flat_cab(1.05, top=1.02),
        box((-0.3, 0.0, 0.88), (1.5, 0.92, 0.98)),
        *_wheels(0.76, -0.6),
    ]


def dump_truck() -> Parts:
    """A dump truck whose open bed is tipped up."""
    bed = [
        box((0.0, 0.0, 0.0), (1.3, 0.84, 0.08)),
        *mirrored(box((0.0, 0.4, 0.2), (1.3, 0.07, 0.4))),
        box((0.66, 0.0, 0.22), (0.08, 0.84, 0.44)),
        box((0.84, 0.0, 0.44), (0.36, 0.84, 0.06)),
    ]
    return [
        *_frame(1.0, -0.95),
        *_nosed_cab(1.08),
        *moved(bed, (-0.42, 0.0, 0.78), pitch=28),
        rod((0.05, 0.0, 0.3), (0.0, 0.0, 0.98), 0.07),
        *_wheels(0.78, -0.35, -0.78),
    ]


def tanker() -> Parts:
    """A tank truck with a long round tank."""
    return [
        *_frame(1.05, -1.15),
        *_flat_cab(1.12, top=1.08),
        rod((0.5, 0.0, 0.74), (-1.12, 0.0, 0.74), 0.4),
        ellipsoid((0.5, 0.0, 0.74), (0.08, 0.4, 0.4)),
        ellipsoid((-1.12, 0.0, 0.74), (0.12, 0.4, 0.4)),
        *(rod((x, 0.0, 1.1), (x, 0.0, 1.22), 0.12) for x in (0.2, -0.3, -0.8)),
        *_wheels(0.82, -0.5, -0.92),
    ]


def fire_engine() -> Parts:
    """A fire engine with a turntable and an aerial boom on its roof."""
    boom = [
        *mirrored(box((0.0, 0.13, 0.0), (2.1, 0.05, 0.09))),
        *(box((-0.9 + 0.3 * step, 0.0, 0.0), (0.06, 0.26, 0.05)) for step in range(7)),
    ]
    return [
        *_frame(1.1, -1.1),
        *_flat_cab(1.15, length=0.62, top=0.98),
        box((-0.32, 0.0, 0.6), (1.62, 0.84, 0.6)),
        rod((-0.85, 0.0, 0.9), (-0.85, 0.0, 1.06), 0.24),
        *moved(boom, (0.12, 0.0, 1.28), pitch=10),
        *mirrored(rod((0.86, 0.22, 0.98), (0.86, 0.22, 1.1), 0.09)),
        *_wheels(0.82, -0.7),
    ]


def semi_trailer() -> Parts:
    """A tractor with sleeper and a long box trailer."""
    return [
        *_frame(1.45, 0.5),
        *_nosed_cab(1.55, top=1.12, nose=0.4),
        *mirrored(rod((0.66, 0.36, 0.3), (0.66, 0.36, 1.3), 0.05)),
        box((-0.48, 0.0, 0.86), (2.0, 0.78, 0.8)),
        *_wheels(1.28, 0.52, -0.98, -1.32, apart=0.32, radius=0.19, width=0.14),
    ]


def crane_truck() -> Parts:
    """A crane truck with a long boom and a hook."""
    return [
        *_frame(1.1, -1.1, height=0.34),
        *_flat_cab(1.18, length=0.46, top=0.92),
        box((-0.2, 0.0, 0.46), (1.7, 0.8, 0.16)),
        rod((-0.42, 0.0, 0.5), (-0.42, 0.0, 0.66), 0.32),
        box((-0.5, 0.0, 0.86), (0.62, 0.5, 0.42), taper=(0.8, 0.9)),
        box((-0.86, 0.0, 0.8), (0.24, 0.6, 0.28)),
        rod((-0.5, 0.0, 0.95), (0.5, 0.0, 1.42), 0.13, 0.1),
        rod((0.5, 0.0, 1.42), (1.3, 0.0, 1.8), 0.08, 0.06),
        rod((1.28, 0.0, 1.78), (1.28, 0.0, 1.36), 0.025),
        ball((1.28, 0.0, 1.32), 0.09),
        *_wheels(0.88, -0.42, -0.86),
    ]


def cement_mixer() -> Parts:
    """A cement mixer with a slanting drum."""
    return [
        *_frame(1.05, -1.05),
        *_flat_cab(1.1, top=1.02),
        rod((0.42, 0.0, 0.72), (-0.28, 0.0, 0.92), 0.26, 0.46),
        rod((-0.28, 0.0, 0.92), (-1.0, 0.0, 1.14), 0.46, 0.2),
        rod((-1.0, 0.0, 1.14), (-1.12, 0.0, 1.18), 0.2, 0.26),
        box((0.42, 0.0, 0.55), (0.12, 0.6, 0.5)),
        *mirrored(rod((-0.82, 0.26, 0.3), (-0.88, 0.12, 1.0), 0.05)),
        rod((-1.08, 0.0, 0.98), (-1.28, 0.0, 0.45), 0.12, 0.08),
        *_wheels(0.8, -0.38, -0.8),
    ]


def log_truck() -> Parts:
    """A flatbed truck that carries logs between stakes."""
    logs = [(-0.26, 0.56), (0.0, 0.56), (0.26, 0.56), (-0.13, 0.78), (0.13, 0.78)]
    return [
        *_frame(1.1, -1.25),
        *_nosed_cab(1.2, top=1.1),
        box((-0.5, 0.0, 0.4), (1.6, 0.84, 0.08)),
        *(rod((0.3, y, z), (-1.36, y, z), 0.13) for y, z in logs),
        *mirrored(*(rod((x, 0.42, 0.4), (x, 0.42, 0.98), 0.035) for x in (0.1, -0.5, -1.1))),
        box((0.36, 0.0, 0.7), (0.06, 0.8, 0.6)),
        *_wheels(0.92, -0.6, -1.0),
    ]


def garbage_truck() -> Parts:
    """A garbage truck with a rounded body and a hopper at the rear."""
    return [
        *_frame(1.0, -1.0),
        *_flat_cab(1.08, length=0.48, top=1.0),
        box((-0.1, 0.0, 0.78), (1.2, 0.86, 0.8), taper=(1.0, 0.8)),
        *(box((x, 0.0, 0.78), (0.06, 0.92, 0.86), taper=(1.0, 0.8)) for x in (0.4, 0.05, -0.3)),
        box((-0.92, 0.0, 0.66), (0.5, 0.86, 0.8), taper=(0.55, 0.85), lean=0.2),
        box((-1.14, 0.0, 0.36), (0.3, 0.8, 0.2)),
        *_wheels(0.76, -0.42, -0.8),
    ]


def army_truck() -> Parts:
    """An army truck with a bonnet and a canvas roof on hoops."""
    return [
        *_frame(1.05, -1.05, height=0.4),
        *moved(_nosed_cab(1.15, top=1.0, nose=0.46), (0.0, 0.0, 0.1)),
        box((-0.45, 0.0, 0.62), (1.3, 0.88, 0.3)),
        rod((0.18, 0.0, 0.78), (-1.08, 0.0, 0.78), 0.43, flat=1.15),
        *(rod((x, 0.0, 0.78), (x - 0.06, 0.0, 0.78), 0.46, flat=1.15) for x in (0.18, -0.24, -0.66, -1.04)),
        *_wheels(0.84, -0.3, -0.76, radius=0.25, width=0.18),
    ]


FIGURES = (
    tanker,
    fire_engine,
    log_truck,
    garbage_truck,
    box_truck,
    army_truck,
    dump_truck,
    semi_trailer,
    crane_truck,
    cement_mixer,
)
