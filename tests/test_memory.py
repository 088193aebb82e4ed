import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from torch import nn

from fedapp import memory
from fedapp.memory import ClientMemory, ClientMemoryError, OvertakenError, digest, safe_name
from tests.conftest import tiny

FILE = "round-{:08d}.safetensors"


def state(value: float) -> dict[str, torch.Tensor]:
    return {"model/w": torch.full((2, 3), value), "state/steps": torch.tensor(int(value), dtype=torch.int64)}


@pytest.fixture
def kept(tmp_path: Path) -> ClientMemory:
    return ClientMemory(tmp_path, "run", "client-1")


def value_of(loaded) -> float | None:
    return None if loaded is None else float(loaded["model/w"][0, 0])


# ---- rounds ----------------------------------------------------------------------------------------


def test_an_empty_memory_holds_nothing(kept):
    assert kept.rounds() == []
    assert kept.load(before=9) is None
    assert not kept.folder.exists()  # looking does not write


def test_the_newest_round_and_the_two_before_it_are_kept(kept):
    for number in (1, 2, 5, 9):
        kept.save(number, state(number))
    assert kept.rounds() == [2, 5, 9]
    assert [value_of(kept.load(before=before)) for before in (3, 6, 9, 10, 99)] == [2.0, 5.0, 5.0, 9.0, 9.0]


def test_a_state_that_is_gone_is_an_error_and_not_a_silent_new_beginning(kept):
    for number in (1, 2, 5, 9):
        kept.save(number, state(number))
    with pytest.raises(
        ClientMemoryError, match=r"before round 2 \(it holds rounds \[2, 5, 9\]\); resume the run at a later"
    ):
        kept.load(before=2)


def test_a_client_that_first_trained_late_began_from_nothing(kept):
    kept.save(3, state(3))
    assert kept.load(before=3) is None


def test_a_state_of_which_nothing_is_readable_is_an_error(kept):
    kept.save(1, state(1))
    next(kept.folder.glob("*.safetensors")).write_bytes(b"no more")
    with pytest.raises(ClientMemoryError, match="no longer holds"):
        kept.load(before=2)


def test_a_straggler_does_not_undo_what_was_trained_after_it(kept):
    kept.save(1, state(1))
    known = kept.rounds()
    for number in (2, 3):
        kept.save(number, state(number))
    with pytest.raises(OvertakenError, match="round 2 came too late: round 3 is kept already"):
        kept.refuse_overtaken(known, 2)
    kept.refuse_overtaken(kept.rounds(), 2)  # a round repeated after a resume knew of the later one
    assert kept.rounds() == [1, 2, 3]


def test_a_round_asked_twice_starts_from_the_same_state(kept):
    kept.save(1, state(1))
    starts = []
    for result in (2.0, 2.5):
        starts.append(value_of(kept.load(before=2)))
        kept.save(2, state(result))
    assert starts == [1.0, 1.0]
    assert value_of(kept.load(before=3)) == 2.5


def test_a_repeated_round_forgets_what_came_after_it(kept):
    for number in (1, 2, 3):
        kept.save(number, state(number))
    kept.save(2, state(20))
    assert kept.rounds() == [1, 2]
    assert value_of(kept.load(before=99)) == 20.0


def test_a_round_after_a_pause_finds_the_state_before_the_pause(kept):
    kept.save(1, state(1))
    assert value_of(kept.load(before=40)) == 1.0


def test_clients_and_runs_do_not_see_each_other(tmp_path):
    ClientMemory(tmp_path, "a", "0").save(1, state(1))
    assert ClientMemory(tmp_path, "a", "1").load(before=9) is None
    assert ClientMemory(tmp_path, "b", "0").load(before=9) is None
    assert value_of(ClientMemory(tmp_path, "a", "0").load(before=9)) == 1.0


def test_a_loaded_state_may_be_changed_without_changing_the_file(kept):
    kept.save(1, state(1))
    kept.load(before=2)["model/w"].fill_(7)
    assert value_of(kept.load(before=2)) == 1.0


def test_a_loaded_state_outlives_its_file(kept):
    kept.save(1, state(1))
    loaded = kept.load(before=2)
    for number in (2, 3, 4):
        kept.save(number, state(number))
    assert kept.rounds() == [2, 3, 4]
    assert value_of(loaded) == 1.0


# ---- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 4, 60, -1])
def test_a_truncated_newest_file_falls_back_to_the_one_before(kept, length):
    for number in (1, 2):
        kept.save(number, state(number))
    newest = kept.folder / FILE.format(2)
    newest.write_bytes(newest.read_bytes()[:length])
    (kept.folder / "round-00000003.4711.tmp").write_bytes(b"partial")
    assert value_of(kept.load(before=3)) == 1.0


def test_leftovers_of_a_crash_are_not_rounds_and_go_with_the_next_save(kept):
    kept.save(1, state(1))
    (kept.folder / "round-00000002.4711.tmp").write_bytes(b"partial")
    assert kept.rounds() == [1]
    kept.save(2, state(2))
    assert sorted(path.name for path in kept.folder.iterdir()) == [FILE.format(1), FILE.format(2)]


def test_an_unreadable_file_does_not_push_out_the_last_readable_one(kept):
    for number in (1, 2):
        kept.save(number, state(number))
    (kept.folder / FILE.format(2)).write_bytes(b"junk")
    assert value_of(kept.load(before=3)) == 1.0
    kept.save(3, state(3))
    assert kept.rounds() == [1, 3]
    assert value_of(kept.load(before=4)) == 3.0
    assert value_of(kept.load(before=3)) == 1.0  # round 3 asked again starts where it started


WRITER = """
import sys, torch
from fedapp.memory import ClientMemory
memory = ClientMemory(sys.argv[1], "run", "client-1")
for number in range(1, 100000):
    memory.save(number, {"w": torch.full((200, 200), float(number)), "n": torch.tensor(number)})
    print(number, flush=True)
"""


def test_a_client_killed_while_writing_loads_a_whole_state(tmp_path):
    kept = ClientMemory(tmp_path, "run", "client-1")
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        while int(process.stdout.readline()) < 3:
            pass
        time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().split()]
        process.wait()
    loaded = kept.load(before=100000)
    assert torch.equal(loaded["w"], torch.full((200, 200), float(loaded["n"])))
    assert int(loaded["n"]) >= max(said, default=3)  # what was said to be saved is there
    kept.save(int(loaded["n"]) + 1, {"w": torch.zeros(1)})
    assert len(list(kept.folder.iterdir())) <= 3


# ---- a disk that does not take it ------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_says_where_how_much_and_what_to_do_and_loses_nothing(kept, monkeypatch, step):
    for number in (1, 2):
        kept.save(number, state(number))

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:

        def half(tensors, path, metadata):
            Path(path).write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(memory, "save_file", half)
    with pytest.raises(ClientMemoryError) as caught:
        kept.save(3, {"w": torch.zeros(2**18)})  # 1 MiB
    monkeypatch.undo()
    for part in (str(kept.folder), "1.0 MiB", "the disk is full", "free space", '"state-dir"', '"out"'):
        assert part in str(caught.value)
    assert sorted(path.name for path in kept.folder.iterdir()) == [FILE.format(1), FILE.format(2)]
    assert value_of(kept.load(before=9)) == 2.0


def test_a_round_written_again_on_a_full_disk_keeps_what_it_had(kept, monkeypatch):
    kept.save(1, state(1))

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ClientMemoryError):
        kept.save(1, state(7))
    assert value_of(kept.load(before=2)) == 1.0


def test_a_quota_that_is_used_up_reads_like_a_full_disk(kept, monkeypatch):
    def over(*arguments):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", over)
    with pytest.raises(ClientMemoryError, match="the disk is full"):
        kept.save(1, state(1))


def test_a_folder_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(ClientMemoryError, match=r"cannot keep .*Not a directory|cannot keep .*exists"):
        ClientMemory(tmp_path, "run", "0").save(1, state(1))


# ---- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "C:x", ".hidden", "-rf", "_a", "a.", "a b", "a\n", "a\0", "~",
     "$HOME", "ａ", "Ⅷ", "a\u202eb", "../" * 3 + "x", "．．", "a\u0301", "x" * 129, "x" * 5000],
)  # fmt: skip
def test_names_cannot_leave_their_folder(tmp_path, name):
    for make in (lambda: ClientMemory(tmp_path, "run", name), lambda: ClientMemory(tmp_path, name, "client")):
        with pytest.raises(ValueError, match="cannot name a folder; use up to 128 letters"):
            make()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["0", "pi-kitchen.2", "A_b-c.d", "x" * 128, "a..b"])
def test_plain_names_are_taken_as_they_are(name):
    assert safe_name(name, "client id") == name


@given(st.text(max_size=20))
def test_whatever_name_is_accepted_is_one_part_of_a_path(name):
    try:
        safe_name(name, "client id")
    except ValueError:
        return
    assert (Path("/memory") / name).resolve() == Path("/memory", name)
    assert Path(name).parts == (name,)


def test_the_message_says_which_name_is_meant():
    with pytest.raises(ValueError, match=r"client id '\.\./x'"):
        safe_name("../x", "client id")


# ---- what a state may hold -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(5, dtype=torch.int64),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.float16),
        torch.tensor([[True], [False]]),
        torch.zeros(0, 3),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[3:5],
        torch.ones(1).expand(4),
        nn.Parameter(torch.tensor([-1.0, 2.0])),
    ],
    ids=["int64 scalar", "bf16", "fp16", "bool", "empty", "transposed", "slice", "expanded", "parameter"],
)
def test_every_kind_of_tensor_comes_back_as_it_was(kept, tensor):
    kept.save(1, {"t": tensor})
    loaded = kept.load(before=2)["t"]
    assert (loaded.dtype, loaded.shape, loaded.requires_grad) == (tensor.dtype, tensor.shape, False)
    assert torch.equal(loaded, tensor)


def test_tied_weights_come_back_under_both_names(kept):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    kept.save(1, model.state_dict())
    loaded = kept.load(before=2)
    assert torch.equal(loaded["0.weight"], model[0].weight)
    assert torch.equal(loaded["1.weight"], model[0].weight)
    model.load_state_dict(loaded)


def test_views_of_one_storage_come_back_whole(kept):
    base = torch.arange(12.0).reshape(3, 4)
    kept.save(1, {"rows": base[:2], "last": base[2], "all": base})
    loaded = kept.load(before=2)
    assert torch.equal(loaded["rows"], base[:2])
    assert torch.equal(loaded["last"], base[2])
    assert torch.equal(loaded["all"], base)


def test_saving_changes_nothing_in_the_model(kept):
    model = tiny(norm=True)
    before = digest(model.state_dict())
    kept.save(1, model.state_dict())
    assert digest(model.state_dict()) == before == digest(kept.load(before=2))
    assert all(parameter.requires_grad for parameter in model.parameters())


# ---- digests ---------------------------------------------------------------------------------------

PLAIN = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3, 4])}


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1.0, 2.0]), "c": torch.tensor([3, 4])},
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3, 5])},
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3, 4]])},
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3, 4], dtype=torch.int32)},
        {"a": torch.tensor([1.0, 2.0]).view(torch.int32), "b": torch.tensor([3, 4])},
        {"a": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([3, 4]), "b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([-1.0, 2.0]), "b": torch.tensor([3, 4])},
    ],
    ids=["name", "value", "shape", "width", "dtype of the same bytes", "fewer", "swapped", "sign"],
)
def test_a_digest_depends_on_names_dtypes_shapes_and_values(other):
    assert digest(other) != digest(PLAIN)


def test_a_digest_does_not_depend_on_the_order_or_the_layout_in_memory():
    assert digest(dict(reversed(PLAIN.items()))) == digest(PLAIN)
    grid = torch.arange(6.0).reshape(2, 3)
    assert digest({"w": grid.T}) == digest({"w": grid.T.contiguous()})
    assert digest({"w": nn.Parameter(grid)}) == digest({"w": grid})


def test_a_digest_is_the_same_on_every_machine():
    assert (
        digest({"w": torch.tensor([1.0, -2.0])}) == "8760060942b2744844af5c89b3783616764c997907e1470c589ca7decdf28f90"
    )


def test_a_bf16_model_has_a_digest():
    model = tiny().to(torch.bfloat16)
    first = digest(model.state_dict())
    with torch.no_grad():
        model.head.bias[0] += 1
    assert digest(model.state_dict()) != first


def test_three_rounds_are_what_is_kept():
    assert memory.KEPT_ROUNDS == 3
