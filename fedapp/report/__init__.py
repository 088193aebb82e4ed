"""One self-contained report.html for a run or for a comparison of runs, made from their records alone."""

from fedapp.report.comparison import write_comparison
from fedapp.report.page import write_report

__all__ = ["write_comparison", "write_report"]
