"""What a client keeps between rounds, on its own disk: its model and its method's state.

One safetensors file a round, written atomically; the newest and the two before it are kept. A round that is asked
twice (after a crash or a resume) starts from the same state, because training round r reads what is tagged before r.
Three, because a server whose newest checkpoint is broken asks for a round that the client is already one ahead of.
Flower's ``context.state`` is not used: it lives in memory only and is shipped with every message.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from torch import Tensor

KEPT_ROUNDS = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILE = "round-{:08d}.safetensors"


class ClientMemoryError(RuntimeError):
    """A client's memory cannot be written; the message says where and what to do."""


class OvertakenError(RuntimeError):
    """A training that ended after a later round had been trained; its result is discarded."""


def safe_name(name: str, what: str) -> str:
    """Return ``name`` if it can be a folder's name and nothing else.

    Raises:
        ValueError: Naming the rule, if it could leave its folder or is not portable.

    Example:
        >>> safe_name("pi-kitchen.2", "client id")
        'pi-kitchen.2'
    """
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise ValueError(
            f"{what} {name!r} cannot name a folder; use up to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


class ClientMemory:
    """The memory of one client in one run.

    Args:
        root: Folder for all runs on this device.
        run: Our run name (Flower's run id changes on resume).
        client: Stable client id.

    Raises:
        ValueError: If ``run`` or ``client`` could leave its folder.
    """

    def __init__(self, root: str | Path, run: str, client: str) -> None:
        self.folder = Path(root) / safe_name(run, "run name") / "clients" / safe_name(client, "client id")
        self._unreadable: set[int] = set()

    def rounds(self) -> list[int]:
        """Return the rounds that are kept, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"round-(\d{8})\.safetensors", path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def load(self, *, before: int) -> dict[str, Tensor] | None:
        """Return the newest state tagged with a round before ``before``, or None if the client never had one.

        A file that cannot be read is passed over for the one before it.

        Raises:
            ClientMemoryError: If the client had such a state and it is gone or unreadable: to begin again from first
                weights would look like progress lost for no reason.
        """
        kept = self.rounds()
        earlier = [number for number in kept if number < before]
        for number in reversed(earlier):
            try:
                with safe_open(self.folder / _FILE.format(number), framework="pt") as file:
                    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError):
                self._unreadable.add(number)
        if earlier or (kept and self._predecessor(kept[0])):
            raise ClientMemoryError(
                f"{self.folder} no longer holds what this client knew before round {before} (it holds rounds {kept}); "
                "resume the run at a later round, or start a new one under another run-name"
            )
        return None

    def path(self, *, before: int) -> Path | None:
        """Return the file of the newest state tagged with a round before ``before``, or None."""
        earlier = [number for number in self.rounds() if number < before]
        return self.folder / _FILE.format(earlier[-1]) if earlier else None

    def _predecessor(self, round_number: int) -> str:
        """Return the round that was kept before ``round_number`` was written, "" if there was none."""
        try:
            with safe_open(self.folder / _FILE.format(round_number), framework="pt") as file:
                return str((file.metadata() or {}).get("after", ""))
        except (SafetensorError, OSError):
            return ""

    def refuse_overtaken(self, known: Collection[int], round_number: int) -> None:
        """Refuse to save a round that took so long that a later one was trained and kept meanwhile.

        Args:
            known: The rounds that were kept when the training began.
            round_number: The round that has been trained.

        Raises:
            OvertakenError: If a later round was kept since then; the server has long gone on without this one.
        """
        later = [number for number in self.rounds() if number > round_number and number not in known]
        if later:
            raise OvertakenError(
                f"round {round_number} came too late: round {later[-1]} is kept already; it is discarded"
            )

    def save(self, round_number: int, state: Mapping[str, Tensor]) -> None:
        """Write ``state`` tagged with ``round_number``; later files and all but the newest three go.

        Raises:
            ClientMemoryError: If the disk is full or the folder cannot be written; what was kept before stays.
        """
        earlier = [number for number in self.rounds() if number < round_number]
        tensors = _unshared(state)
        metadata = {"after": str(earlier[-1]) if earlier else ""}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.folder / _FILE.format(round_number)) as scratch:
                save_file(tensors, scratch, metadata=metadata)
        except (OSError, SafetensorError) as error:
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error)
            raise ClientMemoryError(
                f"cannot keep {size / 2**20:.1f} MiB of client state in {self.folder}: "
                f"{'the disk is full' if full else error}; "
                'free space there, or set another folder (run setting "out", node-config "state-dir")'
            ) from error
        self._unreadable.discard(round_number)
        self._prune(round_number)

    def _prune(self, newest: int) -> None:
        kept = [number for number in self.rounds() if number <= newest and number not in self._unreadable][
            -KEPT_ROUNDS:
        ]
        for path in self.folder.iterdir():
            if path.name not in {_FILE.format(number) for number in kept}:
                with contextlib.suppress(OSError):
                    path.unlink()


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a scratch file to write, and move it onto ``target`` when it is whole and on the disk.

    A crash leaves the old file, or none, but never half of one; an error leaves nothing behind.
    """
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def write_atomically(target: Path, data: bytes) -> None:
    """Write ``data`` to ``target`` so that a crash leaves the old file, or none, but never half of one.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
    """
    with replacing(target) as scratch:
        scratch.write_bytes(data)


def digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of named tensors: names, dtypes, shapes and bytes, in the order of the names."""
    hashed = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hashed.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
    return hashed.hexdigest()


def _unshared(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detach tensors, and copy those that share storage (tied weights), which safetensors refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in state.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        result[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return result
