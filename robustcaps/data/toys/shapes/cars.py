"""Cars: a low body on four wheels with a cabin in the middle."""

from __future__ import annotations

from robustcaps.data.toys.parts import Parts, ball, box, ellipsoid, mirrored, rod, wheel


def _wheels(front: float, rear: float, apart: float = 0.4, radius: float = 0.19, width: float = 0.15) -> Parts:
    """Four wheels."""
    return mirrored(*(wheel((x, apart, radius), radius, width) for x in (front, rear)))


def _body(front: float, rear: float, low: float, high: float, width: float = 0.84) -> Parts:
    """The lower body with a bumper at either end."""
    middle, length = (front + rear) / 2, front - rear
    return [
        box((middle, 0.0, (low + high) / 2), (length, width, high - low), taper=(0.96, 0.92)),
        *(box((x, 0.0, low + 0.06), (0.08, width, 0.1)) for x in (front, rear)),
    ]


def _cabin(
    front: float, rear: float, low: float, high: float, *, screen: float, window: float, width: float = 0.76
) -> Parts:
    """A cabin whose windscreen and rear window slope by that much."""
    length = front - rear
    taper = 1 - (screen + window) / length
    return [
        box(
            ((front + rear) / 2 + (window - screen) / 4, 0.0, (low + high) / 2),
            (length, width, high - low),
            taper=(taper, 0.8),
            lean=(window - screen) / 2,
        )
    ]


def _lamps(front: float, height: float, apart: float = 0.28, radius: float = 0.07) -> Parts:
    return mirrored(rod((front - 0.04, apart, height), (front + 0.03, apart, height), radius))


def sedan() -> Parts:
    """A sedan: bonnet, cabin, boot."""
    return [
        *_body(1.05, -1.05, 0.16, 0.5),
        *_cabin(0.45, -0.72, 0.48, 0.82, screen=0.34, window=0.26),
        *_lamps(1.05, 0.4),
        *_wheels(0.66, -0.66),
    ]


def hatchback() -> Parts:
    """A short, tall car with a steep back."""
    return [
        *_body(0.8, -0.78, 0.16, 0.54),
        *_cabin(0.46, -0.8, 0.52, 0.92, screen=0.38, window=0.12),
        *_lamps(0.8, 0.42),
        *_wheels(0.5, -0.5),
    ]


def off_roader() -> Parts:
    """An off-roader: upright, high on big wheels, spare wheel on its back."""
    return [
        *_body(0.92, -0.85, 0.28, 0.66, width=0.86),
        *_cabin(0.3, -0.84, 0.64, 1.06, screen=0.08, window=0.04, width=0.82),
        *mirrored(box((0.64, 0.42, 0.5), (0.5, 0.12, 0.08)), box((-0.55, 0.42, 0.5), (0.5, 0.12, 0.08))),
        rod((-0.85, 0.0, 0.62), (-1.0, 0.0, 0.62), 0.24),
        box((-0.25, 0.0, 1.1), (0.8, 0.6, 0.04)),
        *_lamps(0.92, 0.5, radius=0.09),
        *_wheels(0.62, -0.56, radius=0.25, width=0.18),
    ]


def sports_car() -> Parts:
    """A flat sports car: wedge nose, low cabin, rear spoiler."""
    return [
        box((0.55, 0.0, 0.28), (1.1, 0.88, 0.28), taper=(0.62, 0.9), lean=-0.2),
        box((-0.5, 0.0, 0.3), (1.0, 0.9, 0.32), taper=(0.95, 0.92)),
        *_cabin(0.32, -0.86, 0.4, 0.66, screen=0.48, window=0.42, width=0.74),
        *mirrored(rod((-0.88, 0.3, 0.44), (-0.92, 0.3, 0.66), 0.04)),
        box((-0.94, 0.0, 0.68), (0.24, 0.88, 0.05)),
        *_wheels(0.62, -0.6, apart=0.42, radius=0.2, width=0.18),
    ]


def beetle() -> Parts:
    """A beetle: round roof, round bonnet, bulging mudguards."""
    return [
        ellipsoid((-0.14, 0.0, 0.44), (0.58, 0.35, 0.44)),
        ellipsoid((0.42, 0.0, 0.32), (0.56, 0.31, 0.28)),
        ellipsoid((-0.55, 0.0, 0.34), (0.5, 0.32, 0.34)),
        box((0.0, 0.0, 0.2), (1.5, 0.76, 0.14), taper=(0.9, 0.85)),
        *mirrored(ellipsoid((0.6, 0.36, 0.24), (0.28, 0.12, 0.22)), ellipsoid((-0.6, 0.36, 0.24), (0.28, 0.12, 0.22))),
        *(box((x, 0.0, 0.18), (0.05, 0.7, 0.08)) for x in (1.0, -1.06)),
        *_lamps(0.84, 0.36, apart=0.32, radius=0.09),
        *_wheels(0.6, -0.6, radius=0.19),
    ]


def convertible() -> Parts:
    """An open car: windscreen, seats, no roof."""
    return [
        box((0.0, 0.0, 0.26), (2.0, 0.84, 0.2)),
        box((0.62, 0.0, 0.42), (0.8, 0.82, 0.18), taper=(0.92, 0.9)),
        box((-0.76, 0.0, 0.42), (0.5, 0.82, 0.18), taper=(0.9, 0.9)),
        *mirrored(box((-0.15, 0.38, 0.42), (0.8, 0.07, 0.18))),
        box((0.18, 0.0, 0.62), (0.05, 0.74, 0.28), lean=-0.14),
        *mirrored(
            box((-0.3, 0.19, 0.54), (0.1, 0.28, 0.4), lean=-0.1),
            ball((-0.36, 0.19, 0.78), 0.09),
        ),
        *_lamps(1.02, 0.4),
        *_wheels(0.64, -0.62),
    ]


def station_wagon() -> Parts:
    """A station wagon: the roof runs to the rear, with luggage on a rack."""
    return [
        *_body(1.08, -1.08, 0.16, 0.52),
        *_cabin(0.42, -1.06, 0.5, 0.86, screen=0.32, window=0.08),
        *mirrored(rod((0.1, 0.26, 0.9), (-0.85, 0.26, 0.9), 0.03)),
        box((-0.36, 0.0, 0.97), (0.5, 0.44, 0.16)),
        *_lamps(1.08, 0.42),
        *_wheels(0.68, -0.66),
    ]


def limousine() -> Parts:
    """A stretched limousine."""
    return [
        *_body(1.5, -1.5, 0.16, 0.5, width=0.78),
        *_cabin(0.86, -1.1, 0.48, 0.8, screen=0.26, window=0.22, width=0.72),
        *mirrored(box((0.0, 0.4, 0.34), (2.0, 0.03, 0.06))),
        *_lamps(1.5, 0.4),
        *_wheels(1.06, -1.06, apart=0.36),
    ]


def race_car() -> Parts:
    """A formula race car: needle body, free wheels, two wings."""
    return [
        rod((0.1, 0.0, 0.26), (1.15, 0.0, 0.18), 0.17, 0.07),
        box((-0.3, 0.0, 0.24), (0.9, 0.52, 0.26), taper=(0.9, 0.7)),
        rod((-0.15, 0.0, 0.3), (-0.95, 0.0, 0.28), 0.16, 0.09),
        ellipsoid((-0.3, 0.0, 0.5), (0.26, 0.12, 0.18)),
        ball((0.06, 0.0, 0.44), 0.12),
        box((1.12, 0.0, 0.12), (0.24, 0.86, 0.05)),
        box((-1.02, 0.0, 0.62), (0.26, 0.8, 0.06)),
        *mirrored(
            box((-1.02, 0.4, 0.52), (0.3, 0.05, 0.28)),
            rod((0.7, 0.0, 0.24), (0.7, 0.4, 0.22), 0.03),
            rod((-0.72, 0.0, 0.28), (-0.72, 0.4, 0.26), 0.04),
            wheel((0.7, 0.46, 0.2), 0.2, 0.2),
            wheel((-0.72, 0.48, 0.24), 0.24, 0.26),
        ),
    ]


def old_timer() -> Parts:
    """A veteran car: tall box cabin, narrow bonnet, sweeping mudguards, big lamps."""
    return [
        box((0.0, 0.0, 0.3), (1.6, 0.5, 0.1)),
        box((0.5, 0.0, 0.5), (0.6, 0.4, 0.34), taper=(1.0, 0.8)),
        box((0.82, 0.0, 0.5), (0.06, 0.42, 0.4)),
        box((-0.3, 0.0, 0.5), (0.95, 0.68, 0.36)),
        box((-0.3, 0.0, 0.86), (0.92, 0.66, 0.38)),
        box((-0.28, 0.0, 1.08), (1.06, 0.76, 0.07), taper=(0.94, 0.9)),
        *mirrored(
            box((0.0, 0.4, 0.26), (0.8, 0.18, 0.05)),
            ellipsoid((0.62, 0.38, 0.36), (0.32, 0.1, 0.14)),
            ellipsoid((-0.62, 0.38, 0.36), (0.32, 0.1, 0.14)),
            ball((0.86, 0.24, 0.62), 0.11),
        ),
        rod((-0.82, 0.0, 0.56), (-0.94, 0.0, 0.56), 0.22),
        *_wheels(0.64, -0.6, apart=0.38, radius=0.24, width=0.09),
    ]


FIGURES = (sedan, hatchback, off_roader, sports_car, beetle, station_wagon, convertible, limousine, race_car, old_timer)
