"""The papers' data protocols as named bundles of settings, each habit we would not copy with a clean sibling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.settings import Scalar, SettingError, lookup


@dataclass(frozen=True)
class Preset:
    """A data protocol.

    Attributes:
        summary: One line for listings.
        clients: K, the number of clients.
        settings: Settings by key; what is not named keeps its default.
        habits: What the protocol copies that we would not do, or where it departs from the paper's code.
        clean: The preset without the habits, if there is one.
    """

    summary: str
    clients: int
    settings: Mapping[str, Scalar]
    habits: tuple[str, ...] = ()
    clean: str = ""


FEDSAP_TRAINING: dict[str, Scalar] = {
    "num-server-rounds": 100,
    "local-epochs": 10,
    "batch-size": 64,
    "learning-rate": 0.01,
    "momentum": 0.9,
    "weight-decay": 5e-4,
}
FEDSAF_TRAINING: dict[str, Scalar] = {
    "num-server-rounds": 300,
    "local-epochs": 5,
    "batch-size": 100,
    "learning-rate": 0.01,
}
DIGITS: dict[str, Scalar] = {
    **FEDSAP_TRAINING,
    "dataset": "digits",
    "partition": "domains",
    "domain-map": "drawn-then-each",
    "samples-per-domain": "1%",
    "test-split": "shared",
}
ONE_DOMAIN_EACH: dict[str, Scalar] = {
    **FEDSAF_TRAINING,
    "partition": "domains",
    "domain-map": "cyclic",
    "test-split": "client",
}
CHOSEN_CLEANLY: dict[str, Scalar] = {"validation-fraction": 0.1}  # by_validation: the round that these samples choose
FLIPPED_DIGITS = "digits are mirrored half of the time, though a mirrored 2 is no 2"
NORMALISED = "pixels are in [-1, 1]; the paper's code subtracts ImageNet's means and divides by its deviations"
DRAWN = "partition-seed draws which client holds which domain, and that sways the results; the paper says cyclic"
BEST_ON_TEST = "the papers report the best round on the test images"
TEST_CHANGED = "images are cropped and mirrored once before clients split, so test images are changed ones"
FROM_64 = "crops are taken from the 64x64 image; the paper's code takes them from the full size"
UNSCALED = "pixels are in [-1, 1]; the paper's code leaves them in [0, 1]"
ROUNDS = "the paper does not say how many rounds this table took; these are those of its other tables"
GIVEN_CLASSES = "a client that drew no image of a class is given one, as in the code of DapperFL"
FEW_TESTS = "a domain tests on as few as 30 images, the same ones always, so that one counts 3.3 points"

PRESETS: dict[str, Preset] = {
    "digits-paper": Preset(
        summary="FedSAP's Digits: 10 clients, 1 % of a domain each, six domains drawn and one of each",
        clients=10,
        settings={**DIGITS, "augment": "crop=4,flip"},
        habits=(FLIPPED_DIGITS, DRAWN, NORMALISED, BEST_ON_TEST),
        clean="digits-clean",
    ),
    "digits-paper-drawn": Preset(
        summary="the same with all ten domains drawn, as in the code of FPL; a domain may go without a client",
        clients=10,
        settings={**DIGITS, "domain-map": "drawn", "augment": "crop=4,flip"},
        habits=(
            *(FLIPPED_DIGITS, DRAWN, NORMALISED, BEST_ON_TEST),
            "a domain may have no client, and then none is tested on it",
        ),
        clean="digits-clean",
    ),
    "digits-clean": Preset(
        summary="digits-paper without mirrored digits, domains in turn, a validation part to choose the round by",
        clients=10,
        settings={**DIGITS, **CHOSEN_CLEANLY, "domain-map": "cyclic", "augment": "crop=4"},
    ),
    "digits-offline": Preset(
        summary="digits-clean's relative without SVHN and SYN: 600, 72, 590 or 100 images a client, 500 tests a domain",
        clients=10,
        settings={
            **DIGITS,
            "dataset": "digits-offline",
            "domain-map": "cyclic",
            "samples-per-domain": "mnist=600,usps=72,mnistm=590,rendered=100",
            "test-samples-per-domain": 500,
            "augment": "crop=4",
        },
    ),
    "office-paper": Preset(
        summary="FedSAP's Office-Caltech-10: 10 clients, 20 % of a domain's training part each, 8 of 10 images train",
        clients=10,
        settings={
            **DIGITS,
            "dataset": "office-caltech10",
            "samples-per-domain": "20%",
            "augment": "crop=4,flip",
        },
        habits=(DRAWN, GIVEN_CLASSES, FEW_TESTS, NORMALISED, BEST_ON_TEST),
        clean="office-clean",
    ),
    "office-clean": Preset(
        summary="Office-Caltech-10 with every image in use, domains in turn: 6 of a client's 10 images train, 4 test",
        clients=10,
        settings={
            **FEDSAP_TRAINING,
            **CHOSEN_CLEANLY,
            "dataset": "office-caltech10",
            "partition": "domains",
            "domain-map": "cyclic",
            "test-split": "client",
            "train-fraction": 0.6,
            "augment": "crop=4,flip",
        },
    ),
    "pacs-paper": Preset(
        summary="FedSAF's PACS: one client a domain",
        clients=4,
        settings={**ONE_DOMAIN_EACH, "dataset": "pacs-augmented-once"},
        habits=(TEST_CHANGED, FROM_64, UNSCALED, ROUNDS, BEST_ON_TEST),
        clean="pacs-clean",
    ),
    "pacs-clean": Preset(
        summary="PACS, one client a domain, training batches alone are changed, anew every time",
        clients=4,
        settings={**ONE_DOMAIN_EACH, **CHOSEN_CLEANLY, "dataset": "pacs", "augment": "crop=8,flip"},
    ),
    "domainnet-paper": Preset(
        summary="FedSAF's DomainNet: one client a domain",
        clients=6,
        settings={**ONE_DOMAIN_EACH, "dataset": "domainnet-augmented-once"},
        habits=(TEST_CHANGED, FROM_64, UNSCALED, ROUNDS, BEST_ON_TEST, "the official test part is split again"),
        clean="domainnet-clean",
    ),
    "domainnet-clean": Preset(
        summary="DomainNet, one client a domain, the official test part, training batches alone are changed",
        clients=6,
        settings={
            **ONE_DOMAIN_EACH,
            **CHOSEN_CLEANLY,
            "dataset": "domainnet",
            "test-split": "native",
            "augment": "crop=8,flip",
        },
    ),
}


def settings_of(name: str, chosen: Mapping[str, Scalar] | None = None) -> dict[str, Scalar]:
    """Return the settings of a preset by key, as :func:`fedapp.settings.parse` takes them.

    Args:
        name: The preset.
        chosen: The user's own settings, which win.

    Raises:
        SettingError: If there is no such preset; lists the names and the closest.

    Example:
        >>> settings_of("pacs-clean", {"batch-size": 10})["batch-size"]
        10
    """
    return {**lookup(PRESETS, name, "preset").settings, **(chosen or {}), "preset": name}


def clients_of(name: str | None) -> int:
    """Return how many clients there are if nobody says: the preset's, or 10 without one.

    Example:
        >>> clients_of("pacs-clean"), clients_of(None)
        (4, 10)
    """
    return lookup(PRESETS, name, "preset").clients if name else 10


def check(name: str, settings: Mapping[str, Scalar], usual: Mapping[str, Scalar]) -> None:
    """Check that the preset which a run's record names was used.

    Args:
        name: The preset; "" if there is none.
        settings: The run's settings by key.
        usual: The defaults by key.

    Raises:
        SettingError: If there is no such preset, or nothing of it is among the settings.
    """
    brought = lookup(PRESETS, name, "preset").settings if name else {}
    if brought and not any(settings.get(key) == value != usual.get(key) for key, value in brought.items()):
        raise SettingError(
            f"preset = {name} sets nothing by itself; give --preset {name}, or preset to fedapp.run, or write out in a "
            "grid what it stands for"
        )


def habits_of(name: str) -> str:
    """Return which habits a preset copies, and what does without, in one line; "" if there are none, or no such preset.

    Example:
        >>> habits_of("digits-clean"), habits_of("office-paper")[:70]
        ('', "office-paper copies habits of the paper's code: (1) partition-seed dra")
    """
    preset = PRESETS.get(name)
    if preset is None or not preset.habits:
        return ""
    listed = "; ".join(f"({number}) {habit}" for number, habit in enumerate(preset.habits, start=1))
    return f"{name} copies habits of the paper's code: {listed}; {preset.clean} does without"
