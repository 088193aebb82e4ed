"""Check: do the installed packages fit each other, as their own metadata says?"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from fedapp.doctor.base import Case, Finding, UnwellError

ROOT = "fedapp"
Wanted = tuple[str, frozenset[str]]


def look(case: Case) -> str:
    """Walk the requirements of fedapp and of all that it needs."""
    seen, findings = inspect(ROOT)
    if findings:
        raise UnwellError(*findings)
    return f"{ROOT} and the {len(seen) - 1} packages that it needs fit each other"


def inspect(root: str, path: list[str] | None = None) -> tuple[set[str], list[Finding]]:
    """Compare every requirement below ``root`` with what is installed.

    Args:
        root: Distribution to begin with.
        path: Folders to look for distributions in; ``sys.path`` if None.

    Returns:
        The distributions seen, and what does not fit.
    """
    start = _distribution(root, path)
    if start is None:
        cure = "pip install it (`pip install -e .` in the clone)"
        return set(), [Finding(f"{root} is not installed as a package, so what it needs cannot be told", cure)]
    seen: set[str] = set()
    findings: dict[str, Finding] = {}
    waiting: list[Wanted] = [(root, frozenset())]
    walked: set[Wanted] = set()
    while waiting:
        wanted = waiting.pop()
        found = _distribution(wanted[0], path)
        if wanted in walked or found is None:
            continue
        walked.add(wanted)
        seen.add(wanted[0])
        for requirement in _requirements(found, wanted[1]):
            name = _canonical(requirement.name)
            if finding := _misfit(found, requirement, _distribution(name, path)):
                findings.setdefault(finding.problem, finding)
            waiting.append((name, frozenset(requirement.extras)))
    return seen, list(findings.values())


def _misfit(
    holder: importlib.metadata.Distribution,
    requirement: Requirement,
    found: importlib.metadata.Distribution | None,
) -> Finding | None:
    asks = f"{holder.metadata['Name']} {holder.version} needs {requirement.name}{requirement.specifier}"
    cure = f"pip install '{requirement.name}{requirement.specifier}'"
    if found is None:
        return Finding(f"{requirement.name} is not installed; {asks}", cure)
    if requirement.specifier.contains(found.version, prereleases=True):
        return None
    return Finding(f"{requirement.name} {found.version} is installed, but {asks}", cure)


def _requirements(found: importlib.metadata.Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a distribution, with the extras asked for, needs on this machine."""
    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def _distribution(name: str, path: list[str] | None) -> importlib.metadata.Distribution | None:
    return next(iter(importlib.metadata.distributions(name=name, path=sys.path if path is None else path)), None)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
