"""docs/own-data.md: every block of it runs as it stands."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from tests.datasets.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "own-data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```bash\n(.*?)```", PAGE, flags=re.DOTALL)


def test_page_shows_every_kind() -> None:
    shown = [re.search(r"dataset=(\S+)", commands) for _, commands in EXAMPLES]
    assert [match and match[1] for match in shown] == ["folder", "csv", "parquet", "hf-disk", "callable"]


@pytest.mark.parametrize(("code", "commands"), EXAMPLES, ids=lambda text: text.split()[0])
def test_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, commands: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(code, "own-data.md", "exec"), {})
    for command in commands.splitlines():
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        if "partition" in command:
            assert "a client holds 1 to 2 of 2 classes" in done.output
    sys.modules.pop("my_data", None)
