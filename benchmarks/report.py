"""What a report of a long run costs: time and size.

Measured: CPU seconds of a fresh Python that writes the report of one run (so that importing counts, scikit-learn above
all), and the size of the page. The runs are made up, in the form the recorder writes: 20 clients, 300 rounds, all
optional parts there. With 10 classes about 200 prototypes are laid out; with 100 classes there are more than are drawn,
which is as slow as it gets. A comparison of four such runs is printed beside them.

Target: at most 5 s, and less than 3 MiB.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measure import HEADER, print_table, start

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.report.folders import make

SECONDS, MEBIBYTES = 5.0, 3.0
PATHS = "import sys; from pathlib import Path; import fedapp.report as report; paths = list(map(Path, sys.argv[1:]))"
ONE = f"{PATHS}; report.write_report(paths[0])"
SEVERAL = f"{PATHS}; report.write_comparison(paths[1:], paths[0])"


def cpu_seconds(code: str, paths: Sequence[Path]) -> float:
    """Return the CPU time of a fresh Python that runs ``code`` on ``paths``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(name: str, code: str, paths: Sequence[Path], page: Path, repeats: int) -> list[tuple[str, ...]]:
    """Return the rows of the table for one page."""
    spent = [cpu_seconds(code, paths) for _ in range(repeats)]
    size = f"{page.stat().st_size / 2**20:.2f} MiB"
    return [
        (f"{name}: time", f"{min(spent):.2f} s", f"{statistics.median(spent):.2f} s", f"<= {SECONDS:g} s"),
        (f"{name}: size", size, size, f"< {MEBIBYTES:g} MiB"),
    ]


def main() -> None:
    quick = start(__doc__)
    clients, rounds, repeats = (4, 20, 1) if quick else (20, 300, 5)
    table = []
    with tempfile.TemporaryDirectory() as home:
        for classes in (10, 100):
            folder = make(clients, rounds, classes, feature_dim=512).write(Path(home) / str(classes))
            table += rows(f"one run, {classes} classes", ONE, [folder], folder / "report.html", repeats)
        methods = ("fedsaf", "fedproto", "lg-fedavg", "local")
        several = [make(clients, rounds, method=name).write(Path(home) / name) for name in methods]
        page = Path(home) / "comparison.html"
        table += rows("comparison of four runs", SEVERAL, [page, *several], page, repeats)
    print_table(HEADER, table)


if __name__ == "__main__":
    main()
