"""How soon the command line answers.

Measured: wall time of `fedapp --help` in a fresh process, and of `python -c pass` beside it in turns, which is Python's
own share. Then which of the heavy modules a `--help` imports.

Target: less than 0.6 s, and no heavy module.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import sysconfig
import time

from measure import HEADER, print_table, start

HEAVY = ("torch", "torchvision", "flwr", "ray", "datasets", "pandas", "scipy", "sklearn", "matplotlib", "numpy")
LIST_IMPORTS = """
import sys
sys.argv = ["fedapp", "--help"]
from fedapp.cli import main
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def commands() -> dict[str, list[str]]:
    """Return the processes to time, by name."""
    script = shutil.which("fedapp", path=sysconfig.get_path("scripts"))
    entries = {"python -m fedapp.cli --help": [sys.executable, "-m", "fedapp.cli", "--help"]}
    if script:
        entries = {"fedapp --help": [script, "--help"], **entries}
    return {**entries, "python -c pass": [sys.executable, "-c", "pass"]}


def wall_seconds(command: list[str]) -> float:
    before = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - before


def main() -> None:
    quick = start(__doc__)
    seconds: dict[str, list[float]] = {name: [] for name in commands()}
    for _ in range(1 if quick else 20):
        for name, command in commands().items():
            seconds[name].append(wall_seconds(command))
    rows = [
        (f"{name}, s", f"{min(spent):.2f}", f"{statistics.median(spent):.2f}", "< 0.60" if "fedapp" in name else "")
        for name, spent in seconds.items()
    ]
    print_table(HEADER, rows)
    listing = subprocess.run([sys.executable, "-c", LIST_IMPORTS], check=True, capture_output=True, text=True)
    imported = set(listing.stderr.split())
    print("heavy modules imported:", ", ".join(name for name in HEAVY if name in imported) or "none")


if __name__ == "__main__":
    main()
