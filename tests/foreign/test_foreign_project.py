"""A project of somebody else, with its own model and data, runs on our public names alone."""

import re
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedapp.local_grid import LocalGrid
from tests.foreign.foreign_app import client_app, same_model, server_app

PROJECT = Path(__file__).parent / "foreign_app"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(server, client, home, **options):
    """Run both apps and return (run, client) of everybody who trained the last round."""
    server(LocalGrid(client, 3, **options), Context(1, 0, {}, RecordDict(), {}))
    kept = (home / ".fedapp").glob("*/clients/*/round-0000000[26].safetensors")
    return sorted((path.parts[-4], path.parts[-2]) for path in kept)


@pytest.mark.parametrize("serialise", [False, True])
def test_clients_with_unlike_models_run_fedsaf(home, caplog, serialise):
    trained = run(server_app.app, client_app.app, home, serialise=serialise)
    assert [client for _, client in trained] == ["0", "1", "2"]
    assert trained[0][0].startswith("fedsaf-")
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_one_model_is_averaged_from_initial_arrays(home, capsys):
    torch.manual_seed(0)
    assert len(run(same_model.server, same_model.client, home)) == 3
    accuracy = float(re.search(r"accuracy ([\d.]+)", capsys.readouterr().out).group(1))
    assert accuracy > 0.6  # three blobs far apart


def test_both_apps_are_at_most_ten_lines():
    for name in ("client_app.py", "server_app.py"):
        lines = [line for line in (PROJECT / name).read_text(encoding="utf-8").splitlines() if line.strip()]
        assert len(lines) <= 10


def test_the_project_imports_only_public_names():
    for path in PROJECT.glob("*.py"):
        for module, names in re.findall(r"from (fedapp[\w.]*) import (.+)", path.read_text(encoding="utf-8")):
            assert module in ("fedapp", "fedapp.node", "fedapp.strategies", "fedapp.config")
            assert not any(name.strip().startswith("_") for name in names.split(","))
