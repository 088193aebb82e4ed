"""Federated learning on devices that are not alike: a Flower app and a Python library."""

__version__ = "0.1.0"
