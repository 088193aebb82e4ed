"""Every random stream derives from the run's seed and from what it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager


def derive(seed: int, *parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on the run's seed and on what the stream is for.

    The same on every machine and in every process; streams of different parts are independent.

    Args:
        seed: Seed of the run.
        *parts: What the stream is for, e.g. round, client id and purpose.

    Example:
        >>> derive(0, 3, "7", "batches") == derive(0, 3, "7", "batches") != derive(0, 4, "7", "batches")
        True
    """
    text = "\x1f".join([str(seed), *(f"{type(part).__name__}:{part}" for part in parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the block on torch's global random stream begun from ``seed``, and give the process its own back."""
    import torch

    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack trace for every idle backend
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        yield
