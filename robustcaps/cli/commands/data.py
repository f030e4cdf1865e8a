"""robustcaps data: datasets as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import DataDir, console, examples


def register(app: typer.Typer) -> None:
    """Add the commands."""
    data = typer.Typer(help="Download and export datasets.", no_args_is_help=True)
    data.command(epilog=examples("robustcaps data get mnist --data-dir data"))(get)
    data.command(epilog=examples("robustcaps data export toys-as-norb --limit 100"))(export)
    app.add_typer(data, name="data")


def get(
    name: Annotated[str, typer.Argument(help="A dataset, e.g. mnist.")],
    data_dir: DataDir = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Download URL/DATASET/FILE instead; repeatable, tried in turn."),
    ] = None,
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified",
            help="smallnorb: accept TFRecords of unknown checksum if the official files are unavailable.",
        ),
    ] = False,
) -> None:
    """Download the official files of a dataset, checked by SHA-256; the same command resumes a download."""
    from robustcaps.cli.progress import DownloadBars
    from robustcaps.data.download import get_data

    with DownloadBars(console) as bars:
        files = get_data(name, data_dir=data_dir, mirrors=mirror or (), unverified=unverified, progress=bars)
    if not files:
        console.print(f"{name} is built in: there is nothing to download.", highlight=False)


def export(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")],
    limit: Annotated[int | None, typer.Option(min=1, help="How many pairs to write.", show_default="all")] = None,
) -> None:
    """Write the built-in toys as files in the official smallNORB format; the smallnorb dataset reads them."""
    from robustcaps.cli.progress import TrainBars
    from robustcaps.cli.rendering import show_files
    from robustcaps.data.export import export_toys

    with TrainBars(console) as bars:
        export_toys(folder, limit=limit, progress=bars.loading)
    show_files(console, sorted(folder.iterdir()))
