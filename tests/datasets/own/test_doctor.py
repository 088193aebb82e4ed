"""The doctor looks at own data by what they hold."""

import csv
from pathlib import Path

from fedapp import doctor
from fedapp.config import RunConfig, parse


def test_doctor_tries_models_on_the_shape_and_classes_of_own_data(tmp_path: Path) -> None:
    with (tmp_path / "pets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "label"), *((n, -n, "xyz"[n % 3]) for n in range(40))])
    values = {"dataset": "csv", "data-root": str(tmp_path), "models": "mlp", "feature-dim": 8, "partition": "iid"}
    checks = [check for check in doctor.CHECKS if check.name in ("data", "partition", "models")]
    data, partition, models = doctor.examine(parse(RunConfig, values), 3, checks)
    assert data.detail.startswith("csv: 40 samples of 2 in 3 classes")
    assert not partition.findings
    assert "features (B, 8) and scores (B, 3)" in models.detail


def test_doctor_leaves_models_out_where_own_data_are_not_there(tmp_path: Path) -> None:
    checks = [check for check in doctor.CHECKS if check.name in ("data", "models")]
    data, models = doctor.examine(parse(RunConfig, {"dataset": "csv", "data-root": str(tmp_path)}), 3, checks)
    assert "holds no *.csv" in data.findings[0].problem
    assert models.skipped
