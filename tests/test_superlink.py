"""The SuperLink of our own: a port that somebody else takes in the last moment is given up for another."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fedapp import superlink


def test_a_port_taken_in_the_last_moment_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        free = superlink._free_port
        offers = iter([taken])
        monkeypatch.setattr(superlink, "_free_port", lambda: next(offers, None) or free())
        with superlink.superlink() as link:
            home = link.home
            assert str(taken) not in (home / "config.toml").read_text()
    assert not home.exists()


def test_a_superlink_that_never_comes_up_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no licence to serve\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(superlink, "program", lambda name: str(broken))
    with pytest.raises(superlink.RunFailedError, match="no licence to serve"), superlink.superlink():
        pass
