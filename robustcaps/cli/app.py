"""The command line: parse, call the API, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from robustcaps.cli.arguments import assignments, class_word, eps_list, sample_numbers
from robustcaps.errors import PluginFailed, UserError
from robustcaps.suite.spec import LARGEST_SEED

app = typer.Typer(
    help="How robust are capsule networks against adversarial attacks, honestly, beside matched CNNs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Datasets as files.", no_args_is_help=True)
app.add_typer(data_app, name="data")
new_app = typer.Typer(help="Files to start a plugin of your own from.", no_args_is_help=True)
app.add_typer(new_app, name="new")
console = Console(emoji=False)  # cnn:a: is a name

SuiteFile = Annotated[
    Path, typer.Argument(help="A suite, such as benchmarks/quick.toml, or several: benchmarks/full.toml.")
]
OutFolder = Annotated[Path, typer.Argument(help="The out folder of a run.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Compiled = Annotated[
    bool,
    typer.Option("--compile/--no-compile", help="Compile networks as a whole: slow to begin, then quicker on a GPU."),
]
Autocast = Annotated[bool, typer.Option(help="Compute in bfloat16 outside of routing; less exact, quicker on a GPU.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where datasets lie.", envvar="ROBUSTCAPS_DATA", show_default="./data")
]
Plugins = Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with plugins; repeatable.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option, e.g. --set steps=20; repeatable.")
]


@app.command()
def run(
    suite: SuiteFile,
    out: Annotated[Path | None, typer.Option(help="Where results go.", show_default="out/<name of the suite>")] = None,
    engine: Annotated[str, typer.Option(help="local (this machine) or ray.")] = "local",
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images per pass; no result depends on it.")] = None,
    compiled: Compiled = False,
    autocast: Autocast = False,
) -> None:
    """Run a suite: train what it trains, attack every model, write tables and figures. Nothing finished is repeated."""
    from robustcaps.cli import console as show
    from robustcaps.cli.run_output import show_run
    from robustcaps.execution.runner import run as run_suite

    with show.RunBars(console) as bars:
        result = run_suite(
            suite,
            out,
            engine,
            device=device,
            data_dir=data_dir,
            plugins=plugin or (),
            batch_size=batch_size,
            compile=compiled,
            autocast=autocast,
            listener=bars,
            training_listener=bars.training,
        )
    show_run(console, result)
    if result.failures or result.untrained:
        raise typer.Exit(1)


@app.command()
def check(suite: SuiteFile, device: Device = "auto", data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """Check a suite without running it: every name, option, weight and dataset; say how long it will take."""
    from robustcaps.cli.run_output import show_checks
    from robustcaps.suite.resolve import RuntimeConfig

    show_checks(console, suite, RuntimeConfig(data_dir, device, tuple(plugin or ())))


@app.command("list")
def list_things(
    what: Annotated[str, typer.Argument(help="models, datasets, attacks, diagnostics, or all.")] = "all",
    pattern: Annotated[str, typer.Argument(help="Only names like this, e.g. 'foolbox.*'.", show_default="all")] = "*",
    plugin: Plugins = None,
) -> None:
    """List models, datasets, attacks and diagnostics, with their options."""
    from robustcaps.cli.listing import show_lists

    show_lists(console, what, pattern, plugin or [])


@app.command()
def attack(
    model: Annotated[str, typer.Argument(help="A model, e.g. cnn or cnn:b.")],
    use: Annotated[str, typer.Argument(metavar="ATTACK", help="An attack, e.g. fgsm, bim, pgd.")],
    eps: Annotated[str, typer.Option(help="One or several, e.g. 0.05,0.1.")] = "0.01,0.02,0.05,0.1",
    data: Annotated[str, typer.Option(help="A dataset.")] = "toys",
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="How many samples.")] = 200,
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    unit: Annotated[str, typer.Option(help="pixel or std (standard deviations of each image).")] = "pixel",
    goal: Annotated[str, typer.Option(help="untargeted or targeted.")] = "untargeted",
    target: Annotated[str | None, typer.Option(help="A class (name or number), every, least-likely, random.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A file of weights.", show_default="the shipped ones")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED)] = 0,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    rows: Annotated[Path | None, typer.Option(help="Write the rows, one per (sample, eps), to this CSV file.")] = None,
    settings: Settings = None,
    device: Device = "auto",
    compiled: Compiled = False,
    autocast: Autocast = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Attack one model with one attack and print its accuracy by eps."""
    from robustcaps.analysis.tables.summary import summarise, violations
    from robustcaps.attacks.evaluation import evaluate
    from robustcaps.cli import console as show
    from robustcaps.execution.execute_cell import explain
    from robustcaps.models.precision import Precision
    from robustcaps.registry import ATTACKS
    from robustcaps.suite.resolve import Resolver, RuntimeConfig
    from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec, parse_spec

    if rows is not None and not rows.absolute().parent.is_dir():
        raise UserError(f"--rows {rows}: there is no such folder.")
    wanted = {"use": use, "eps": eps_list(eps), "norm": norm, "unit": unit, "goal": goal, "target": class_word(target)}
    attack_spec = parse_spec(AttackSpec, {**wanted, **assignments(settings)})
    data_spec = parse_spec(DataSpec, {"use": data, "split": split, "limit": limit})
    precision = Precision(compile=compiled, autocast=autocast)
    resolver = Resolver(RuntimeConfig(data_dir, device, tuple(plugin or ()), precision))
    made = resolver.attack(attack_spec)
    network = resolver.model(parse_spec(ModelSpec, {"use": model, "weights": weights}), data_spec)
    with show.RunBars(console) as bars:
        samples = resolver.data(data_spec, bars.loading)
        progress = bars.counting(f"{model} / {data} / {use}")
        names: dict[str, Any] = {"model_name": model, "suite": "attack"}
        try:
            found = evaluate(network, samples, made, seed=seed, batch_size=batch_size, progress=progress, **names)
        except (Exception, SystemExit) as error:
            if isinstance(error, UserError) or ATTACKS.entry(use).built_in:
                raise
            raise PluginFailed(explain(error, use)) from error
    show.show_summary(console, summarise(found))
    show.show_violations(console, violations(found))
    if rows is not None:
        found.to_csv(rows, index=False)
        show.show_files(console, [rows])


@app.command()
def diagnose(
    model: Annotated[str, typer.Argument(help="A model, e.g. cnn or cnn:b.")],
    eps: Annotated[float, typer.Option(help="How far the attacks may go.")] = 0.1,
    data: Annotated[str, typer.Option(help="A dataset.")] = "toys",
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="How many samples.")] = 200,
    norm: Annotated[str, typer.Option(help="linf or l2.")] = "linf",
    loss: Annotated[str, typer.Option(help="What the attack in question climbs: ce, ce-scores or training.")] = "ce",
    steps: Annotated[int, typer.Option(min=1, help="How many steps the attack in question takes.")] = 20,
    check: Annotated[
        list[str] | None, typer.Option(help="A diagnostic; repeatable.", show_default="all of them")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file of weights.", show_default="the shipped ones")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED)] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write the checks to this CSV file.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Tell whether a model's robust accuracy can be trusted, or whether it hides from gradient attacks."""
    from robustcaps.cli import console as show
    from robustcaps.diagnostics.verdict import diagnose as examine
    from robustcaps.suite.resolve import Resolver, RuntimeConfig
    from robustcaps.suite.spec import DataSpec, ModelSpec, parse_spec

    if csv is not None and not csv.absolute().parent.is_dir():
        raise UserError(f"--csv {csv}: there is no such folder.")
    data_spec = parse_spec(DataSpec, {"use": data, "split": split, "limit": limit})
    resolver = Resolver(RuntimeConfig(data_dir, device, tuple(plugin or ())))
    network = resolver.model(parse_spec(ModelSpec, {"use": model, "weights": weights}), data_spec)
    attacked: dict[str, Any] = {"norm": norm, "loss": loss, "steps": steps}
    with show.RunBars(console) as bars:
        samples = resolver.data(data_spec, bars.loading)
        progress = bars.counting(f"{model} / {data}")
        verdict = examine(network, samples, eps, **attacked, checks=check, seed=seed, progress=progress)
    show.show_verdict(console, verdict.summary, verdict.checks)
    if csv is not None:
        verdict.checks.to_csv(csv, index=False)
        show.show_files(console, [csv])


@app.command()
def train(
    model: Annotated[str, typer.Argument(help="A model of the zoo, e.g. cnn.")],
    data: Annotated[str, typer.Option(help="A dataset.")] = "toys",
    data_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of it, e.g. views=familiar-azimuths; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where weights go.", show_default="runs/<data>-<model>-<tag>")
    ] = None,
    tag: Annotated[str, typer.Option(help="Tells weights of one model apart: 'cnn:b' is tag b.")] = "a",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED)] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, show_default="the model's recipe")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, show_default="the model's recipe")] = None,
    lr: Annotated[float | None, typer.Option(show_default="the model's recipe")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take only so many samples of each split.", show_default="all")
    ] = None,
    holdout: Annotated[
        int, typer.Option(min=0, help="Train instances per class held out for validation; 0 trains on all.")
    ] = 1,
    adversary_eps: Annotated[
        float | None,
        typer.Option(help="Train on adversarial images this far away (linf, pixels of [0,1]).", show_default="none"),
    ] = None,
    adversary_steps: Annotated[
        int | None, typer.Option(min=1, help="Gradient steps that find them.", show_default="none")
    ] = None,
    holdout_test: Annotated[
        int | None,
        typer.Option(min=1, help="Hold out so many test samples instead, the last ones.", show_default="none"),
    ] = None,
    stop_error: Annotated[
        float | None, typer.Option(help="Stop at this error (0 to 1) on held-out samples.", show_default="no stop")
    ] = None,
    half: Annotated[bool, typer.Option(help="Store float16.")] = True,
    resume: Annotated[bool, typer.Option(help="Go on where a killed training stopped.")] = True,
    settings: Settings = None,
    device: Device = "auto",
    compiled: Compiled = False,
    autocast: Autocast = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Train a model, with checkpoints; write its weights (safetensors) and a card (JSON)."""
    from robustcaps.cli import console as show
    from robustcaps.registry import load_plugin
    from robustcaps.training import train as train_model

    for path in plugin or ():
        load_plugin(path)
    folder = out or Path("runs") / f"{data}-{model}-{tag}"
    with show.TrainBars(console) as bars:
        card = train_model(
            model,
            out=folder,
            data=data,
            data_options=assignments(data_set, "--data-set"),
            options=assignments(settings),
            tag=tag,
            seed=seed,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            limit=limit,
            holdout=holdout,
            adversary_eps=adversary_eps,
            adversary_steps=adversary_steps,
            holdout_test=holdout_test,
            stop_error=stop_error,
            half=half,
            resume=resume,
            data_dir=data_dir,
            device=device,
            compile=compiled,
            autocast=autocast,
            listener=bars,
        )
    low, high = card.interval
    robust = "" if card.robust_accuracy is None else f"{100 * card.robust_accuracy:.1f} % at eps {card.adversary_eps}, "
    console.print(
        f"{card.name} on {card.data}: test accuracy {100 * card.accuracy:.2f} % "
        f"({100 * low:.2f} to {100 * high:.2f}, n = {card.n_test}), {robust}"
        f"{card.parameters:,} parameters, {card.seconds:.0f} s.",
        soft_wrap=True,
    )
    show.show_files(console, [folder / f"{card.stem}.safetensors", folder / f"{card.stem}.json", folder / "log.csv"])


@app.command()
def table(
    out: OutFolder, markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste.")] = False
) -> None:
    """Make all tables (CSV and Markdown) again from the stored rows, and print the first."""
    from robustcaps.analysis.collection import parts_of, write_overview
    from robustcaps.analysis.results import read_table, read_verdicts, write_tables
    from robustcaps.analysis.tables.diagnoses import verdicts_markdown
    from robustcaps.analysis.tables.summary import table_markdown
    from robustcaps.cli import console as show

    files = []
    for part in parts_of(out):
        files += write_tables(part)
        summary, verdicts = read_table(part), read_verdicts(part)
        if markdown:
            if not summary.empty:
                typer.echo(table_markdown(summary))
            if not verdicts.empty:
                typer.echo(verdicts_markdown(verdicts))
        else:
            show.show_summary(console, summary)
            show.show_verdicts(console, verdicts)
    files += write_overview(out)
    if not markdown:
        show.show_files(console, files)


@app.command()
def figures(
    out: Annotated[
        Path | None,
        typer.Argument(help="The out folder of a run; with --model any folder.", show_default="out, with --model"),
    ] = None,
    published: Annotated[
        bool | None, typer.Option(help="Draw the papers' curves beside ours.", show_default="as the suite says")
    ] = None,
    routing: Annotated[
        bool, typer.Option("--routing", help="Draw what routing does to the votes instead (matrix capsules).")
    ] = False,
    decoder: Annotated[
        bool, typer.Option("--decoder", help="Draw what class capsules are decoded to instead (vector capsules).")
    ] = False,
    samples: Annotated[
        str | None,
        typer.Option(help="Which samples to look at, e.g. 0,7.", show_default="the first of three classes"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Which model to look at.", show_default="all models of the run")
    ] = None,
    data: Annotated[str | None, typer.Option(help="With --model: a dataset.", show_default="toys")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="With --model: a file of weights.", show_default="the shipped ones")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Draw the figures again from the stored rows; or look inside capsule networks, with --routing or --decoder."""
    from robustcaps.analysis.collection import parts_of
    from robustcaps.analysis.results import write_figures
    from robustcaps.cli import console as show
    from robustcaps.introspection import pictures
    from robustcaps.suite.resolve import Resolver, RuntimeConfig

    looking = routing or decoder
    if out is None and model is None:
        raise UserError("name the out folder of a run, or a model to look at with --model.")
    if not looking and (samples, model, data, weights) != (None,) * 4:
        raise UserError("--samples, --model, --data, --weights: say what to look at, with --routing or --decoder.")
    folder = out or Path("out")
    files = []
    if published is not None or not looking:
        files += [file for part in parts_of(folder) for file in write_figures(part, published=published)]
    if looking:
        chosen = None if samples is None else sample_numbers(samples)
        resolver = Resolver(RuntimeConfig(data_dir, device, tuple(plugin or ())))
        subjects = pictures.find_subjects(folder, model, data=data, weights=weights, samples=chosen)
        kinds = {"routing": routing, "decoder": decoder}
        with show.RunBars(console) as bars:
            looks = pictures.write_album(subjects, folder, resolver, **kinds, samples=chosen, progress=bars.loading)
        for note in looks.notes:
            console.print(f"not drawn: {escape(note)}", soft_wrap=True, highlight=False)
        files += looks.files
    show.show_files(console, files)


@app.command()
def report(out: OutFolder) -> None:
    """Write report.html again: one page with the figures, the numbers and how they came about; the tables, too."""
    from robustcaps.analysis.collection import parts_of, write_overview
    from robustcaps.analysis.results import write_report, write_tables
    from robustcaps.cli import console as show

    files = []
    for part in parts_of(out):
        files += [*write_tables(part), write_report(part)]
    show.show_files(console, [*files, *write_overview(out)])


@new_app.command("attack")
def new_attack(
    name: Annotated[str, typer.Argument(help="What it will be called, e.g. my-attack.")],
    folder: Annotated[Path, typer.Option(help="Where the two files go.")] = Path(),
) -> None:
    """Write a working attack of your own and a test for it, to be changed at will."""
    from robustcaps.cli import console as show
    from robustcaps.cli.scaffold import write_attack

    plugin, test = write_attack(name, folder)
    show.show_files(console, [plugin, test])
    console.print("Try them:")
    for command in (f"robustcaps attack cnn-small {name} --plugin {plugin}", f"python -m pytest {test}"):
        console.print(f"  {command}", soft_wrap=True, highlight=False)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A dataset, e.g. mnist.")],
    data_dir: DataDir = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Fetch URL/DATASET/FILE instead of the official files; repeatable, tried in turn."
        ),
    ] = None,
) -> None:
    """Download the official files of a dataset, checked by SHA-256; the same command goes on where one stopped."""
    from robustcaps.cli import console as show
    from robustcaps.data.download import get_data

    with show.DownloadBars(console) as bars:
        files = get_data(name, data_dir=data_dir, mirrors=mirror or (), listener=bars)
    if not files:
        console.print(f"{name}: built in; there is nothing to get.", highlight=False)


@data_app.command("export")
def data_export(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many pairs.", show_default="all")] = None,
) -> None:
    """Write the built-in toys as files in the official smallNORB format; the smallnorb dataset reads them back."""
    from robustcaps.cli import console as show
    from robustcaps.data.export import export_toys

    with show.TrainBars(console) as bars:
        export_toys(folder, limit=limit, progress=bars.loading)
    show.show_files(console, sorted(folder.iterdir()))


def main() -> None:
    """Run the command line; what a user got wrong is one line on stderr and exit code 2, what a plugin did, 1."""
    try:
        app()
    except UserError as error:
        Console(stderr=True, emoji=False).print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
    except OSError as error:
        Console(stderr=True, emoji=False).print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
    except PluginFailed as error:
        Console(stderr=True, emoji=False).print(
            f"[red]failed[/]: {escape(str(error))}", soft_wrap=True, highlight=False
        )
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True, emoji=False).print("interrupted; the same command goes on where it stopped.")
        sys.exit(130)
