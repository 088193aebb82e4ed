"""The command line. Heavy imports wait until they are needed, so that ``--help`` answers at once."""

from __future__ import annotations

import json
import signal
import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Federated learning on devices that are not alike: FedSAF, FedSAP and the methods they are compared with.",
)

INTERRUPTED = 130

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; repeat it for more. See `fedapp settings`."),
]
Clients = Annotated[int | None, typer.Option(min=1, help="Simulated clients; 10 if not given.")]
Rounds = Annotated[int | None, typer.Option(min=0, help="Communication rounds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="Folder for results.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="A paper's data protocol; see `fedapp presets`.")]
SettingsFile = Annotated[str | None, typer.Option(metavar="FILE.yaml", help="Settings; --set wins over them.")]
By = Annotated[list[str] | None, typer.Option(help="Settings that tell rows or lines apart, as method,models.")]
Engine = Annotated[str, typer.Option(help="flower = Flower's simulation with Ray; local = this process.")]


@app.command()
def run(
    settings: Settings = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Annotated[str | None, typer.Option(help="Training seeds, as 0,1,2: one run each.")] = None,
    out: Out = None,
    engine: Engine = "flower",
    config: SettingsFile = None,
    preset: Preset = None,
    resume: Annotated[str | None, typer.Option(metavar="DIR", help="Continue the run in this folder.")] = None,
) -> None:
    """Run one experiment: `fedapp run --set method=fedsaf --set method-params="alignment=rcsa proto-weight=5"`.

    Exit code 0 only if the run completed; 1 with the cause if it failed, 2 for a wrong setting, 130 if interrupted.
    """
    from fedapp.experiments import commands, single

    with _honest():
        if resume:
            _only_with_new_runs({"--out": out, "--seeds": seeds, "--config": config, "--preset": preset})
            values = commands.settings_of(settings or [])
            single.resume(resume, _engine(engine), clients or 0, rounds, values)
            return
        values = _values(settings, config, rounds, out, preset)
        single.run(values, commands.seeds_of(seeds), clients or _clients_of(preset), _engine(engine))


@app.command()
def compare(
    methods: Annotated[
        list[str], typer.Argument(help='Methods, with settings of their own if need be: "fedsaf alignment=rcsa" local.')
    ],
    settings: Settings = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="Training seeds, as 0,1,2; an interval needs three.")] = "0",
    out: Out = None,
    engine: Engine = "flower",
    config: SettingsFile = None,
    preset: Preset = None,
    name: Annotated[str, typer.Option(help="Name of the folder; an unfinished comparison is continued.")] = "",
) -> None:
    """Run several methods on the same seeds, data and partition: `fedapp compare fedsaf local --seeds 0,1,2`.

    A method may carry settings of its own: `fedapp compare "fedsaf alignment=rcsa" "fedsaf alignment=mse"`.
    The table, paired differences to the first method and a figure land in OUT/NAME/, the runs below it.
    """
    from fedapp.experiments import commands

    with _honest():
        values = _values(settings, config, rounds, out, preset)
        chosen = commands.seeds_of(seeds) or (0,)
        commands.compare(methods, values, clients or _clients_of(preset), chosen, _engine(engine), name, typer.echo)


@app.command()
def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="A grid, or the name of a shipped one.")],
    settings: Settings = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds in place of the file's, as 0,1,2.")] = None,
    out: Out = None,
    engine: Annotated[str | None, typer.Option(help="flower or local, in place of the file's.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the runs and whether they are done.")] = False,
) -> None:
    """Run every combination of a grid of settings and seeds; started again, it goes on where it was.

    A run that breaks does not stop the others. `fedapp table` and `fedapp plot` show what is done at any time.
    """
    from fedapp.experiments import commands

    with _honest():
        chosen, folder = commands.seeds_of(seeds), out or "fedapp-runs"
        commands.sweep(
            file, words=settings or [], seeds=chosen, out=folder, engine=engine, only_list=only_list, say=typer.echo
        )


@app.command()
def table(
    folder: Annotated[str, typer.Argument(help="Folder of a sweep, of a comparison, or of several runs.")],
    by: By = None,
    columns: Annotated[str, typer.Option(help="Settings for columns, as dataset,dirichlet-alpha.")] = "",
    metric: Annotated[list[str] | None, typer.Option(help="best, last, last_ten, client_worst, mib_up ...")] = None,
) -> None:
    """Print and write the table of finished runs, beside the numbers that the grid expects. Reads records only."""
    from fedapp.experiments import commands

    with _honest():
        commands.table(folder, _keys(by), _keys([columns]), metric or ["best"], typer.echo)


@app.command()
def plot(
    folder: Annotated[str, typer.Argument(help="Folder of a sweep, of a comparison, or of several runs.")],
    by: By = None,
    metric: Annotated[str, typer.Option(help="best, last, last_ten, client_worst, mib_up ...")] = "best",
) -> None:
    """Draw curves, numbers and heat map of finished runs into FOLDER/figures, as SVG and PNG. Reads records only."""
    from fedapp.experiments import commands

    with _honest():
        commands.plot(folder, _keys(by), metric, typer.echo)


@app.command()
def partition(
    settings: Settings = None,
    clients: Clients = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw it too: .svg, .png or .pdf.")] = None,
    config: SettingsFile = None,
    preset: Preset = None,
) -> None:
    """Show who holds what before any training, clients by classes and by domains.

    `fedapp partition --clients 20 --set dataset=cifar10 --set dirichlet-alpha=0.5 --plot who.png`.
    """
    from fedapp.experiments import holdings

    with _honest():
        values = _values(settings, config, None, None, preset)
        holdings.show(values, clients or _clients_of(preset), plot, typer.echo)


@app.command()
def doctor(
    settings: Settings = None,
    clients: Clients = None,
    config: SettingsFile = None,
    preset: Preset = None,
    as_json: AsJson = False,
) -> None:
    """Look for what would go wrong with a run here: a line a check, and each finding with its cure.

    Exit code 0 if all is well, else that of the first finding: 2 settings, 10 packages, 11 data, 12 partition,
    13 models, 14 packing, 15 disk, 16 ports.
    """
    with _honest():
        from fedapp import doctor as doctors
        from fedapp.config import RunConfig, parse

        case = parse(RunConfig, _values(settings, config, None, None, preset))
        outcomes = doctors.examine(case, clients or _clients_of(preset))
        typer.echo(json.dumps(doctors.report(outcomes)) if as_json else "\n".join(doctors.lines(outcomes)))
        raise typer.Exit(doctors.exit_code(outcomes))


@app.command()
def report(folder: Annotated[str, typer.Argument(help="Folder of a run, finished or not.")]) -> None:
    """Write report.html of a run anew, from its records."""
    from pathlib import Path

    from fedapp.report import write_report

    with _honest():
        typer.echo(f"Report: {write_report(Path(folder))}")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: what each does, what it needs and what travels."""
    from fedapp.experiments import listings

    with _honest():
        listings.show(listings.methods(), as_json, typer.echo)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models and the groups of models."""
    from fedapp.experiments import listings

    listings.show(listings.models(), as_json, typer.echo)


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the papers' data protocols, with the habits that they copy and their clean siblings."""
    from fedapp.experiments import listings

    with _honest():
        listings.show(listings.presets(), as_json, typer.echo)


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the data sets."""
    from fedapp.experiments import listings

    listings.show(listings.datasets(), as_json, typer.echo)


@app.command()
def settings(as_json: AsJson = False) -> None:
    """List every setting with its default."""
    from fedapp.experiments import listings

    listings.show(listings.settings(), as_json, typer.echo)


# ---- parts ---------------------------------------------------------------------------------------


class _honest:  # noqa: N801 - reads as a word in `with _honest():`
    """Turn an expected failure into one clear line and a non-zero exit."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        from fedapp.config import SettingError
        from fedapp.environment import OneLineError, RunFailedError

        if isinstance(error, KeyboardInterrupt):
            typer.secho("fedapp: interrupted", fg="red", err=True)
            raise typer.Exit(INTERRUPTED) from error
        if isinstance(error, SettingError | RunFailedError | ModuleNotFoundError | OneLineError):
            typer.secho(f"fedapp: {error}", fg="red", err=True)
            raise typer.Exit(2 if isinstance(error, SettingError) else 1) from error


def _only_with_new_runs(options: dict[str, str | None]) -> None:
    from fedapp.config import SettingError

    if given := [name for name, value in options.items() if value is not None]:
        raise SettingError(
            f"{', '.join(given)} cannot go with --resume: a run is continued as it was begun, where it is"
        )


def _values(
    settings: list[str] | None, file: str | None, rounds: int | None, out: str | None, preset: str | None
) -> dict[str, Any]:
    """Return settings by key: the preset's, over them the file's, those of --set, and the options of their own.

    Which habits the preset copies goes to the terminal, past what a program may read.
    """
    from fedapp.config import SettingError
    from fedapp.datasets import presets
    from fedapp.experiments import commands

    options = {"num-server-rounds": rounds, "out": out}
    given = {key: value for key, value in options.items() if value is not None}
    own = {**commands.settings_of(settings or [], file), **given}
    if own.get("preset"):
        raise SettingError(f"preset = {own['preset']} sets nothing by itself; give --preset {own['preset']}")
    if not preset:
        return own
    values = presets.settings_of(preset, own)
    if habits := presets.habits_of(preset):
        typer.secho(habits, fg="yellow", err=True)
    return values


def _clients_of(preset: str | None) -> int:
    """Return how many clients there are if nobody says."""
    from fedapp.datasets import presets

    return presets.clients_of(preset)


def _engine(name: str) -> str:
    from fedapp.config import lookup

    return lookup({"flower": "flower", "local": "local"}, name, "engine")


def _keys(words: list[str] | None) -> list[str]:
    return [key.strip() for word in words or [] for key in word.split(",") if key.strip()]


def main() -> None:
    """Run the command line; a terminated command ends what it started, as an interrupted one does."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.path.insert(0, "")  # a plugin may lie where the user is, as for `python -m`
    app()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
