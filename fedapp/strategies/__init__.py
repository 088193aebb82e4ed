"""The methods: one file each, both halves. ``METHODS`` is the table; plugins join it with :func:`register`."""

from __future__ import annotations

from fedapp.config import SettingError
from fedapp.strategies import fedavg, fedgh, fedproto, fedsaf, fml, lg_fedavg, local
from fedapp.strategies.base import Method, PayloadStrategy
from fedapp.strategies.fedavg import FedAvg, FedAvgParams
from fedapp.strategies.fedgh import FedGH, FedGHParams
from fedapp.strategies.fedproto import FedProto, FedProtoParams
from fedapp.strategies.fedsaf import FedSAF, FedSAFParams, register_alignment
from fedapp.strategies.fml import FML, FMLParams
from fedapp.strategies.lg_fedavg import LGFedAvg
from fedapp.strategies.local import Local

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        fedsaf.METHOD,
        local.METHOD,
        fedavg.METHOD,
        fedproto.METHOD,
        lg_fedavg.METHOD,
        fml.METHOD,
        fedgh.METHOD,
    )
}
"""Every method by its name in settings."""


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
    "LGFedAvg",
    "Local",
    "Method",
    "PayloadStrategy",
    "register",
    "register_alignment",
]
