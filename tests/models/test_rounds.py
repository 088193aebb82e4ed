"""Every group trains one round on a data set of its kind: each model by itself, light groups as whole federations."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

import fedapp
from fedapp import datasets, doctor, models
from fedapp.client_update import Local
from fedapp.config import RunConfig, TrainingSettings, parse, split_pairs
from fedapp.doctor.step import step
from fedapp.payload import Downlink
from fedapp.strategies import METHODS
from tests.conftest import Samples
from tests.models.sources import CLASSES, SOURCES

LIGHT = ("small4", "small3-txt", "mlp-bow", "tabular3", "htfe6-txt-legacy")


@pytest.fixture(autouse=True)
def tiny_data_sets(monkeypatch):
    for source in SOURCES.values():
        monkeypatch.setitem(datasets.DATASETS, source.name, source)


def source_for(group):
    """The data set that every model of a group takes; a model that takes several kinds does not decide."""
    kinds = set.intersection(*(set(models.MODELS[name].takes) for name in models.resolve(group)))
    return SOURCES[min(kinds)]


@lru_cache(maxsize=64)
def round_of(name, source_name):
    """Train FedSAF for one round on one batch of 4; return the uplink and the shares of parameters that moved."""
    source = next(source for source in SOURCES.values() if source.name == source_name)
    pool = source.load(None)
    x = torch.from_numpy(pool.inputs[:4])
    if source.name == "tiny-images":
        x = x.permute(0, 3, 1, 2).float() / 127.5 - 1
    torch.manual_seed(0)
    sizes = {"input_shape": source.shape, "vocabulary": source.vocabulary}
    model = models.prepare(name, RunConfig(), num_classes=CLASSES, **sizes)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    method = METHODS["fedsaf"]
    training = TrainingSettings(batch_size=4, local_epochs=1, learning_rate=0.5, device="cpu")
    update = method.update(
        parse(method.strategy.params_type, split_pairs("")), Local("0", model, CLASSES, training=training)
    )
    uplink = update.train(Downlink(), Samples(x, torch.from_numpy(pool.labels[:4])))
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    return uplink, sum(moved) / len(moved)


@pytest.mark.parametrize("group", models.GROUPS)
def test_every_model_of_a_group_trains_a_round(group):
    source = source_for(group)
    for name in models.GROUPS[group]:
        uplink, moved = round_of(name, source.name)
        assert np.isfinite(uplink.metrics["loss"])
        prototypes = uplink.arrays["rows"]
        assert prototypes.shape == (CLASSES, 512)
        assert np.isfinite(prototypes).all()
        assert moved > 0.9, f"{name}: {moved:.0%} of the parameters moved"


@pytest.mark.parametrize("group", LIGHT)
def test_a_light_group_trains_a_round_as_a_federation_and_answers_again_from_its_records(group, tmp_path):
    source = source_for(group)
    clients = len(models.GROUPS[group])
    settings = {"local_epochs": 1, "batch_size": 8, "min_partition_size": 4, "partition": "iid", "out": tmp_path}
    run = fedapp.run("fedsaf", clients=clients, rounds=1, dataset=source.name, models=group, report=False, **settings)
    assert not run.failures
    about = run.described["clients"]
    assert [about[str(index)]["model"] for index in range(clients)] == list(models.GROUPS[group])
    assert {entry.get("vocabulary", 0) for entry in about.values()} == {source.vocabulary}
    recorded = run.clients.set_index("client")["accuracy"]["0"]
    assert run.client("0").evaluate()["accuracy"] == pytest.approx(recorded, abs=1e-9)


def test_a_frozen_start_goes_through_a_run_and_is_part_of_it(tmp_path):
    torch.manual_seed(5)
    donor = models.build("small-gru", num_classes=9, input_shape=(15,), feature_dim=64, vocabulary=40)
    torch.save(donor.state_dict(), tmp_path / "start.pt")
    settings = {"local_epochs": 1, "partition": "iid", "min_partition_size": 4, "feature_dim": 64, "out": tmp_path}
    settings |= {"init_from": tmp_path / "start.pt", "freeze": "extractor.*", "report": False}
    run = fedapp.run("fedproto", clients=2, rounds=1, dataset="tiny-texts", models="small-gru", **settings)
    weights = [run.client(client).model.state_dict() for client in "01"]
    for kept in weights:
        assert torch.equal(kept["extractor.reader.rnn.weight_hh_l1"], donor.extractor.reader.rnn.weight_hh_l1)
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])


def test_tokens_beyond_the_vocabulary_are_refused_before_training(tmp_path, monkeypatch):
    texts = SOURCES["tokens"]
    short = datasets.Source("short-texts", lambda settings: _cut(texts.load(settings)), "cut", CLASSES, texts.shape)
    monkeypatch.setitem(datasets.DATASETS, "short-texts", short)
    with pytest.raises(Exception, match=r"token ids of the train samples must be int64 in \[0, 30\), got 0 to 39"):
        fedapp.run(
            "local", clients=2, rounds=1, dataset="short-texts", models="text-logreg", partition="iid", out=tmp_path
        )


def _cut(pool):
    return replace(pool, vocabulary=30)


def test_a_server_model_starts_from_the_checkpoint_too(tmp_path):
    torch.manual_seed(5)
    donor = models.build("small-gru", num_classes=CLASSES, input_shape=(15,), feature_dim=64, vocabulary=40)
    torch.save(donor.state_dict(), tmp_path / "start.pt")
    settings = {"partition": "iid", "feature_dim": 64, "out": tmp_path, "init_from": tmp_path / "start.pt"}
    run = fedapp.run("fedavg", clients=2, rounds=0, dataset="tiny-texts", models="small-gru", report=False, **settings)
    for key, weight in run.client("1").model.state_dict().items():
        assert torch.equal(weight, donor.state_dict()[key])


def test_the_doctor_tries_text_models_on_token_ids():
    def looked_at(models):
        config = parse(RunConfig, {"dataset": "tiny-texts", "models": models, "feature-dim": 32, "device": "cpu"})
        checks = [check for check in doctor.CHECKS if check.name == "models"]
        return doctor.examine(config, 3, checks)[0]

    assert "small-gru, small-transformer: features (B, 32) and scores (B, 3)" in looked_at("small3-txt").detail
    assert "takes images or numbers, the data set has tokens" in looked_at("mlp").findings[0].problem
    config = parse(RunConfig, {"dataset": "tiny-texts", "device": "cpu", "batch-size": 4})
    assert step(config, "small-gru")["memory"] > 0
