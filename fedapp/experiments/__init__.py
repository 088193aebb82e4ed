"""Experiments: several runs put side by side."""
