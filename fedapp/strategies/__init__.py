"""The methods: one file each, both halves. ``METHODS`` is the table; plugins join it with :func:`register`."""

from __future__ import annotations

from fedapp.config import SettingError, lookup
from fedapp.strategies import fedavg, fedgh, fedproto, fedsaf, fedsap, fml, lg_fedavg, local
from fedapp.strategies.base import Method, PayloadStrategy
from fedapp.strategies.fedavg import FedAvg, FedAvgParams
from fedapp.strategies.fedgh import FedGH, FedGHParams
from fedapp.strategies.fedproto import FedProto, FedProtoParams
from fedapp.strategies.fedsaf import FedSAF, FedSAFParams, register_alignment
from fedapp.strategies.fedsap import FedSAP, FedSAPParams
from fedapp.strategies.fml import FML, FMLParams
from fedapp.strategies.lg_fedavg import LGFedAvg
from fedapp.strategies.local import Local

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        fedsaf.METHOD,
        fedsap.METHOD,
        local.METHOD,
        fedavg.METHOD,
        fedproto.METHOD,
        lg_fedavg.METHOD,
        fml.METHOD,
        fedgh.METHOD,
    )
}
"""Every method by its name in settings."""


def models_of(method: str, models: str) -> str:
    """Return what the setting ``models`` stands for: with "auto", the models that suit the method.

    Raises:
        SettingError: If the method is unknown.

    Example:
        >>> models_of("fedavg", "auto"), models_of("fedavg", "mlp")
        ('small-resnet', 'mlp')
    """
    return lookup(METHODS, method, "method").models if models == "auto" else models


def register(method: Method) -> None:
    """Add an out-of-tree method to the table; the same one again changes nothing.

    Raises:
        SettingError: If another method has this name.
    """
    if METHODS.setdefault(method.name, method) != method:
        raise SettingError(f"method {method.name!r} exists already; give yours another name")


__all__ = [
    "FML",
    "METHODS",
    "FMLParams",
    "FedAvg",
    "FedAvgParams",
    "FedGH",
    "FedGHParams",
    "FedProto",
    "FedProtoParams",
    "FedSAF",
    "FedSAFParams",
    "FedSAP",
    "FedSAPParams",
    "LGFedAvg",
    "Local",
    "Method",
    "PayloadStrategy",
    "models_of",
    "register",
    "register_alignment",
]
