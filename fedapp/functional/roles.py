"""Channel roles of FedSAP: who keeps which channel, as Global, Private or Dropped (Selective Global Protection).

Per-channel arrays are flat, (U,) over all layers; ``slices`` says where each layer lies. The statistics that decide
live in :mod:`fedapp.functional.channel_statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ._checks import check_choice, check_finite, check_layers

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8

TargetMode = Literal["floor", "exact", "floor-cap"]

DROPPED, GLOBAL, PRIVATE = 0, 1, 2

_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)  # of the four roles in a byte


def select_active(
    utilities: Float[np.ndarray, " U"],
    counts: Int[np.ndarray, " L"],
    slices: Sequence[slice],
    *,
    sets: Sequence[Sequence[int]] | None = None,
    explore: Bool[np.ndarray, " U"] | None = None,
) -> Bool[np.ndarray, " U"]:
    """Choose the active channels of a client: in each layer the top n_l by utility, ties by index.

    Args:
        utilities: (U,), utilities u, finite; see ``channel_statistics.fill_missing``.
        counts: (L,), channels to keep in each layer, within [1, C].
        slices: L slices, where each layer lies.
        sets: Layers that share one mask, such as the writers of a residual stream; they need equal sizes and counts,
            and rank by the mean of their utilities.
        explore: (U,), channels that come first whatever their utility, see :func:`rotating_channels`.

    Returns:
        (U,), True where active.

    Raises:
        ValueError: If a utility is NaN or infinite, counts do not fit, or tied layers differ.

    Example:
        >>> select_active(np.array([0.1, 0.9, 0.5, 0.5]), np.array([1, 1]), [slice(0, 2), slice(2, 4)]).tolist()
        [False, True, True, False]
    """
    check_finite("utilities", utilities)
    check_layers(len(utilities), slices)
    _check_counts(counts, slices)
    explore = np.zeros(len(utilities), dtype=np.bool_) if explore is None else explore
    active = np.zeros(len(utilities), dtype=np.bool_)
    for tied in _tied(sets, counts, slices):
        scores = np.mean([utilities[slices[layer]] for layer in tied], axis=0)
        first = np.any([explore[slices[layer]] for layer in tied], axis=0)
        chosen = np.lexsort((-scores, ~first))[: counts[tied[0]]]  # the last key leads; stable, so ties go by index
        for layer in tied:
            active[slices[layer].start + chosen] = True
    return active


def rotating_channels(
    counts: Int[np.ndarray, " L"], slices: Sequence[slice], fraction: float, round_number: int
) -> Bool[np.ndarray, " U"]:
    """Mark the channels that exploration tries in a round: a window that moves through each layer by index.

    Over the rounds it takes ``fraction`` of a layer's budget n_l on average; while the budget stays, windows follow
    each other without gap, so every channel has its turn every C / (fraction n_l) rounds.

    Args:
        counts: (L,), channels to keep in each layer, within [1, C].
        slices: L slices, where each layer lies.
        fraction: Share of each layer's budget, in [0, 1]; 0 marks none.
        round_number: The round, from 1.

    Returns:
        (U,), True where a channel is to be tried.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> [rotating_channels(np.array([2]), [slice(0, 4)], 0.5, t).tolist().index(True) for t in (1, 2, 5)]
        [0, 1, 0]
    """
    if not 0 <= fraction <= 1 or round_number < 1:
        raise ValueError(f"fraction must be in [0, 1] and rounds count from 1, got {fraction} in round {round_number}")
    _check_counts(counts, slices)
    marked = np.zeros(slices[-1].stop, dtype=np.bool_)
    for count, layer in zip(counts, slices, strict=True):
        window = np.arange(int(fraction * count * (round_number - 1)), int(fraction * count * round_number))
        marked[layer.start + window % (layer.stop - layer.start)] = True
    return marked


def assign_roles(
    active: Bool[np.ndarray, " U"],
    dispersion: Float[np.ndarray, " U"],
    slices: Sequence[slice],
    *,
    tau: float = 0.05,
    global_target: float = 0.9,
    mode: TargetMode = "floor",
) -> UInt8[np.ndarray, " U"]:
    """Give each channel its role, Global, Private or Dropped: Selective Global Protection (FedSAP, Eq. 3).

    In each layer, active channels with d <= τ_var are Global, the others Private. At least round(g_target |A|) (half to
    even) of the active set A must be Global: with "floor", the lowest d among the others make up what is missing.
    "exact" takes the lowest d until the target and no more, so τ_var has no say; "floor-cap" does so too, but makes
    Private only what has d > 0: with a single group everything stays Global. Ties go by index.

    Args:
        active: (U,), the active set A.
        dispersion: (U,), smoothed dispersion d >= 0; read only where active. A channel without one yet counts as
            Global: give it 0.
        slices: L slices, where each layer lies.
        tau: Threshold τ_var >= 0.
        global_target: g_target in [0, 1].
        mode: "floor", "exact" or "floor-cap".

    Returns:
        (U,) uint8: DROPPED, GLOBAL or PRIVATE.

    Raises:
        ValueError: If the dispersion of an active channel is NaN or infinite, or an argument is out of range.

    Example:
        >>> active, d = np.array([True, True, True, False]), np.array([0.0, 0.9, 0.4, 0.0])
        >>> assign_roles(active, d, [slice(0, 4)], global_target=0.5).tolist()
        [1, 2, 1, 0]
    """
    check_choice("mode", mode, get_args(TargetMode))
    check_layers(len(active), slices)
    if dispersion.shape != active.shape:
        raise ValueError(f"active and dispersion must agree, got {active.shape} and {dispersion.shape}")
    if not (tau >= 0 and 0 <= global_target <= 1):
        raise ValueError(f"tau must be >= 0 and global_target in [0, 1], got {tau} and {global_target}")
    check_finite("dispersion of active channels (0 where there is none yet)", dispersion[active])
    roles = np.full(len(active), DROPPED, dtype=np.uint8)
    for layer in slices:
        channels = layer.start + np.flatnonzero(active[layer])
        channels = channels[np.argsort(dispersion[channels], kind="stable")]
        spread, needed = dispersion[channels], round(global_target * len(channels))
        stable = {"floor": int((spread <= tau).sum()), "exact": 0, "floor-cap": int((spread <= 0).sum())}[mode]
        shared = max(stable, needed)
        roles[channels[:shared]], roles[channels[shared:]] = GLOBAL, PRIVATE
    return roles


def pack_roles(roles: UInt8[np.ndarray, " U"]) -> UInt8[np.ndarray, " packed"]:
    """Pack roles for sending: two bits a channel, four channels a byte, the first in the lowest bits.

    Args:
        roles: (U,), each DROPPED, GLOBAL or PRIVATE.

    Returns:
        (ceil(U / 4),) uint8.

    Raises:
        ValueError: If a value is no role.

    Example:
        >>> pack_roles(np.array([1, 2, 0, 1, 2], dtype=np.uint8)).tolist()
        [73, 2]
    """
    _check_roles(roles)
    padded = np.zeros((-(-len(roles) // 4), 4), dtype=np.uint8)
    padded.flat[: len(roles)] = roles
    return np.asarray(np.bitwise_or.reduce(padded << _SHIFTS, axis=1))


def unpack_roles(packed: UInt8[np.ndarray, " packed"], total: int) -> UInt8[np.ndarray, " total"]:
    """Undo :func:`pack_roles`.

    Args:
        packed: (ceil(total / 4),) uint8.
        total: U, the number of channels.

    Raises:
        ValueError: If ``packed`` is not as long as ``total`` needs, or holds what is no role.

    Example:
        >>> unpack_roles(np.array([73, 2], dtype=np.uint8), 5).tolist()
        [1, 2, 0, 1, 2]
    """
    if packed.dtype != np.uint8 or packed.shape != (-(-total // 4),):
        raise ValueError(f"{total} roles take {-(-total // 4)} bytes, got {packed.dtype} of shape {packed.shape}")
    roles = ((packed[:, None] >> _SHIFTS) & np.uint8(3)).reshape(-1)
    _check_roles(roles)
    if roles[total:].any():
        raise ValueError(f"bits after role {total} must be 0; the roles were packed for more channels")
    return roles[:total]


def _tied(
    sets: Sequence[Sequence[int]] | None, counts: NDArray[np.integer], slices: Sequence[slice]
) -> Iterator[Sequence[int]]:
    """Yield the sets of layers that share a mask, then every other layer alone."""
    sets = sets or []
    named = [layer for tied in sets for layer in tied]
    if len(set(named)) != len(named):
        raise ValueError(f"sets must not share a layer, got {sets}")
    for tied in sets:
        if len({(slices[layer].stop - slices[layer].start, int(counts[layer])) for layer in tied}) > 1:
            raise ValueError(f"layers {list(tied)} share a mask, so sizes and counts must agree, got {counts[tied]}")
    yield from sets
    yield from ([layer] for layer in range(len(slices)) if layer not in named)


def _check_counts(counts: NDArray[np.integer], slices: Sequence[slice]) -> None:
    sizes = np.array([layer.stop - layer.start for layer in slices])
    if counts.shape != sizes.shape or not ((counts >= 1) & (counts <= sizes)).all():
        raise ValueError(f"counts must be within 1 and the layer's size, got {counts.tolist()} of {sizes.tolist()}")


def _check_roles(roles: NDArray[np.integer]) -> None:
    if roles.ndim != 1 or ((roles < DROPPED) | (roles > PRIVATE)).any():
        raise ValueError(f"roles must be {DROPPED}, {GLOBAL} or {PRIVATE}, got {np.unique(roles).tolist()}")
