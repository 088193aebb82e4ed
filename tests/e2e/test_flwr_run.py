"""Plain ``flwr run .`` as a user types it: no wrapper, no environment variable, no network."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
QUICK = "num-server-rounds=2 local-epochs=1 batch-size=32 samples-per-client=60"


def flwr(environment: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["flwr", *words], env=environment, cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


def latest_status(environment: dict[str, str], cwd: Path) -> str:
    runs = json.loads(flwr(environment, cwd, "list", "--format", "json").stdout)["runs"]
    return max(runs, key=lambda run: int(run["pending-at"].translate(str.maketrans("", "", "-: Z"))))["status"]


def test_plain_flwr_run_works_offline_with_two_nodes_and_relative_results_go_to_the_users_directory(
    plain_flower: dict[str, str], tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        done = flwr(plain_flower, folder, "run", str(REPOSITORY), "--stream", "--run-config", f"{QUICK} run-name='one'")
        assert "Results:" in done.stdout, done.stdout + done.stderr
        assert "num-supernodes=10" in done.stdout
        summary = json.loads((folder / "fedapp-runs" / "one" / "summary.json").read_text())
        assert (summary["rounds"], summary["num_clients"], summary["failures"]) == (2, 2, [])
        assert 0 <= summary["accuracy"]["last"] <= 1
    assert latest_status(plain_flower, here) == "finished:completed"
    first, second = (json.loads((folder / "fedapp-runs/one/summary.json").read_text()) for folder in (here, there))
    assert first["model_sha256"] == second["model_sha256"]


def test_a_wrong_setting_ends_in_one_clear_line_and_a_failed_status(
    plain_flower: dict[str, str], tmp_path: Path
) -> None:
    done = flwr(plain_flower, tmp_path, "run", str(REPOSITORY), "--stream", "--run-config", "method='fedsaff'")
    assert "unknown method 'fedsaff'; valid names:" in done.stdout
    assert "did you mean fedsaf?" in done.stdout
    assert "Traceback" not in done.stdout
    assert latest_status(plain_flower, tmp_path) == "finished:failed"


def test_a_missing_torch_gives_one_clear_error(plain_flower: dict[str, str], tmp_path: Path) -> None:
    """Run the check in an interpreter that cannot find torch: what both apps do first."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
    )
    code = (
        "import logging\n"
        "try:\n    import fedapp.client_app\n"
        "except ImportError as error:\n    logging.error('stopped', exc_info=error)\n"
    )
    environment = {**plain_flower, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["python", "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "torch is not installed for" in done.stderr
    assert "--no-config" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_flower_bundle_builds_and_is_small(plain_flower: dict[str, str], tmp_path: Path) -> None:
    app = tmp_path / "fedapp-app"
    app.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, app / name)
    shutil.copytree(REPOSITORY / "fedapp", app / "fedapp", ignore=shutil.ignore_patterns("__pycache__"))
    done = flwr(plain_flower, tmp_path, "build", "--app", str(app))
    bundles = list(tmp_path.rglob("*.fab"))
    assert len(bundles) == 1, done.stdout + done.stderr
    assert bundles[0].stat().st_size < 10 * 2**20
