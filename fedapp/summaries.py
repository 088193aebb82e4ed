"""What the rounds of a run come to: best, last and tail of an accuracy, as plain data that files can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.functional.metrics import best_last_tail

HEADLINE, BY_PROTOTYPE = "accuracy", "prototype-accuracy"


def number_of(value: float | None) -> float | None:
    """Return a value that strict JSON can hold: what was not measured is null."""
    return None if value is None or not math.isfinite(value) else float(value)


def called(client: str, name: str | None) -> str:
    """Return what to call a client: its id, with its name in the data if it has one.

    Example:
        >>> called("0", "berlin"), called("1", None)
        ('0 (berlin)', '1')
    """
    return f"{client} ({name})" if name else client


def over_rounds(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return best, last and the mean of the last ten of a value over the rounds; None where there is nothing.

    Example:
        >>> over_rounds([0.25, None, 0.5])
        {'best': 0.5, 'last': 0.5, 'last_ten': 0.375}
    """
    numbers = [math.nan if value is None else value for value in values] or [math.nan]
    best, last, tail = best_last_tail(numbers)
    return {"best": number_of(best), "last": number_of(last), "last_ten": number_of(tail)}


def chosen_by_validation(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the test accuracy of the round with the best validation accuracy, if there was a validation part."""
    measured = [line for line in lines if line["evaluate"].get(f"validation-{HEADLINE}") is not None]
    if not measured:
        return {}
    return {"by_validation": max(measured, key=lambda line: line["evaluate"][f"validation-{HEADLINE}"])["accuracy"]}


def by_prototype(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the accuracy of the nearest prototype beside that of the head, if both were evaluated."""
    values = [line["evaluate"].get(BY_PROTOTYPE) for line in lines]
    return {"prototype_accuracy": over_rounds(values)} if any(value is not None for value in values) else {}


def over_evaluations(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, for models that are nobody's own, what their accuracies come to over the rounds.

    ``global_mean`` is the unweighted mean over the domains of one round, ``worst_domain`` the least of them; each
    domain's best may come from another round than theirs.
    """
    found = [line["evaluations"] for line in lines if line.get("evaluations")]
    names = dict.fromkeys(name for evaluations in found for name in evaluations)
    summary = {}
    for name in names:
        by_domain = [evaluations[name] for evaluations in found if evaluations.get(name)]
        domains = dict.fromkeys(domain for accuracies in by_domain for domain in accuracies)
        summary[name] = {
            "global_mean": over_rounds([sum(a.values()) / len(a) for a in by_domain]),
            "worst_domain": over_rounds([min(a.values()) for a in by_domain]),
            "domains": {d: over_rounds([a.get(d) for a in by_domain]) for d in domains},
        }
    return {"evaluations": summary} if summary else {}


def evaluations_in_words(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for every named evaluation of a summary: its mean over domains, and the domain that fares worst.

    Example:
        >>> lines = [{"evaluations": {"consensus": {"a": 0.5, "b": 0.25}}}]
        >>> evaluations_in_words(over_evaluations(lines))
        ['consensus: mean over domains best 0.3750, last 0.3750, mean of the last ten 0.3750; worst domain b 0.2500']
    """
    lines = []
    for name, found in sorted((summary.get("evaluations") or {}).items()):
        mean = found["global_mean"]
        worst = min(found["domains"], key=lambda domain: (found["domains"][domain]["last"], domain))
        lines.append(
            f"{name}: mean over domains best {mean['best']:.4f}, last {mean['last']:.4f}, mean of the last ten "
            f"{mean['last_ten']:.4f}; worst domain {worst} {found['domains'][worst]['last']:.4f}"
        )
    return lines
