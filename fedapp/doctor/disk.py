"""Check: is there room for what the clients keep between rounds?"""

from __future__ import annotations

import shutil
from pathlib import Path

from fedapp import paths
from fedapp.doctor.base import Case, Finding, SkippedError, UnwellError, size
from fedapp.memory import KEPT_ROUNDS

SCRATCH = 1


def look(case: Case) -> str:
    """Compare the clients' memory and the models to be saved with the free space of ``out``."""
    if not case.assigned:
        raise SkippedError("skipped: the models' sizes are not known")
    config = case.config
    models = sum(facts.nbytes for facts in case.assigned)
    need = needed(models, config.num_server_rounds, config.save_client_models)
    folder = existing(Path(paths.resolve(config.out)))
    free = shutil.disk_usage(folder).free
    text = f"{case.clients} clients need up to {size(need)} on the disk of `out`, where {size(free)} are free"
    if need > free:
        cure = "free space there, set out to a folder on another disk, or use fewer clients or smaller models"
        raise UnwellError(
            Finding(text, cure + (", or a larger save-client-models" if config.save_client_models else ""))
        )
    return text


def needed(models: int, rounds: int, save_every: int) -> int:
    """Return the bytes that a run may write for its clients' models.

    The last rounds are kept while one more is being written; ``save_every`` adds every k-th round and the best one. A
    method's own state beside the model, and the records (far below a MiB a round), are not counted.

    Args:
        models: Bytes of all clients' models together.
        rounds: Rounds of the run.
        save_every: The setting ``save-client-models``; 0 = off.

    Example:
        >>> needed(1000, rounds=10, save_every=5) - needed(1000, rounds=10, save_every=0)
        3000
    """
    saved = rounds // save_every + 1 if save_every else 0
    return models * (KEPT_ROUNDS + SCRATCH + saved)


def existing(folder: Path) -> Path:
    """Return ``folder`` or the nearest folder above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())
