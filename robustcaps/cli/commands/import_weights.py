"""robustcaps import: weights that others published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import DataDir, Device, console, examples


def register(app: typer.Typer) -> None:
    """Add the commands."""
    imports = typer.Typer(help="Convert weights that others published.", no_args_is_help=True)
    calls = ("robustcaps import hinton2018 norb_em_checkpoints/", "robustcaps import hinton2018 model.ckpt-1")
    imports.command("hinton2018", epilog=examples(*calls))(hinton2018)
    app.add_typer(imports, name="import")


def hinton2018(
    checkpoint: Annotated[
        Path, typer.Argument(help="TensorFlow checkpoint: its prefix, its .index file or its folder.")
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/hinton2018"),
    limit: Annotated[
        int | None, typer.Option(min=1, help="Measure the accuracy on this many test samples.", show_default="all")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Convert the checkpoint released with Hinton et al. 2018; measure its accuracy if the smallNORB files are there.

    The checkpoint: https://storage.googleapis.com/capsule_toronto/norb_em_checkpoints.tar.gz
    """
    from robustcaps.cli.progress import TrainBars
    from robustcaps.cli.rendering import show_files, show_imported_card
    from robustcaps.training.import_weights import import_hinton2018

    with TrainBars(console) as bars:
        card = import_hinton2018(
            checkpoint, out=out, data_dir=data_dir, limit=limit, device=device, progress=bars.loading
        )
    show_imported_card(console, card)
    show_files(console, [out / f"{card.stem}.safetensors", out / f"{card.stem}.json"])
