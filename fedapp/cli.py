"""The command line. Heavy imports wait until they are needed, so that ``--help`` answers at once."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Federated learning on devices that are not alike: FedSAF, FedSAP and the methods they are compared with.",
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; repeat it for more. See `fedapp settings`."),
]
Clients = Annotated[int, typer.Option(min=1, help="Simulated clients.")]
Rounds = Annotated[int | None, typer.Option(min=0, help="Communication rounds.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of weights, batches and sampling.")]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="Folder for results.")]
SettingsFile = Annotated[str | None, typer.Option(metavar="FILE.yaml", help="Settings; --set wins over them.")]
By = Annotated[list[str] | None, typer.Option(help="Settings that tell rows or lines apart, as method,models.")]
Engine = Annotated[str, typer.Option(help="flower = Flower's simulation with Ray; local = this process.")]


@app.command()
def run(
    settings: Settings = None,
    clients: Clients = 10,
    rounds: Rounds = None,
    seed: Seed = None,
    out: Out = None,
    engine: Engine = "flower",
) -> None:
    """Run one experiment, e.g. `fedapp run --clients 10 --set method=fedsaf --set method-params="alignment=rcsa"`."""
    from fedapp import runner

    with _honest():
        config = _config(settings, rounds, seed, out)
        folder = runner.run(config, clients, _engine(engine), _printer(config.method))
        _print_outcome([folder])


@app.command()
def compare(
    methods: Annotated[
        list[str], typer.Argument(help='Methods, with settings of their own if need be: "fedsaf alignment=rcsa" local.')
    ],
    settings: Settings = None,
    clients: Clients = 10,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="Training seeds, as 0,1,2; an interval needs three.")] = "0",
    out: Out = None,
    engine: Engine = "flower",
    config: SettingsFile = None,
    name: Annotated[str, typer.Option(help="Name of the folder; an unfinished comparison is continued.")] = "",
) -> None:
    """Run several methods on the same seeds, data and partition, and put them side by side.

    The table, paired differences to the first method and a figure land in OUT/NAME/, the runs below it.
    """
    from fedapp.experiments import commands

    with _honest():
        given = commands.settings_of(settings or [], config)
        options = {"num-server-rounds": rounds, "out": out}
        values = {**given, **{key: value for key, value in options.items() if value is not None}}
        chosen = commands.seeds_of(seeds) or (0,)
        commands.compare(methods, values, clients, chosen, _engine(engine), name, typer.echo)


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
def methods() -> None:
    """List the methods: what each does, what it needs and what travels."""
    from fedapp.strategies import METHODS

    for method in METHODS.values():
        needs = ", ".join(need for need in method.strategy.requires if need != "equal-classes") or "any models"
        typer.echo(f"{method.name:12} {method.summary}; needs {needs}; travels: {method.travels}. [{method.paper}]")


@app.command()
def models() -> None:
    """List the models and the groups of models."""
    from fedapp.models import GROUPS, MODELS

    for name, entry in MODELS.items():
        typer.echo(f"{name:16} {entry.summary}")
    for name, members in GROUPS.items():
        typer.echo(f"{name:16} group: {', '.join(members)}")


@app.command()
def datasets() -> None:
    """List the data sets."""
    from fedapp.datasets import DATASETS

    for name, source in DATASETS.items():
        typer.echo(f"{name:16} {source.summary}")


@app.command()
def settings() -> None:
    """List every setting with its default."""
    from fedapp.config import RunConfig, defaults, keys

    for key, field in keys(RunConfig).items():
        choices = f" ({' | '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
        typer.echo(f"{key} = {defaults(RunConfig)[key]!r}{choices}: {field.metadata['doc']}")


# ---- parts ---------------------------------------------------------------------------------------


class _honest:  # noqa: N801 - reads as a word in `with _honest():`
    """Turn an expected failure into one clear line and a non-zero exit."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        from fedapp.config import SettingError
        from fedapp.runner import RunFailedError

        if isinstance(error, SettingError | RunFailedError | ModuleNotFoundError):
            typer.secho(f"fedapp: {error}", fg="red", err=True)
            raise typer.Exit(2 if isinstance(error, SettingError) else 1) from error


def _config(settings: list[str] | None, rounds: int | None, seed: int | None, out: str | None) -> Any:
    from fedapp.config import RunConfig, SettingError, parse

    values: dict[str, Any] = {}
    for word in settings or []:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingError(f"--set takes key=value, got {word!r}")
        values[key] = value
    options = {"num-server-rounds": rounds, "seed": seed, "out": out}
    return parse(RunConfig, {**values, **{key: value for key, value in options.items() if value is not None}})


def _engine(name: str) -> str:
    from fedapp.config import lookup

    return lookup({"flower": "flower", "local": "local"}, name, "engine")


def _keys(words: list[str] | None) -> list[str]:
    return [key.strip() for word in words or [] for key in word.split(",") if key.strip()]


def _printer(method: str) -> Any:
    typer.echo(f"{method}: starting")

    def show(line: dict[str, Any]) -> None:
        accuracy = "-" if line["accuracy"] is None else f"{line['accuracy']:.4f}"
        failures = f", {line['failures']} failures" if line["failures"] else ""
        typer.echo(f"{method}: round {line['round']}, accuracy {accuracy}{failures}")

    return show


def _print_outcome(folders: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedapp.experiments import comparison

    table = Table(*comparison.COLUMNS)
    for row in comparison.rows(folders):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for folder in folders:
        typer.echo(f"Results: {folder}")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
