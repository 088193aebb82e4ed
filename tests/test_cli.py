"""The command line in one process; the real simulation is under tests/e2e."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.config import RunConfig, keys
from fedapp.strategies import METHODS

QUICK = ["--engine", "local", "--clients", "2", "--rounds", "1", "--set", "local-epochs=1"]
QUICK += ["--set", "samples-per-client=40", "--set", "feature-dim=32"]


@pytest.fixture(autouse=True)
def users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_help_names_every_command_and_imports_neither_torch_nor_flower() -> None:
    code = (
        "import sys\nfrom fedapp.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'flwr', 'ray', 'datasets'} & set(sys.modules), 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("run", "compare", "methods", "models", "datasets", "settings"))


def test_run_writes_results_below_the_users_directory(users_directory: Path) -> None:
    code, output = call("run", *QUICK, "--out", "results", "--seeds", "3")
    assert code == 0, output
    (summary,) = (users_directory / "results").glob("*/summary.json")
    loaded = json.loads(summary.read_text())
    assert (loaded["method"], loaded["seed"], loaded["rounds"], loaded["num_clients"]) == ("fedsaf", 3, 1, 2)
    assert f"Results: {summary.parent}" in output


def test_compare_puts_methods_side_by_side_on_one_seed(users_directory: Path) -> None:
    code, output = call("compare", "fedproto", "local", *QUICK)
    assert code == 0, output
    summaries = [json.loads(path.read_text()) for path in users_directory.glob("fedapp-runs/**/summary.json")]
    assert sorted(summary["method"] for summary in summaries) == ["fedproto", "local"]
    for summary in summaries:
        assert summary["method"] in output
        assert f"{100 * summary['accuracy']['last']:.2f}" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", *QUICK, "--set", "methd=local"], "unknown setting 'methd'"),
        (["run", *QUICK, "--set", "method=fedsaff"], "did you mean fedsaf?"),
        (["run", *QUICK, "--set", "method-params=alignment=gsca"], "unknown alignment 'gsca'"),
        (["run", *QUICK, "--set", "models=small-cn"], "did you mean small-cnn?"),
        (["run", *QUICK, "--set", "dataset=digit4"], "did you mean digits4?"),
        (["run", *QUICK, "--set", "local-epochs=0"], "local-epochs must be at least 1, got 0"),
        (["run", *QUICK, "--set", "local-epochs"], "--set takes key=value"),
        (["run", *QUICK, "--set", "data-root=no/such"], "data-root = "),
        (["run", *QUICK, "--set", "plugins=no_such_module"], "plugin 'no_such_module' cannot be imported"),
        (["run", *QUICK, "--engine", "locl"], "unknown engine 'locl'"),
        (["compare", "fedsaf", "lokal", *QUICK], "did you mean local?"),
        (["run", "--preset", "digits-papr"], "did you mean digits-paper?"),
    ],
)
def test_a_wrong_setting_ends_with_code_2_and_one_line_that_says_what_to_do(words: list[str], message: str) -> None:
    code, output = call(*words)
    assert code == 2, output
    assert message in output
    assert "Traceback" not in output


def test_the_listings_hold_every_entry() -> None:
    listed = call("methods")[1]
    assert all(name in listed for name in METHODS)
    assert "htfe9" in call("models")[1]
    assert "digits4" in call("datasets")[1]
    settings = call("settings")[1]
    assert all(f"{key} " in settings for key in keys(RunConfig))
    entries = {
        "methods": "fedsaf",
        "models": "htfe9",
        "datasets": "digits4",
        "presets": "pacs-paper",
        "settings": "seed",
    }
    for command, name in {**entries, "settings": "seed"}.items():
        assert name in [row["name"] for row in json.loads(call(command, "--json")[1])]


def test_a_preset_gives_settings_and_clients_over_which_the_command_line_wins(users_directory: Path) -> None:
    small = ["--engine", "local", "--rounds", "0", "--set", "dataset=digits4", "--set", "samples-per-domain=20"]
    code, output = call("run", "--preset", "pacs-clean", *small, "--set", "run-name=mine", "--set", "report=false")
    assert code == 0, output
    described = yaml.safe_load((users_directory / "fedapp-runs/mine/config.yaml").read_text())
    assert len(described["clients"]) == 4
    settings = described["settings"]
    assert (settings["dataset"], settings["augment"], settings["num-server-rounds"]) == ("digits4", "crop=8,flip", 0)
    assert settings["preset"] == "pacs-clean"
    assert "habits" not in output


def test_a_preset_says_which_habits_it_copies_where_no_program_reads(users_directory: Path) -> None:
    small = ["--set", "dataset=digits4", "--set", "samples-per-domain=20", "--set", "test-split=shared"]
    line = "pacs-paper copies habits of the paper's code: (1) images are cropped and mirrored once"
    for words in (
        ["run", "--engine", "local", "--rounds", "0", "--set", "run-name=mine", "--set", "report=false"],
        ["partition"],
        ["doctor", "--json"],
    ):
        done = CliRunner().invoke(app, [*words, "--preset", "pacs-paper", *small])
        (told,) = [told for told in done.stderr.splitlines() if line in told]
        assert told.endswith("pacs-clean does without")
        assert "habits" not in done.stdout
    described = yaml.safe_load((users_directory / "fedapp-runs/mine/config.yaml").read_text())
    assert described["settings"]["preset"] == "pacs-paper"


def test_a_preset_as_a_setting_is_refused_since_it_would_set_nothing(users_directory: Path) -> None:
    for words in (["run"], ["partition", "--preset", "pacs-clean"]):
        code, output = call(*words, "--set", "preset=office-paper")
        assert (code, "--preset office-paper" in " ".join(output.split())) == (2, True)
    (users_directory / "mine.yaml").write_text("base: {preset: office-paper}\n")
    code, output = call("sweep", "mine.yaml", "--list")
    assert (code, "preset = office-paper sets nothing by itself" in " ".join(output.split())) == (2, True)


def test_two_seeds_make_two_runs_and_a_file_gives_settings_over_which_the_command_line_wins(
    users_directory: Path,
) -> None:
    (users_directory / "mine.yaml").write_text(
        "method: fedproto\nmethod-params: {proto-weight: 2}\nlocal-epochs: 7\nrun-name: mine\n"
    )
    code, output = call("run", *QUICK, "--config", "mine.yaml", "--seeds", "0,1")
    assert code == 0, output
    for seed in (0, 1):
        described = yaml.safe_load((users_directory / f"fedapp-runs/mine-s{seed}/config.yaml").read_text())
        assert (described["settings"]["seed"], described["settings"]["local-epochs"]) == (seed, 1)
        assert described["method-params"]["proto-weight"] == 2.0
        assert f"fedproto, seed {seed}: 2 clients, 1 rounds" in output


def test_a_run_is_prolonged_from_the_command_line(users_directory: Path) -> None:
    assert call("run", *QUICK, "--set", "run-name=one")[0] == 0
    code, output = call("run", "--resume", "fedapp-runs/one", "--rounds", "2", "--engine", "local")
    assert code == 0, output
    assert json.loads((users_directory / "fedapp-runs/one/summary.json").read_text())["rounds"] == 2
    code, output = call("run", "--resume", "fedapp-runs/one", "--engine", "local", "--rounds", "2")
    assert (code, "is finished after 2 rounds; to prolong it, ask for more than 2" in output) == (2, True)
    code, output = call("run", "--resume", "fedapp-runs/one", "--out", "x", "--seeds", "3")
    assert (code, "--out, --seeds cannot go with --resume" in output) == (2, True)
