"""Every benchmark runs and prints its table; what the figures are is no test's business."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SLOW = {"runner"}  # starts real Flower processes, for minutes
FIGURES = {
    "alignment_step": "C=100: gcsa, added",
    "cli_start": "heavy modules imported:",
    "data": "crop and flip, images a second",
    "fedproto_round": "ours / bare",
    "fedsap_phases": "all, bn_stats amortised / local training",
    "fedsap_upload": "keep 0.2:",
    "local_engine": "allocated MB a round",
    "recording": "recording / round, CPU",
    "report": "comparison of four runs: time",
    "submodel_step": "peak memory, dense",
    "type_matched": "extract and aggregate / weighted mean",
}


def test_every_benchmark_is_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*FIGURES, *SLOW, "measure"}


@pytest.mark.parametrize("name", FIGURES)
def test_a_smoke_run_prints_the_table(name):
    command = [sys.executable, FOLDER / f"{name}.py", "--quick"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert FIGURES[name] in finished.stdout
    assert "minimum" in finished.stdout or name == "fedsap_upload"  # bytes do not vary
