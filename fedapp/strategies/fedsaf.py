"""FedSAF (arXiv 2605.05959): clients of different architectures align the *structure* of class prototypes.

Idea: clients exchange prototypes as in FedProto, but are pulled towards the relations between the global prototypes
instead of their coordinates, on the level of batch prototypes and on the level of samples.

Eq. 3 (global prototypes) -> ``prototypes.MeanPrototypes``; Eq. 8-10 -> ``functional.alignment.procrustes_split``;
Eq. 11, 12 -> ``structural``; Eq. 13 -> ``gcsa``; Eq. 14 -> ``rcsa``; Eq. 15-18 -> ``two_level``; Eq. 19 -> ``loss``.

Travels: prototypes of held classes, rows (H, D) + class ids (H,) + counts (H,); byte for byte as FedProto. Equals
``local`` at ``proto-weight=0 inst-weight=0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.client_update import LabelledSamples, Local
from fedapp.config import SettingError, lookup, setting
from fedapp.functional.alignment import ALIGNMENTS, Structure, cosine_discrepancy, structural, two_level
from fedapp.payload import Arrays
from fedapp.strategies.base import Method
from fedapp.strategies.prototypes import PrototypeParams, PrototypeStrategy, PrototypeUpdate

DEFAULT_WEIGHTS = {"mse": 0.1, "cosine": 1.0}
STRUCTURAL_WEIGHT = 10.0
MIN_ROWS = 2
"""One row has no relations: an operator of one's own carries a signal from two rows on."""


@dataclass(frozen=True)
class FedSAFParams(PrototypeParams):
    """Parameters of FedSAF."""

    alignment: str = setting("gcsa", "what is aligned: gcsa, rcsa, mse, cosine, or one registered by a plugin")
    proto_weight: float = setting(
        -1.0, "weight (λ) of the prototype level; -1 = 10 (structural), 0.1 (mse), 1 (cosine)", low=-1
    )
    inst_weight: float = setting(
        -1.0, "weight (γ) of the instance level; -1 = 10 (structural), 0.1 (mse), 1 (cosine)", low=-1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup(ALIGNMENTS, self.alignment, "alignment")
        for name in ("proto_weight", "inst_weight"):
            value = getattr(self, name)
            if -1 < value < 0:
                raise SettingError(f"{name.replace('_', '-')} must be at least 0, or -1 for the default, got {value}")
            if value == -1:
                object.__setattr__(self, name, DEFAULT_WEIGHTS.get(self.alignment, STRUCTURAL_WEIGHT))


class FedSAFUpdate(PrototypeUpdate):
    """Cross-entropy plus the two levels of alignment."""

    def __init__(self, params: Any, local: Local) -> None:
        super().__init__(params, local)
        self.alignment = ALIGNMENTS[params.alignment]
        self.min_rows: int | None = getattr(self.alignment, "keywords", {}).get("min_rows")
        self.tally = torch.zeros(4, device=local.device)
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return Eq. 19: L_sup + λ L_proto + γ L_inst."""
        z, logits = self.forward(self.model, x)
        self.observe(z, y)
        loss: Tensor = F.cross_entropy(logits, y)
        self.steps += 1
        weights: tuple[float, float] = (self.params.proto_weight, self.params.inst_weight)
        if self.prototypes is None or weights == (0, 0):
            return loss
        level = two_level(z, y, self.prototypes, self.known, self.alignment, self.min_rows)
        self.tally += torch.stack([value.detach().float() for value in level])
        return loss + weights[0] * level.proto + weights[1] * level.inst

    def end(self, samples: LabelledSamples) -> Arrays:
        """Report both losses and the share of batches in which each level was active; upload prototypes."""
        means = (self.tally / max(self.steps, 1)).tolist()
        names = ("proto-loss", "inst-loss", "proto-active", "inst-active")
        self.metrics.update(zip(names, means, strict=True))
        return super().end(samples)


class FedSAF(PrototypeStrategy):
    """The server of FedSAF; any :class:`~fedapp.strategies.prototypes.Construction` of prototypes fits."""

    name: ClassVar[str] = "fedsaf"
    params_type: ClassVar[type[FedSAFParams]] = FedSAFParams


def register_alignment(name: str, structure: Structure, discrepancy: Any = cosine_discrepancy) -> None:
    """Add an alignment of one's own: a structure operator (Eq. 11) and a discrepancy (Eq. 12).

    Args:
        name: Its name for the setting ``alignment``.
        structure: S: (n, d) -> descriptor.
        discrepancy: D: two descriptors -> scalar loss.

    Raises:
        SettingError: If another alignment has this name.
    """
    mine = partial(structural, structure=structure, discrepancy=discrepancy, min_rows=MIN_ROWS)
    kept = ALIGNMENTS.setdefault(name, mine)
    if kept is not mine and getattr(kept, "keywords", None) != mine.keywords:
        raise SettingError(f"alignment {name!r} exists already; give yours another name")


METHOD = Method(
    strategy=FedSAF,
    update=FedSAFUpdate,
    paper="Wu et al., FedSAF, arXiv 2605.05959",
    summary="align relations between classes instead of coordinates",
    travels="class prototypes",
)
