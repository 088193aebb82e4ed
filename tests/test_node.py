import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from fedapp import node, paths
from fedapp.client_update import DivergedError
from fedapp.config import SettingError, TrainingSettings
from fedapp.local_grid import LocalGrid
from fedapp.memory import ClientMemory, digest
from fedapp.payload import ClientInfo, Downlink, Instruction
from fedapp.seeds import derive
from fedapp.wire import pack_instruction, unpack_info
from tests.conftest import CLASSES, WIDTH, Samples, TinyModel, context, samples, setup


@pytest.fixture(autouse=True)
def _own_process(monkeypatch):
    monkeypatch.setattr(node, "_skeletons", {})
    monkeypatch.setattr(paths, "_base", None)


@pytest.fixture
def here(tmp_path):
    """Options of a node that keeps its memory in the test's own folder."""
    return {"memory": tmp_path}


def instruction(round_number=1, **changes) -> Instruction:
    return replace(Instruction("local", run="run", round=round_number, num_rounds=4), **changes)


def digest_of(owner, round_number=9, **changes) -> str:
    asked = instruction(round_number, downlink=Downlink(settings={"digest": True}), **changes)
    return node.introduce(asked, owner).digest


def kept(folder, client="0", before=99):
    return ClientMemory(folder, "run", client).load(before=before)


# ---- what a client keeps ---------------------------------------------------------------------------


def test_evaluation_sees_the_weights_that_training_kept(here, tmp_path):
    owner = setup(**here)
    node.train(instruction(1), owner)
    uplink = node.evaluate(instruction(1), owner)
    model = TinyModel()
    model.load_state_dict({name.removeprefix("model/"): tensor for name, tensor in kept(tmp_path).items()})
    with torch.no_grad():
        right = (model.head(model.features(owner.test.x)).argmax(1) == owner.test.y).sum()
    assert uplink.metrics["accuracy"] == pytest.approx(int(right) / 7)
    assert digest_of(owner, 1) == digest(model.state_dict())


def test_evaluation_leaves_the_memory_as_it_was(here):
    owner = setup(**here, norm=True)
    node.train(instruction(1), owner)
    before = digest_of(owner)
    node.evaluate(instruction(1), owner)
    node.evaluate(instruction(2), owner)
    assert digest_of(owner) == before


def test_a_client_that_is_not_sampled_keeps_its_model(here):
    owner = setup(**here)
    node.train(instruction(1), owner)
    first = digest_of(owner)
    accuracies = [node.evaluate(instruction(number), owner).metrics["accuracy"] for number in (1, 2, 3)]
    assert len(set(accuracies)) == 1
    assert digest_of(owner) == first
    node.train(instruction(4), owner)
    assert digest_of(owner) != first


def test_a_round_asked_twice_gives_the_same_bits(here):
    owner = setup(**here, norm=True)
    node.train(instruction(1), owner)
    results = []
    for _ in range(2):
        uplink = node.train(instruction(2), owner)
        results.append((uplink.metrics["loss"], digest_of(owner)))
    assert results[0] == results[1]


def test_training_goes_on_where_it_stopped_in_another_process(tmp_path):
    straight, broken = (setup(memory=tmp_path / name) for name in ("straight", "broken"))
    for number in (1, 2, 3):
        node.train(instruction(number), straight)
    for number in (1, 2):
        node.train(instruction(number), broken)
    node._skeletons.clear()
    torch.manual_seed(99)
    node.train(instruction(3), replace(broken, model_key="another"))
    assert digest_of(straight) == digest_of(broken)


def test_a_diverged_round_leaves_the_last_good_model(here):
    owner = setup(**here)
    node.train(instruction(1), owner)
    good = digest_of(owner)
    bad = replace(owner, train=Samples(owner.train.x * float("nan"), owner.train.y))
    with pytest.raises(DivergedError):
        node.train(instruction(2), bad)
    assert digest_of(owner) == good
    node.train(instruction(3), owner)  # and it can go on


def test_a_methods_state_is_kept_beside_the_model(here, tmp_path):
    def companion(name):
        return TinyModel()

    owner = setup(**here, companion=companion)
    head = {"weight": np.ones((CLASSES, WIDTH), np.float32), "bias": np.zeros(CLASSES, np.float32)}
    node.train(instruction(1, method="lg-fedavg", downlink=Downlink(head)), owner)
    assert all(name.startswith(("model/", "state/")) for name in kept(tmp_path))
    assert {name.removeprefix("model/") for name in kept(tmp_path)} == set(TinyModel().state_dict())


def test_the_metrics_say_how_the_seconds_were_spent(here):
    owner = setup(**here)
    trained = node.train(instruction(1), owner, load_seconds=5.0).metrics
    assert trained["load-seconds"] > 5.0
    assert trained["train-seconds"] > 0
    assert trained["save-seconds"] > 0
    assert node.evaluate(instruction(1), owner).metrics["evaluate-seconds"] > 0


# ---- first weights and random streams --------------------------------------------------------------


def test_first_weights_differ_between_clients_unless_they_are_shared(here):
    own = [digest_of(setup(client, **here)) for client in ("0", "1")]
    shared = [digest_of(setup(client, **here, shared_init=True)) for client in ("0", "1")]
    assert own[0] != own[1]
    assert shared[0] == shared[1]
    assert digest_of(setup("0", **here, shared_init=True, model_name="other")) != shared[0]


def test_first_weights_depend_on_the_seed_and_not_on_the_process(here):
    torch.manual_seed(1)
    first = digest_of(setup(**here))
    torch.manual_seed(2)
    assert digest_of(setup(**here)) == first
    assert digest_of(setup(**here), seed=1) != first


def test_the_random_streams_of_the_process_are_left_as_they_were(here):
    torch.manual_seed(5)
    torch.rand(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    owner = setup(**here)
    node.introduce(instruction(1), owner)
    node.train(instruction(1), owner)
    node.evaluate(instruction(1), owner)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


class WithDropout(TinyModel):
    def features(self, x):
        return nn.functional.dropout(super().features(x), 0.5, self.training)


def test_dropout_repeats_with_the_round_and_differs_between_rounds(tmp_path):
    def run(folder, numbers, **options):
        training = TrainingSettings(batch_size=9, shuffle=False)
        owner = setup(model=WithDropout, memory=tmp_path / folder, training=training, **options)
        losses = [node.train(instruction(number), owner).metrics["loss"] for number in numbers]
        return losses, digest_of(owner)

    torch.manual_seed(1)
    first = run("a", (1, 2))
    torch.manual_seed(2)
    assert run("b", (1, 2)) == first
    assert run("c", (1, 3)) != first
    assert run("d", (1, 2), model_key="dropout") == first  # whether a model was built or reused


# ---- models shared between clients of one process --------------------------------------------------


def test_clients_that_share_a_built_model_do_not_leak_weights(tmp_path):
    alone = {}
    for client in ("0", "1"):
        owner = setup(client, norm=True, memory=tmp_path / "alone")
        for number in (1, 2):
            node.train(instruction(number), owner)
        alone[client] = (digest_of(owner), node.evaluate(instruction(2), owner).metrics["loss"])
    owners = {client: setup(client, norm=True, memory=tmp_path / "shared", model_key="tiny") for client in ("0", "1")}
    for number in (1, 2):
        for owner in owners.values():
            node.train(instruction(number), owner)
    for client, owner in owners.items():
        loss = node.evaluate(instruction(2), owner).metrics["loss"]
        assert (digest_of(owner), loss) == alone[client]
    assert list(node._skeletons) == ["tiny"]


def test_a_new_client_does_not_start_from_the_shared_models_last_weights(tmp_path):
    node.train(instruction(1), setup("0", memory=tmp_path, model_key="tiny"))
    late = digest_of(setup("1", memory=tmp_path, model_key="tiny"))
    assert late == digest_of(setup("1", memory=tmp_path / "elsewhere"))


def test_a_shared_model_brings_no_gradients_of_the_client_before(here):
    seen = []

    class Watch(TinyModel):
        def features(self, x):
            seen.append(all(parameter.grad is None for parameter in self.parameters()))
            return super().features(x)

    for client in ("0", "1", "0", "1"):
        owner = setup(client, **here, model=Watch, model_key="watch")
        node.train(instruction(1 + len(seen)), owner)
        seen.clear()
        node.evaluate(instruction(99), owner)
        assert all(seen)


def test_only_so_many_built_models_are_kept(here):
    for number in range(node._CACHE_SIZE + 3):
        node.introduce(instruction(), setup(**here, model_key=number))
    assert len(node._skeletons) == node._CACHE_SIZE
    assert node._CACHE_SIZE + 2 in node._skeletons


# ---- who a client is -------------------------------------------------------------------------------


def test_introduction_reports_sizes_and_layouts(here):
    info = node.introduce(instruction(), setup("pi", **here, norm=True, domain="sketch"))
    assert info == ClientInfo(
        client="pi",
        model="tiny",
        num_classes=3,
        feature_dim=5,
        input_shape=(4,),
        num_examples=9,
        num_test=7,
        domain="sketch",
        model_layout=(
            "body.0.weight:float32:5x4 body.0.bias:float32:5 body.1.weight:float32:5 body.1.bias:float32:5 "
            "body.1.running_mean:float32:5 body.1.running_var:float32:5 body.1.num_batches_tracked:int64: "
            "head.weight:float32:3x5 head.bias:float32:3"
        ),
        head_layout="weight:float32:3x5 bias:float32:3",
    )


def test_introduction_works_before_any_training_sample_came(here):
    info = node.introduce(instruction(), setup(**here, train=0, test=0))
    assert (info.num_examples, info.num_test, info.feature_dim, info.input_shape) == (0, 0, 5, (4,))


def test_a_head_that_is_a_method_has_no_layout(here):
    class Headless(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def features(self, x):
            return self.body(x)

        def head(self, z):
            return z

    assert node.introduce(instruction(), setup(**here, model=Headless)).head_layout == ""


def test_introducing_itself_writes_nothing(here, tmp_path):
    node.introduce(instruction(), setup(**here))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"client-id": "pi", "partition-id": 3}, "pi"),
        ({"partition-id": 0}, "0"),
        ({"client-id": 7}, "7"),
    ],
)
def test_the_client_id_comes_before_the_partition_id(config, expected):
    assert node.client_id(context(**config)) == expected


def test_a_node_without_a_stable_name_says_how_to_get_one():
    with pytest.raises(ValueError, match=r"client-id=.*partition-id=0"):
        node.client_id(context(**{"num-partitions": 2}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fedsaff"}, "did you mean fedsaf"),
        ({"method": "fedsaf", "params": "alignmnt=rcsa"}, "unknown fedsaf parameter 'alignmnt'"),
    ],
)
def test_an_instruction_that_makes_no_sense_here_is_a_setting_error(here, changes, words):
    with pytest.raises(SettingError, match=words):
        node.train(instruction(**changes), setup(**here))


# ---- through the ClientApp -------------------------------------------------------------------------


def ask(app, kind, asked=None, **node_config):
    LocalGrid(app, 1)  # gives this process an identity, without which Flower makes no message
    message = Message(pack_instruction(asked or instruction()), 5, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return app(message, context(**node_config))


def test_a_load_that_fails_is_reported_under_the_clients_name():
    def load(context):
        raise FileNotFoundError("no data in /data")

    app = node.client_app(load)
    info = unpack_info(ask(app, "query", **{"client-id": "pi", "num-partitions": 4}).content)
    assert info == ClientInfo("pi", num_clients=4, error="FileNotFoundError: no data in /data")
    for kind in ("train", "evaluate"):
        with pytest.raises(FileNotFoundError):
            ask(app, kind, **{"client-id": "pi"})


def test_an_instruction_of_another_version_is_reported_too():
    app = node.client_app(lambda context: setup())
    broken = pack_instruction(instruction())
    broken.config_records["about"]["schema"] = 99
    LocalGrid(app, 1)
    message = Message(broken, 5, "query")
    message.metadata.__dict__["_message_id"] = "1"
    info = unpack_info(app(message, context(**{"partition-id": 3})).content)
    assert info.client == "3"
    assert "install the same fedapp on both sides" in info.error


def test_the_number_of_clients_is_announced(tmp_path):
    app = node.client_app(lambda context: setup("0", memory=tmp_path))
    assert unpack_info(ask(app, "query", **{"partition-id": 0, "num-partitions": 12}).content).num_clients == 12
    assert unpack_info(ask(app, "query", **{"partition-id": 0}).content).num_clients == 0


def where(node_config, tmp_path, monkeypatch, memory=None, simulation=True):
    """Train one round and return the folder below ``tmp_path`` that the memory went to."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    app = node.client_app(lambda context: setup("0", memory=memory))
    asked = instruction(memory=str(tmp_path / "server"), base=str(tmp_path / "user"))
    ask(app, "train", asked, **{"partition-id": 0, "local-engine": simulation, **node_config})
    (found,) = tmp_path.rglob("round-00000001.safetensors")
    return found.parents[3].relative_to(tmp_path).as_posix()


def test_in_a_simulation_the_server_says_where_memory_is_kept(tmp_path, monkeypatch):
    assert where({}, tmp_path, monkeypatch) == "server"
    assert paths.base() == tmp_path / "user"


def test_a_real_device_does_not_take_folders_from_the_server(tmp_path, monkeypatch):
    assert where({}, tmp_path, monkeypatch, simulation=False) == "home/.fedapp"
    assert paths._base is None


def test_the_setups_own_folder_comes_before_the_servers(tmp_path, monkeypatch):
    assert where({}, tmp_path, monkeypatch, memory=tmp_path / "own") == "own"


def test_the_state_dir_of_the_node_wins(tmp_path, monkeypatch):
    state_dir = {"state-dir": str(tmp_path / "disk")}
    assert where(state_dir, tmp_path, monkeypatch, memory=tmp_path / "own") == "disk"


def test_a_client_whose_name_is_no_folder_is_reported(tmp_path):
    app = node.client_app(lambda context: setup(node.client_id(context), memory=tmp_path))
    info = unpack_info(ask(app, "query", **{"client-id": "../etc"}).content)
    assert "client id '../etc' cannot name a folder" in info.error


def test_flowers_own_state_stays_empty(tmp_path):
    app = node.client_app(lambda context: setup("0", memory=tmp_path))
    grid = LocalGrid(app, 1)
    list(grid.send_and_receive([Message(pack_instruction(instruction()), 1000, "train")]))
    assert len(grid.contexts[1000].state) == 0


# ---- seeds -----------------------------------------------------------------------------------------


def test_a_derived_seed_is_the_same_on_every_machine_and_in_every_version():
    assert derive(0, 3, "7", "batches") == 4946441440319157967


def test_derived_seeds_depend_on_every_part_and_its_type():
    seeds = [
        derive(*parts)
        for parts in [(0,), (1,), (0, 1), (0, "1"), (0, 1, 1), (0, 11), (0, "a", "b"), (0, "ab"), (0, "b", "a"), (-1,)]
    ]
    assert len(set(seeds)) == len(seeds)


def test_derived_seeds_fit_torch_and_numpy_and_look_uniform():
    seeds = [derive(7, number, "x") for number in range(2000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 2000
    assert abs(np.mean(seeds) / 2**63 - 0.5) < 5 / np.sqrt(12 * 2000)  # five standard errors
    torch.Generator().manual_seed(max(seeds))
    np.random.default_rng(max(seeds))


def test_samples_of_the_tests_do_not_depend_on_the_process():
    torch.manual_seed(1)
    first = samples(3).x
    torch.manual_seed(2)
    assert torch.equal(samples(3).x, first)


def test_a_model_just_saved_is_not_read_again_but_anybody_elses_is(here, monkeypatch):
    loads = []
    load = ClientMemory.load
    monkeypatch.setattr(ClientMemory, "load", lambda self, *, before: loads.append(before) or load(self, before=before))
    first, second = (setup(client, **here, model_key="resident") for client in ("0", "1"))
    node.train(instruction(1), first)
    loads.clear()
    fresh = node.evaluate(instruction(1), first)
    assert loads == []
    again = node.evaluate(instruction(1), first)
    assert len(loads) == 1
    assert fresh.metrics["loss"] == again.metrics["loss"]
    node.train(instruction(1), second)
    loads.clear()
    assert node.evaluate(instruction(1), first).metrics["loss"] == fresh.metrics["loss"]
    assert len(loads) == 1
