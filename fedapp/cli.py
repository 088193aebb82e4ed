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
    methods: Annotated[list[str], typer.Argument(help="Methods to compare, e.g. fedsaf local.")],
    settings: Settings = None,
    clients: Clients = 10,
    rounds: Rounds = None,
    seed: Seed = None,
    out: Out = None,
    engine: Engine = "flower",
) -> None:
    """Run several methods on the same seed, data and partition, and print them side by side."""
    from fedapp.experiments import comparison

    with _honest():
        config = _config(settings, rounds, seed, out)
        _known_methods(methods)
        _print_outcome(comparison.compare(methods, config, clients, _engine(engine), _printer))


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


def _known_methods(names: list[str]) -> None:
    from fedapp.config import lookup
    from fedapp.strategies import METHODS

    for name in names:
        lookup(METHODS, name, "method")


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
