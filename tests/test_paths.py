import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedapp import paths
from fedapp.config import SettingError


@pytest.fixture(autouse=True)
def _no_base(monkeypatch):
    monkeypatch.setattr(paths, "_base", None)


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Make entries as /proc has them: a command line and a link to a working directory."""
    entries = []

    def add(words, folder="", cwd=True, flower_home=""):
        entry = tmp_path / "proc" / str(100 + len(entries))
        entry.mkdir(parents=True)
        (entry / "cmdline").write_bytes("\0".join([*words, ""]).encode())
        home = f"FLWR_HOME={flower_home}\0" if flower_home else ""
        (entry / "environ").write_bytes(f"PATH=/bin\0{home}".encode())
        if cwd:
            (tmp_path / folder).mkdir(exist_ok=True)
            (entry / "cwd").symlink_to(tmp_path / folder)
        entries.append(entry)
        return entry

    monkeypatch.delenv("FLWR_HOME", raising=False)
    monkeypatch.setattr(paths, "_processes", lambda: entries)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return add


@pytest.mark.parametrize(
    "words",
    [
        ["/venv/bin/python", "/venv/bin/flwr", "run", ".", "--stream"],
        ["flwr", "run"],
        ["python3.11", "-m", "flwr", "run", "."],
        ["python", "-u", "/venv/bin/flwr", "run"],
        ["uv", "run", "flwr", "run", "."],
    ],
)
def test_relative_paths_mean_the_directory_of_the_command(processes, tmp_path, words):
    processes(["bash"], "elsewhere")
    processes(words, "project")
    assert paths.directory_of_user() == str(tmp_path / "project")


@pytest.mark.parametrize(
    "words",
    [
        ["/venv/bin/python", "/venv/bin/flwr", "log", "1"],
        ["/venv/bin/flower-superlink", "run"],
        ["vim", "notes.txt", "flwr run"],
        ["python", "train.py", "--name", "flwr", "run"],
        ["flwr"],
        [],
    ],
)
def test_other_commands_are_not_mistaken_for_it(processes, tmp_path, words):
    processes(words, "project")
    assert paths.directory_of_user() == str(tmp_path / "home")


def test_two_commands_in_one_directory_agree(processes, tmp_path):
    processes(["uv", "run", "flwr", "run"], "project")
    processes(["python", "/venv/bin/flwr", "run"], "project")
    assert paths.directory_of_user() == str(tmp_path / "project")


def test_two_commands_in_two_directories_cannot_be_told_apart(processes, tmp_path):
    processes(["flwr", "run"], "one")
    processes(["flwr", "run"], "two")
    assert paths.directory_of_user() == str(tmp_path / "home")


def test_a_process_that_is_gone_by_now_is_passed_over(processes, tmp_path):
    processes(["flwr", "run"], cwd=False)
    (processes(["flwr", "run"], "gone") / "cmdline").unlink()
    processes(["flwr", "run"], "project")
    assert paths.directory_of_user() == str(tmp_path / "project")


def test_another_users_command_is_not_ours(processes, tmp_path, monkeypatch):
    processes(["flwr", "run"], "project")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert paths.directory_of_user() == str(tmp_path / "home")


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="there is no /proc here")
def test_a_real_command_in_another_directory_is_found(tmp_path, monkeypatch):
    project = tmp_path / "my project"
    project.mkdir()
    command = tmp_path / "flwr"
    command.write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    process = subprocess.Popen(
        [sys.executable, str(command), "run", "."],
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        everybody = {entry.name for entry in paths._processes()}
        assert {str(process.pid), str(os.getpid())} <= everybody
        ours = [Path("/proc") / str(pid) for pid in (process.pid, os.getpid())]
        monkeypatch.setattr(paths, "_processes", lambda: ours)  # others may have commands of their own running
        assert paths.directory_of_user() == str(project)
    finally:
        process.stdin.close()
        process.wait(timeout=10)
    assert paths.directory_of_user() == str(Path.home())


def test_without_a_proc_the_home_directory_stands_in(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(FileNotFoundError(self)))
    assert paths.directory_of_user() == str(tmp_path)


def test_relative_paths_start_at_the_base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.resolve("out") == str(tmp_path / "out")
    paths.set_base(str(tmp_path / "user"))
    assert paths.resolve("out/../results") == str(tmp_path / "user" / "results")
    paths.set_base("")
    assert paths.base() == tmp_path / "user"


def test_absolute_paths_and_the_home_directory_do_not_depend_on_the_base(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    paths.set_base(str(tmp_path / "user"))
    assert paths.resolve(str(tmp_path / "x")) == str(tmp_path / "x")
    assert paths.resolve("~/x") == str(tmp_path / "home" / "x")
    assert paths.resolve("") == ""


def test_a_path_where_nothing_is_is_named_as_given_and_as_found(tmp_path):
    paths.set_base(str(tmp_path))
    (tmp_path / "data").mkdir()
    assert paths.existing("data", "data-root") == str(tmp_path / "data")
    assert paths.existing("", "data-root") == ""
    with pytest.raises(SettingError, match="data-root = 'dta' is not there") as caught:
        paths.existing("dta", "data-root")
    assert str(tmp_path / "dta") in str(caught.value)


def test_a_command_that_waits_for_another_superlink_is_passed_over(processes, tmp_path, monkeypatch):
    processes(["flwr", "run", "."], "mine", flower_home="/flower/mine")
    processes(["flwr", "run", "."], "other", flower_home="/flower/other")
    processes(["flwr", "run", "."], "default")
    monkeypatch.setenv("FLWR_HOME", "/flower/mine")
    assert paths.directory_of_user() == str(tmp_path / "mine")
    monkeypatch.delenv("FLWR_HOME")
    assert paths.directory_of_user() == str(tmp_path / "default")
