"""``fedapp doctor``: what would go wrong with a run on this machine, each finding with its cure and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedapp.config import RunConfig, SettingError
from fedapp.doctor import data, disk, dryrun, packages, packing, ports, settings
from fedapp.doctor.base import Case, Finding, SkippedError, UnwellError

__all__ = ["CHECKS", "Outcome", "examine", "exit_code", "lines", "report"]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Its name.
        code: The exit code of its findings.
        look: Returns a line on what is well, or raises.
    """

    name: str
    code: int
    look: Callable[[Case], str]


# The worst comes first: of several findings the first one's code is the exit code.
CHECKS = (
    Check("settings", 2, settings.look),
    Check("packages", 10, packages.look),
    Check("data", 11, data.look),
    Check("partition", 12, data.look_at_partition),
    Check("models", 13, dryrun.look),
    Check("packing", 14, packing.look),
    Check("disk", 15, disk.look),
    Check("ports", 16, ports.look),
)


@dataclass(frozen=True)
class Outcome:
    """What one check found.

    Attributes:
        check: The check's name.
        code: The exit code that its findings give.
        detail: What is well, or why the check was skipped.
        findings: What is wrong; empty if nothing is.
        skipped: True if the check could not be made.
    """

    check: str
    code: int
    detail: str
    findings: tuple[Finding, ...] = ()
    skipped: bool = False


def examine(config: RunConfig, clients: int, checks: Sequence[Check] = CHECKS) -> list[Outcome]:
    """Make every check and return what each found.

    Args:
        config: The settings of the run to prepare.
        clients: Number of simulated clients.
        checks: Which checks, in order.
    """
    case = Case(config, clients)
    return [_outcome(check, case) for check in checks]


def _outcome(check: Check, case: Case) -> Outcome:
    try:
        return Outcome(check.name, check.code, check.look(case))
    except SkippedError as reason:
        return Outcome(check.name, check.code, str(reason), skipped=True)
    except UnwellError as error:
        findings = error.findings
    except SettingError as error:
        findings = (_finding(str(error)),)
    except Exception as error:  # a plugin's or a library's own trouble is a finding of this check
        findings = (Finding(f"{type(error).__name__}: {error}", "see the message; the other checks were made"),)
    return Outcome(check.name, check.code, findings[0].problem, findings)


def _finding(text: str) -> Finding:
    """Split a message of ours, which ends in the way out, into problem and cure."""
    problem, _, cure = text.rpartition("; ")
    return Finding(problem, cure) if problem else Finding(text, "change the setting")


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 0 if all is well, else the code of the first check with a finding."""
    return next((outcome.code for outcome in outcomes if outcome.findings), 0)


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    r"""Return what to print: a line a check, and below each finding its cure.

    Example:
        >>> bad = Outcome("disk", 15, "full", (Finding("full", "free some space"),))
        >>> print("\n".join(lines([Outcome("data", 11, "digits4: 10 samples"), bad])))
        ok     data       digits4: 10 samples
        wrong  disk       full (exit code 15)
                          cure: free some space
    """
    printed = []
    for outcome in outcomes:
        if not outcome.findings:
            printed.append(f"{'-' if outcome.skipped else 'ok':6} {outcome.check:10} {outcome.detail}")
        for finding in outcome.findings:
            printed.append(f"wrong  {outcome.check:10} {finding.problem} (exit code {outcome.code})")
            printed.append(f"{'':17} cure: {finding.cure}")
    return printed


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {"exit_code": exit_code(outcomes), "checks": [asdict(outcome) for outcome in outcomes]}
