"""What the README shows runs as shown."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedapp import client_app, models, server_app
from fedapp.cli import app
from fedapp.config import RunConfig, flatten, parse
from fedapp.local_grid import LocalGrid
from fedapp.strategies import METHODS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(title: str) -> str:
    found = re.findall(rf"```python\n# {re.escape(title)}\n(.*?)```", README, flags=re.DOTALL)
    assert len(found) == 1, title
    return found[0]


def run_block(title: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": title}
    exec(compile(block(title), title, "exec"), namespace)
    return namespace


class Data:
    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(30, 6, generator=generator)
        self.y = torch.randint(0, 10, (30,), generator=generator)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        self.head = nn.Linear(5, 10)


def test_the_strategy_plugs_into_a_foreign_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    project = types.ModuleType("my_project")
    project.MyNet = Net  # type: ignore[attr-defined]
    project.load_data = lambda client: (Data(int(client)), Data(100 + int(client)))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_project", project)
    monkeypatch.setenv("HOME", str(tmp_path))
    grid = LocalGrid(run_block("client_app.py")["app"], 3)
    run_block("server_app.py")["main"](grid, None)
    kept = list(tmp_path.glob(".fedapp/*/clients/*/round-*.safetensors"))
    assert len(kept) == 3 * 2


def test_an_own_model_joins_the_table(tmp_path: Path) -> None:
    run_block("my_models.py")
    try:
        values = {"models": "my-net,small-cnn", "num-server-rounds": 1, "local-epochs": 1, "samples-per-client": 40}
        config = parse(RunConfig, {**values, "out": str(tmp_path)})
        recorder = server_app.run(LocalGrid(client_app.app, 2, flatten(config)), config)
        assert [info.model for info in recorder.clients.values()] == ["my-net", "small-cnn"]
        assert recorder.failures == []
    finally:
        models.MODELS.pop("my-net")


def test_the_python_interface_works_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_block("from_python.py")["run"]
    assert "report.html" in capsys.readouterr().out
    assert len(run.rounds) == 2


def test_every_command_of_the_readme_exists() -> None:
    shown = set(re.findall(r"fedapp (\w+)", " ".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL))))
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert shown <= commands
    assert {"run", "compare", "sweep", "doctor"} <= shown


@pytest.mark.parametrize("title", ["server_app.py", "client_app.py", "my_models.py"])
def test_each_example_has_at_most_ten_lines(title: str) -> None:
    assert len(block(title).strip().splitlines()) <= 10


def test_every_method_stands_in_the_table_with_its_file() -> None:
    for method in METHODS.values():
        file = method.strategy.__module__.removeprefix("fedapp.").replace(".", "/") + ".py"
        assert re.search(rf"\| `{method.name}` \|.*\| `{file}` \|", README), method.name
