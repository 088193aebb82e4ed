"""fedapp doctor: a clean machine, and one broken fixture for every check."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedapp import datasets, doctor, models
from fedapp.cli import app
from fedapp.config import RunConfig, parse
from fedapp.datasets import hub
from fedapp.doctor import disk, dryrun, packages, packing, ports
from fedapp.doctor.base import Case, UnwellError
from fedapp.doctor.packing import Limit, Machine, Peak, advice, limits
from fedapp.memory import KEPT_ROUNDS

GB, GIB = 10**9, 2**30
CODES = {check.name: check.code for check in doctor.CHECKS}


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path, monkeypatch):
    """Ports that are free, a directory of one's own, a tracker of nobody."""
    monkeypatch.chdir(tmp_path)
    for variable in ports.PORTS:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            monkeypatch.setenv(variable, str(listener.getsockname()[1]))


@pytest.fixture
def listener():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def config(**settings) -> RunConfig:
    return parse(
        RunConfig, {"models": "mlp", "feature-dim": 32, **{k.replace("_", "-"): v for k, v in settings.items()}}
    )


def look(names: str, clients: int = 4, **settings) -> dict[str, doctor.Outcome]:
    """Make some of the checks, by name, in their order."""
    checks = [check for check in doctor.CHECKS if check.name in names.split()]
    return {outcome.check: outcome for outcome in doctor.examine(config(**settings), clients, checks)}


def only_finding(outcome: doctor.Outcome):
    (finding,) = outcome.findings
    return finding


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words])
    return result.exit_code, result.output


# ---- a clean machine -------------------------------------------------------------------------------


def test_a_clean_machine_ends_with_code_0_and_a_line_a_check():
    code, output = call("--clients", "2", "--set", "models=mlp,small-cnn", "--set", "feature-dim=32")
    assert code == 0, output
    assert [line.split()[:2] for line in output.splitlines()] == [["ok", check.name] for check in doctor.CHECKS]


def test_the_help_names_every_exit_code():
    text = re.sub(r"[│\s]+", " ", call("--help")[1])
    assert all(f"{code} {name}" in text for name, code in CODES.items())
    assert list(CODES.values()) == sorted(set(CODES.values()))


def test_json_says_the_same(monkeypatch):
    monkeypatch.setattr(packing, "measure", lambda case, model: {"memory": GB, "gpu_memory": 0, "gpus": []})
    code, output = call("--json", "--clients", "4", "--set", "models=mlp", "--set", "data-root=no/such")
    told = json.loads(output)
    assert code == told["exit_code"] == CODES["data"]
    by_name = {check["check"]: check for check in told["checks"]}
    assert list(by_name) == list(CODES)
    assert by_name["data"]["findings"][0]["problem"].startswith("data-root = 'no/such' is not there")
    assert by_name["partition"]["skipped"]


def test_of_several_findings_the_first_gives_the_code_and_all_are_listed(monkeypatch, listener):
    variable = next(iter(ports.PORTS))
    monkeypatch.setenv(variable, str(listener.getsockname()[1]))
    monkeypatch.setattr(packing, "measure", lambda case, model: {"memory": GB, "gpu_memory": 0, "gpus": []})
    code, output = call("--set", "data-root=no/such", "--set", "track=tensorbord")
    assert code == CODES["settings"] == 2
    assert [line.split()[1] for line in output.splitlines() if line.startswith("wrong")] == [
        "settings",
        "data",
        "ports",
    ]
    assert output.count("cure: ") == 3


def test_a_preset_and_a_file_of_settings_are_examined_as_a_run_would_read_them(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(doctor, "examine", lambda case, clients: seen.append((case, clients)) or [])
    (tmp_path / "mine.yaml").write_text("models: mlp\nbatch-size: 7\nlocal-epochs: 3\n")
    code, output = call("--preset", "pacs-clean", "--config", "mine.yaml", "--set", "local-epochs=2")
    assert code == 0, output
    ((case, clients),) = seen
    assert clients == 4
    assert case.data.dataset == "pacs"
    assert (case.models, case.training.batch_size, case.training.local_epochs) == ("mlp", 7, 2)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--preset", "pacs-claen"), "did you mean pacs-clean?"),
        (("--config", "no-such.yaml"), "no-such.yaml cannot be read"),
    ],
)
def test_a_preset_or_a_file_that_is_not_there_ends_with_code_2(words, problem):
    code, output = call(*words)
    assert code == 2
    assert problem in output


# ---- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "problem", "cure"),
    [
        ({"method": "fedsaff"}, "unknown method 'fedsaff'", "did you mean fedsaf"),
        ({"method_params": "alignment=gsca"}, "'gsca'", "did you mean gcsa"),
        ({"device_tiers": "pi slowdown=0"}, "slowdown must be at least 1", "how many times longer"),
        ({"plugins": "no_such_module"}, "plugin 'no_such_module' cannot be imported", "PYTHONPATH"),
    ],
)
def test_a_wrong_setting_is_a_finding(settings, problem, cure):
    outcome = look("settings", **settings)["settings"]
    finding = only_finding(outcome)
    assert problem in finding.problem
    assert cure in finding.cure
    assert doctor.exit_code([outcome]) == 2


# ---- packages --------------------------------------------------------------------------------------


def install(folder: Path, name: str, version: str, *requires: str) -> None:
    """Leave the metadata of a distribution in a folder, as pip does."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


def problems(folder: Path) -> list[str]:
    return [finding.problem for finding in packages.inspect("fedapp", [str(folder)])[1]]


@pytest.fixture
def site(tmp_path):
    """An environment that fits: fedapp -> flwr[simulation] -> ray, and the pair torch and torchvision."""
    folder = tmp_path / "site"
    install(folder, "fedapp", "0.1.0", "flwr[simulation]<2,>=1.42.0", "torchvision", "pytest; extra == 'dev'")
    install(folder, "flwr", "1.42.0", "ray==2.55.1; extra == 'simulation'", "typing_extensions; python_version < '3'")
    install(folder, "torchvision", "0.29.0", "torch==2.14.0")
    return folder


def test_packages_that_fit_are_followed_through_extras_and_markers(site):
    install(site, "ray", "2.55.1")
    install(site, "torch", "2.14.0+cpu")
    assert problems(site) == []
    assert packages.inspect("fedapp", [str(site)])[0] == {"fedapp", "flwr", "ray", "torchvision", "torch"}


def test_a_pin_that_is_not_met_names_both_versions_and_the_command(site):
    install(site, "ray", "2.40.0")
    install(site, "torch", "2.13.0")
    found = packages.inspect("fedapp", [str(site)])[1]
    assert sorted(finding.problem for finding in found) == [
        "ray 2.40.0 is installed, but flwr 1.42.0 needs ray==2.55.1",
        "torch 2.13.0 is installed, but torchvision 0.29.0 needs torch==2.14.0",
    ]
    assert {finding.cure for finding in found} == {"pip install 'ray==2.55.1'", "pip install 'torch==2.14.0'"}


def test_bounds_of_flower_and_missing_packages_are_told(site, tmp_path):
    other = tmp_path / "other"
    install(other, "fedapp", "0.1.0", "flwr<2,>=1.42.0", "safetensors>=0.4")
    install(other, "flwr", "1.30.0")
    assert sorted(problems(other)) == [
        "flwr 1.30.0 is installed, but fedapp 0.1.0 needs flwr<2,>=1.42.0",
        "safetensors is not installed; fedapp 0.1.0 needs safetensors>=0.4",
    ]
    assert problems(tmp_path / "none") == ["fedapp is not installed as a package, so what it needs cannot be told"]


def test_a_misfit_of_this_environment_ends_with_its_code(site, monkeypatch):
    install(site, "ray", "2.40.0")
    install(site, "torch", "2.14.0")
    monkeypatch.setattr(sys, "path", [str(site)])
    outcome = look("packages")["packages"]
    assert "ray 2.40.0" in only_finding(outcome).problem
    assert doctor.exit_code([outcome]) == CODES["packages"]


# ---- data and partition ----------------------------------------------------------------------------


def test_a_missing_data_root_is_found_and_the_partition_left_out(tmp_path):
    outcomes = look("data partition", data_root=str(tmp_path / "gone"))
    assert "is not there" in only_finding(outcomes["data"]).problem
    assert outcomes["partition"].skipped
    assert doctor.exit_code(list(outcomes.values())) == CODES["data"]


def test_an_unreachable_hub_is_found(tmp_path, monkeypatch):
    def unreachable(repository):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(hub, "_ask", unreachable)
    monkeypatch.setattr(hub, "_failed", {})
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    datasets.forget()
    finding = only_finding(look("data", dataset="cifar100")["data"])
    assert "nor on the hub as uoft-cs/cifar100 (ConnectionError: no route to host)" in finding.problem
    assert "set data-root" in finding.cure


def test_an_infeasible_partition_is_found():
    outcomes = look("data partition", clients=10, partition="dirichlet", min_partition_size=5000)
    assert "exceeds the" in only_finding(outcomes["partition"]).problem
    assert "set it to at most" in only_finding(outcomes["partition"]).cure
    assert doctor.exit_code(list(outcomes.values())) == CODES["partition"]


def test_the_client_with_least_is_named():
    settings = config(partition="dirichlet")
    shares = datasets.load_shares(settings.data, 6)
    least = min(range(6), key=lambda index: len(shares[index].train))
    detail = look("data partition", clients=6, partition="dirichlet")["partition"].detail
    assert f"least: client {least} with {len(shares[least].train)} for training" in detail


# ---- models ----------------------------------------------------------------------------------------


class Net(nn.Module):
    """A model of one's own, sound unless a test breaks it."""

    def __init__(self, num_classes, input_shape):
        super().__init__()
        width = input_shape[0] * input_shape[1] * input_shape[2]
        self.body, self.head = nn.Linear(width, 7), nn.Linear(7, num_classes)

    def features(self, x):
        return torch.relu(self.body(x.flatten(1)))


class WrongHead(Net):
    def __init__(self, num_classes, input_shape):
        super().__init__(num_classes + 1, input_shape)


class FlatFeatures(Net):
    def features(self, x):
        return super().features(x).flatten()


class Doubles(Net):
    def features(self, x):
        return super().features(x).double()

    def head(self, z):
        return z


class Detached(Net):
    def __init__(self, num_classes, input_shape):
        super().__init__(num_classes, input_shape)
        self.head = nn.Softmax(dim=1)

    def features(self, x):
        return super().features(x).detach()[:, :1].repeat(1, 10).requires_grad_()


class NotFinite(Net):
    def features(self, x):
        return super().features(x) / 0


class SqueezesOne(Net):
    def features(self, x):
        return super().features(x).squeeze(0)


class Raises(Net):
    def features(self, x):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.fixture
def plugin(monkeypatch):
    """Register a model as a plugin does, for one test."""
    monkeypatch.setattr(models, "MODELS", dict(models.MODELS))

    def register(build: type[nn.Module]) -> None:
        models.register("own", build)

    return register


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (WrongHead, "own: head(x) must be a float32 tensor (2, 10) in training, got (2, 11) of float32"),
        (FlatFeatures, "own: features(x) must be a float32 tensor (2, D) in training, got (14,) of float32"),
        (Doubles, "own: features(x) must be a float32 tensor (2, D) in training, got (2, 7) of float64"),
        (Detached, "own: no parameter gets a gradient from head(features(x)); do not detach the features"),
        (NotFinite, "own: features(x) holds values that are not finite in training"),
        (SqueezesOne, "own: features(x) must be a float32 tensor (1, 7) in evaluation, got (7,) of float32"),
        (Raises, "own: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_model_with_a_wrong_half_is_found(plugin, build, problem):
    plugin(build)
    outcomes = look("models packing disk", models="own")
    assert only_finding(outcomes["models"]).problem == problem
    assert outcomes["packing"].skipped
    assert outcomes["disk"].skipped
    assert doctor.exit_code(list(outcomes.values())) == CODES["models"]


def test_every_broken_model_of_a_group_is_named(plugin):
    plugin(WrongHead)
    models.register("other", Raises)
    outcome = look("models", models="own,mlp,other,own")["models"]
    assert [finding.problem.partition(":")[0] for finding in outcome.findings] == ["own", "other"]


def test_models_that_do_not_fit_the_method_together_are_found():
    outcomes = look("settings models", method="fedavg", models="mlp,small-cnn")
    assert "fedavg needs clients with the same model, got 2 kinds" in only_finding(outcomes["models"]).problem
    assert not look("settings models", method="fedavg", models="mlp,small-cnn", clients=1)["models"].findings
    outcomes = look("settings models", method="fedavg", models="mlp,small-cnn", track="tensorbord")
    assert all(outcome.findings for outcome in outcomes.values())


def test_a_list_of_models_has_to_be_as_long_as_there_are_clients():
    outcome = look("models", models="mlp,small-cnn", model_assignment="list", clients=3)["models"]
    assert "needs one model for each of the 3 clients, got 2" in only_finding(outcome).problem


def test_the_facts_of_a_model_are_its_bytes_and_widths(plugin):
    plugin(Net)
    case = Case(config(models="own"), 2)
    dryrun.look(case)
    fact = case.assigned[1]
    assert fact.nbytes == 4 * (3 * 32 * 32 * 7 + 7 + 7 * 10 + 10)
    assert (fact.info.feature_dim, fact.info.num_classes) == (7, 10)


# ---- packing: the arithmetic -----------------------------------------------------------------------


def least(*args, **options) -> Limit:
    return min(limits(*args, **options), key=lambda limit: limit.count)


def test_gpu_memory_bounds_a_machine_of_many_cpus():
    found = least(Machine(128, 512 * GIB, (24 * GIB, 24 * GIB)), Peak(2 * GIB, 4 * GIB))
    assert found.count == 10  # 0.9 * 24 / 4 = 5.4 on each of two
    assert found.reason == "2 GPUs, 5 on each: 90 % of 24.0 GiB / 4.0 GiB a client"


def test_gpus_of_unequal_size_hold_what_each_holds():
    found = least(Machine(64, 512 * GIB, (24 * GIB, 8 * GIB)), Peak(2 * GIB, 4 * GIB))
    assert (found.count, found.reason[:20]) == (6, "2 GPUs, 5/1 on each:")


def test_cpus_bound_a_small_machine():
    assert least(Machine(2, 24 * GIB), Peak(GIB)) == Limit("cpu", 2, "2 CPUs, 1 a client")
    assert least(Machine(8, 64 * GIB), Peak(GIB), cpus_a_client=3).count == 2


def test_memory_bounds_big_models():
    found = least(Machine(64, 24 * GIB), Peak(3 * GIB))
    assert found == Limit("memory", 7, "90 % of 24.0 GiB free memory / 3.0 GiB a client")


def test_no_advice_where_fewer_clients_run_than_fit():
    assert advice(Machine(2, 24 * GIB), Peak(GIB), clients=1000) is None
    assert advice(Machine(128, 512 * GIB, (24 * GIB,)), Peak(GIB, 4 * GIB), clients=5) is None
    assert advice(Machine(128, 512 * GIB, (24 * GIB,)), Peak(GIB, 4 * GIB), clients=6) is not None


@pytest.mark.parametrize("cpus", [3, 4, 7, 16, 100, 128])
@pytest.mark.parametrize("memory", [2, 5, 9, 11, 40])
def test_following_the_advice_starts_no_more_than_fit_and_as_many_as_it_can(cpus, memory):
    machine, peak = Machine(cpus, memory * GIB), Peak(GIB)
    finding = advice(machine, peak, clients=1000)
    fit = int(0.9 * memory)
    if finding is None:
        assert fit >= cpus
        return
    declared = int(re.search(r"client-resources-num-cpus=(\d+)", finding.cure).group(1))
    assert int(re.search(r"--set workers=(\d+)", finding.cure).group(1)) == fit
    assert cpus // declared <= fit
    assert cpus // (declared - 1) > fit


def test_following_the_advice_for_gpus_starts_no_more_than_fit():
    for peak in (1, 2, 3, 4, 5, 7):
        finding = advice(Machine(128, 512 * GIB, (24 * GIB,)), Peak(0.1 * GIB, peak * GIB), clients=1000)
        share = float(re.search(r"client-resources-num-gpus=([\d.]+)", finding.cure).group(1))
        assert int(1 / share) == int(0.9 * 24 / peak)


def test_a_client_that_does_not_fit_at_all_is_found():
    finding = advice(Machine(2, GIB), Peak(4 * GIB), clients=1)
    assert finding.problem.startswith("not even one client fits: 90 % of 1.0 GiB free memory / 4.0 GiB")


# ---- packing: the measurement ----------------------------------------------------------------------


def test_a_crowded_machine_ends_with_its_code(monkeypatch):
    monkeypatch.setattr(packing, "measure", lambda case, model: {"memory": 4 * GIB, "gpu_memory": 0, "gpus": []})
    monkeypatch.setattr(packing, "cpus", lambda: 16)
    monkeypatch.setattr(packing, "available_memory", lambda: 24.0 * GIB)
    outcomes = look("models packing", clients=20)
    assert only_finding(outcomes["packing"]).problem.startswith("16 clients would train at once, but only 5 fit")
    assert doctor.exit_code(list(outcomes.values())) == CODES["packing"]


def test_the_data_that_a_worker_keeps_counts(monkeypatch):
    monkeypatch.setattr(packing, "measure", lambda case, model: {"memory": GIB, "gpu_memory": 0, "gpus": []})
    monkeypatch.setattr(packing, "available_memory", lambda: 100.0 * GIB)
    alone = look("models packing")["packing"].detail
    assert "1.0 GiB a worker" in alone
    assert "1.1 GiB a worker" in look("data models packing")["packing"].detail


def test_the_step_in_a_child_process_takes_more_for_bigger_batches():
    small, big = (packing.measure(Case(config(batch_size=rows), 2), "small-resnet") for rows in (8, 800))
    assert small["memory"] > 100 * 2**20  # torch alone takes as much
    assert big["memory"] > small["memory"] + 50 * 2**20


def test_a_step_that_fails_is_found(tmp_path, monkeypatch):
    (tmp_path / "brittle.py").write_text(
        "from fedapp import models\nfrom torch import nn\n"
        "class Brittle(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(3, 10)\n"
        "    def features(self, x):\n        raise MemoryError('out of memory')\n"
        "models.register('brittle', Brittle)\n"
    )
    with pytest.raises(UnwellError, match="one training step of brittle fails: MemoryError: out of memory"):
        packing.measure(Case(config(plugins="brittle"), 2), "brittle")


def test_a_step_that_never_ends_is_found(monkeypatch):
    monkeypatch.setattr(packing, "STEP_SECONDS", 0.05)
    with pytest.raises(UnwellError, match=r"one training step of mlp takes more than 0\.05 s"):
        packing.measure(Case(config(), 2), "mlp")


# ---- disk ------------------------------------------------------------------------------------------

Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: asked.append(folder) or Usage(GB, GB, 1000))
    outcomes = look("models disk", out="runs/of/today")
    finding = only_finding(outcomes["disk"])
    assert finding.problem.endswith("on the disk of `out`, where 1000 B are free")
    assert asked == [tmp_path]
    assert doctor.exit_code(list(outcomes.values())) == CODES["disk"]


def test_the_disk_holds_the_kept_rounds_one_more_and_what_is_saved(monkeypatch):
    one = 4 * (3 * 32 * 32 * 7 + 7 + 7 * 10 + 10)
    assert disk.needed(5 * one, rounds=10, save_every=0) == 5 * one * (KEPT_ROUNDS + 1)
    assert disk.needed(5 * one, rounds=10, save_every=3) == 5 * one * (KEPT_ROUNDS + 1 + 3 + 1)


# ---- ports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", list(ports.PORTS))
def test_a_stranger_on_a_port_is_named(variable, listener, monkeypatch):
    port = listener.getsockname()[1]
    monkeypatch.setenv(variable, str(port))
    outcome = look("ports")["ports"]
    finding = only_finding(outcome)
    assert finding.problem.startswith(f"port {port} is held by a stranger, pid {os.getpid()} of user ")
    assert f"end it (kill {os.getpid()}), or set {variable} to a free port" in finding.cure
    assert doctor.exit_code([outcome]) == CODES["ports"]


def test_a_port_that_is_none_is_found(monkeypatch):
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", "http")
    assert only_finding(look("ports")["ports"]).problem == "FLWR_LOCAL_CONTROL_API_PORT = 'http' is not a port"


def test_our_own_superlink_is_no_stranger_and_another_environments_is():
    me = ports._user(os.getuid())
    folder = Path(sys.executable).parent
    ours = ports.Holder(7, me, (sys.executable, str(folder / "flower-superlink"), "--insecure"))
    theirs = ports.Holder(7, me, ("/opt/venv/bin/python", "/opt/venv/bin/flower-superlink"))
    assert ours.is_ours
    assert not theirs.is_ours
    assert str(theirs).startswith("a SuperLink of another environment, pid 7")
    assert not ports.Holder(7, "somebody", ours.command).is_ours
    assert str(ports.Holder(0, "somebody", ())) == "a process of user somebody"
    assert str(ports.Holder(0, "", ())) == "a process that cannot be told"


def test_a_holder_is_unknown_where_proc_is_not_there(listener, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError()))
    assert ports.holder_of(listener.getsockname()[1]) == ports.Holder(0, "", ())


# ---- trouble in a check ----------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch):
    def broken(case):
        raise KeyError("boom")

    checks = [doctor.Check("packages", 10, broken), doctor.Check("ports", 16, lambda case: "fine")]
    first, second = doctor.examine(config(), 2, checks)
    assert only_finding(first).problem == "KeyError: 'boom'"
    assert second.detail == "fine"
