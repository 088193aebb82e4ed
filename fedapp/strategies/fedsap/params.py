"""FedSAP's settings: every decision that the paper leaves open, in two profiles.

``paper`` is the most literal reading of the paper, ``edge`` what we measured to work; a setting that is given holds
under either. Both keep Table 3's main configuration. The fixed-mask reference of Tables 2 and 7 is ``profile=paper
budget.adaptive=false mask.freeze-after=10 sgp.tau=0.1 sgp.beta=0.3``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedapp.config import SettingError, check, closest, key_of, setting

SIGNALS = ("bn_stats", "conv1_grad", "layer1_grad", "layer2_grad", "layer3_grad")


@dataclass(frozen=True, init=False)
class FedSAPParams:
    """Parameters of FedSAP; the defaults that stand here are those of the profile ``edge``.

    Args:
        profile: "edge" or "paper".
        **changes: Any field, over the profile.

    Example:
        >>> FedSAPParams("paper").rounding, FedSAPParams("paper", rounding="largest-remainder").rounding
        ('ceil', 'largest-remainder')
    """

    profile: str = setting("edge", "what settings that are not given stand for", choices=("edge", "paper"))

    # which channels a client holds
    keep_ratios: str = setting(
        "1,0.8,0.6,0.4,0.2",
        "keep ratios (κ_i = 1 - ρ_i), dealt out cyclically to clients whose node-config has no keep-ratio",
        key="budget.keep-ratios",
    )
    adaptive: bool = setting(True, "spread a client's budget over the layers by utility", key="budget.adaptive")
    temperature: float = setting(1.0, "temperature (T) of the softmax over layers", key="budget.temperature", above=0)
    reading: str = setting(
        "ratio", "what the softmax weighs: keep ratios, or shares of all channels", key="budget.reading",
        choices=("ratio", "share"),
    )  # fmt: skip
    rounding: str = setting(
        "largest-remainder",
        "how ratios become channels: Eq. 2 exactly, or the paper's ceiling (at most one channel a layer more)",
        key="budget.rounding",
        choices=("largest-remainder", "ceil"),
    )
    multiple_of: int = setting(1, "channels of a layer come in multiples of this", key="budget.multiple-of", low=1)
    metric: str = setting(
        "channels",
        "what a keep ratio is a share of: channels (Eq. 2), or the full model's multiply-accumulates, parameters or "
        "training bytes, within which the submodel then stays",
        key="budget.metric",
        choices=("channels", "macs", "params", "train-bytes"),
    )
    coupling: str = setting(
        "none",
        "convolutions that share one mask: none, a projection with its block's last, all that write one stream",
        key="mask.coupling",
        choices=("none", "shortcut", "stage"),
    )
    exempt: str = setting("", "convolutions that keep all channels, by name, separated by commas", key="mask.exempt")
    every: int = setting(1, "assign masks and roles anew every so many rounds", key="mask.every", low=1)
    freeze_after: int = setting(0, "last round that changes masks and roles; 0 = never frozen", key="mask.freeze-after",
                                low=0)  # fmt: skip
    execution: str = setting(
        "compact", "train the small network, or the full one with masks (the same numbers)", key="mask.execution",
        choices=("compact", "masked"),
    )  # fmt: skip

    # what a channel is worth (Eq. 5)
    site: str = setting(
        "post-relu", "where activations are measured, about BatchNorm", key="stats.site",
        choices=("post-relu", "post-bn", "pre-bn"),
    )  # fmt: skip
    mode: str = setting(
        "eval-received",
        "when: one pass over the model as received, one after training, or while training",
        key="stats.mode",
        choices=("eval-received", "eval-trained", "train"),
    )
    gradient: str = setting(
        "l2",
        "magnitude of a channel's gradient: norm a weight, mean magnitude, magnitude of the mean, or that of the mean "
        "of weight times gradient",
        key="stats.gradient",
        choices=("l2", "mean-abs", "abs-mean", "taylor"),
    )
    normalisation: str = setting(
        "per-layer-minmax", "how magnitudes become comparable", key="stats.norm",
        choices=("per-layer-minmax", "per-layer-max", "per-layer-rank", "global-minmax", "zscore"),
    )  # fmt: skip
    activation_weight: float = setting(0.5, "weight (λ_a) of the activation", key="stats.lambda-a", low=0)
    gradient_weight: float = setting(0.5, "weight (λ_g) of the gradient", key="stats.lambda-g", low=0)
    utility_scope: str = setting(
        "global", "whose utility ranks a client's channels: its own, all clients', or half of each", key="util.scope",
        choices=("client", "global", "mix"),
    )  # fmt: skip
    missing: str = setting(
        "chain",
        "utility of a channel that a client did not hold: its last one, else other clients', else the layer's median; "
        "or at once the median",
        key="util.missing",
        choices=("chain", "median"),
    )
    explore: float = setting(0.0, "share of a layer's budget that goes to dropped channels in rotation",
                             key="mask.explore", low=0, high=0.5)  # fmt: skip
    ema_targets: str = setting(
        "dispersion+utility", "what is smoothed over rounds", key="ema.targets",
        choices=("dispersion", "dispersion+utility"),
    )  # fmt: skip

    # who shares it (Eq. 3, 6)
    tri_state: bool = setting(True, "Global and Private channels; false = one path, all Global", key="sgp.tri-state")
    protection: bool = setting(True, "hold the Global share at its target (SGP)", key="sgp.enabled")
    global_target: float = setting(0.9, "least share (g_target) of Global channels", key="sgp.global-target", low=0,
                                   high=1)  # fmt: skip
    target_mode: str = setting(
        "floor", "the target is the least share, the share itself, or the most", key="sgp.mode",
        choices=("floor", "exact", "floor-cap"),
    )  # fmt: skip
    tau: float = setting(0.05, "dispersion (τ_var) up to which a channel is stable", key="sgp.tau", low=0)
    beta: float = setting(0.5, "weight (β_EMA) of the past in what is smoothed", key="sgp.beta", low=0, high=1)
    beta_on: str = setting("old", "β weighs the old value, or the new one", key="sgp.beta-on", choices=("old", "new"))
    ddof: int = setting(0, "degrees of freedom taken off the variance of Eq. 6", key="sgp.ddof", low=0, high=1)
    role_scope: str = setting(
        "global", "roles are decided for each client, or once for all", key="sgp.role-scope",
        choices=("client", "global"),
    )  # fmt: skip

    # pseudo-domains (Eq. 4)
    grouping: bool = setting(True, "group clients (DGA); false = every client its own group", key="dga.enabled")
    signal: str = setting("bn_stats", "what groups clients", key="dga.signal", choices=SIGNALS)
    at: str = setting(
        "received-model", "where the signal is taken", key="dga.at", choices=("received-model", "after-local")
    )
    compare: str = setting(
        "joint", "entries that are compared: held by both clients, or all, dropped ones being 0", key="dga.compare",
        choices=("joint", "all"),
    )  # fmt: skip
    center: bool = setting(True, "take the clients' mean off the signals first", key="dga.center")
    linkage: str = setting(
        "average", "connected components, or agglomerative clustering", key="dga.linkage",
        choices=("components", "complete", "average"),
    )  # fmt: skip
    count: str = setting(
        "silhouette", "what sets the number of groups", key="dga.count", choices=("threshold", "silhouette")
    )
    threshold: float = setting(0.5, "similarity (τ_sim) that joins clients", key="dga.threshold", low=-1, high=1)
    min_spread: float = setting(
        0.12,
        "spread of the signals about their mean, as a share of their size, below which all clients are one group",
        key="dga.min-spread",
        low=0,
    )
    grouped: str = setting(
        "all",
        "who is grouped: all clients by their last signals, each asked once in R_d rounds, or those of this round",
        key="dga.clients",
        choices=("all", "round"),
    )
    regroup_every: int = setting(5, "rounds (R_d) between groupings; the first is in round 1", key="dga.every", low=1)
    min_group: int = setting(2, "groups smaller than this join the nearest", key="dga.min-group", low=1)
    max_groups: int = setting(0, "most groups; 0 = any number", key="dga.max-groups", low=0)

    # joining (Eq. 7-9)
    routing: str = setting(
        "trained-then-new",
        "which role joins a channel: the new one if the client still holds it, or the one it trained under",
        key="agg.role",
        choices=("trained-then-new", "trained"),
    )
    matching: str = setting(
        "entry",
        "average over clients that trained an entry, or over whole rows with what was sent in the gaps",
        key="agg.entry",
        choices=("entry", "row"),
    )
    weighting: str = setting(
        "group",
        "weight (α) of a client: its samples, their root, 1, or samples such that groups (or true domains) weigh alike",
        key="agg.weight",
        choices=("samples", "sqrt-samples", "uniform", "group", "domain"),
    )
    head: str = setting("global", "who shares the classifier", key="fc.scope", choices=("global", "group"))
    bn_stats: str = setting(
        "role",
        "running statistics: by role as all else, the mean of all clients, pooled variance by role, or kept local",
        key="bn.stats",
        choices=("role", "mean", "total-variance", "local"),
    )
    recalibrate: bool = setting(
        True, "re-estimate BatchNorm before evaluation in one pass over training samples", key="bn.recalibrate"
    )
    warmup: int = setting(3, "rounds in which all active channels are Global", key="warmup.rounds", low=0)
    warmup_mode: str = setting(
        "budgeted", "masks of the warm-up: within budgets, or the full model for all", key="warmup.mode",
        choices=("budgeted", "dense"),
    )  # fmt: skip
    warmup_init: str = setting(
        "l1", "channels kept first: largest weights of the common start, or at random", key="warmup.init",
        choices=("l1", "random"),
    )  # fmt: skip
    penalty: float = setting(0.01, "weight (γ) of the features' norm in the loss", key="feature-penalty", low=0)
    penalty_norm: str = setting(
        "l2sq", "the norm: squared (Eq. 7), or not (as public code)", key="feature-penalty.norm", choices=("l2sq", "l2")
    )

    def __init__(self, profile: str = "edge", **changes: Any) -> None:
        fields = {field.name: field for field in dataclasses.fields(self)}
        if unknown := sorted(changes.keys() - fields.keys()):
            raise SettingError(f"unknown fedsap parameter {unknown[0]!r}; {closest(unknown[0], fields)}")
        values: Mapping[str, Any] = {**PAPER, **changes} if profile == "paper" else changes
        for name, field in fields.items():
            object.__setattr__(self, name, values.get(name, field.default))
        object.__setattr__(self, "profile", profile)
        check(self)
        ratios_of(self.keep_ratios)
        frozen, warmup = values.get("freeze_after", 0), values.get("warmup", fields["warmup"].default)
        if 0 < frozen < warmup:
            raise SettingError(
                f"mask.freeze-after = {frozen} ends before the warm-up does (warmup.rounds = {warmup}), so no role "
                "is ever decided; freeze later, or warm up for fewer rounds"
            )


PAPER: dict[str, Any] = {
    "rounding": "ceil",
    "utility_scope": "client",
    "ema_targets": "dispersion",
    "role_scope": "client",
    "signal": "conv1_grad",
    "at": "after-local",
    "compare": "all",
    "center": False,
    "linkage": "components",
    "count": "threshold",
    "min_spread": 0.0,
    "grouped": "round",
    "min_group": 1,
    "matching": "row",
    "weighting": "samples",
    "recalibrate": False,
    "warmup": 10,
}
"""What the profile ``paper`` sets otherwise, by field."""


def ratios_of(text: str) -> tuple[float, ...]:
    """Return the keep ratios that are dealt out.

    Raises:
        SettingError: If one is not a number in (0, 1].

    Example:
        >>> ratios_of("1, 0.5")
        (1.0, 0.5)
    """
    try:
        ratios = tuple(float(word) for word in text.split(","))
    except ValueError:
        ratios = (float("nan"),)
    if not all(0 < ratio <= 1 for ratio in ratios):
        raise SettingError(f"budget.keep-ratios must be numbers in (0, 1] separated by commas, got {text!r}")
    return ratios


def differences(params: FedSAPParams) -> dict[str, Any]:
    """Return the settings that differ from their profile's, by key.

    Example:
        >>> differences(FedSAPParams("paper", tau=0.1))
        {'sgp.tau': 0.1}
    """
    usual = FedSAPParams(params.profile)
    return {
        key_of(field): getattr(params, field.name)
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != getattr(usual, field.name)
    }
