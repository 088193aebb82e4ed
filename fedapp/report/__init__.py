"""One self-contained report.html for a run or for a comparison of runs, made from their records alone."""

from fedapp.report.page import write_report

__all__ = ["write_report"]
