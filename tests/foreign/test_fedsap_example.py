"""The example of FedSAP in a project of one's own runs as it stands."""

import os
import re
import runpy
from pathlib import Path

import pytest
import torch

from fedapp.config import SettingError
from fedapp.local_grid import LocalGrid
from fedapp.strategies import FedSAP

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedsap_in_your_project.py"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_trains_small_models_finds_both_kinds_of_cameras_and_leaves_a_whole_one(home, capsys):
    names = runpy.run_path(os.fspath(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert float(re.search(r"small models ([\d.]+)", printed)[1]) > 0.6  # three kinds of bars
    cameras = re.findall(r"camera (\d): group (\d), (\d+) parameters", printed)
    assert [camera for camera, _, _ in cameras] == ["0", "1", "2", "3"]
    (a, b, c, d), sizes = (group for _, group, _ in cameras), [int(size) for _, _, size in cameras]
    assert a == c != b == d
    whole = names["CameraNet"]()
    assert sizes[0] == sizes[1] == sum(p.numel() for p in whole.parameters())
    assert sizes[3] < 0.25 * sizes[0] < sizes[2] < 0.5 * sizes[0]
    whole.load_state_dict(torch.load("camera.pt", weights_only=True))
    held = names["pictures"](0, 500)
    with torch.no_grad():
        assert float((whole.eval()(held.x).argmax(dim=1) == held.y).float().mean()) > 0.34


def test_a_server_without_the_model_itself_says_what_to_pass(home):
    names = runpy.run_path(os.fspath(EXAMPLE), run_name="example")
    with pytest.raises(SettingError, match=r"FedSAP\(build=lambda client, name: MyModel\(\)\)"):
        FedSAP().start(LocalGrid(names["app"], 2), num_rounds=1)
