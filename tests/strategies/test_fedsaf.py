"""FedSAF: two levels of structural alignment."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedapp.client_update import Local
from fedapp.config import SettingError
from fedapp.functional.alignment import ALIGNMENTS
from fedapp.payload import Downlink
from fedapp.strategies import register_alignment
from fedapp.strategies.fedsaf import FedSAFParams, FedSAFUpdate
from tests.strategies.federation import (
    CLASSES,
    FEATURES,
    MODELS,
    Federation,
    array_bytes,
    arrays_of_samples,
    assert_close,
    class_means,
    cross_entropy,
    doubled,
    drive,
    fingerprint,
    first_weights,
    samples,
    step,
    worked,
)

KNOWN = np.array([0, 1, 3, 4, 6], np.int32)
ZERO = {"proto_weight": 0.0, "inst_weight": 0.0}


def gcsa(p, q):
    """1 - linear CKA by its textbook form: |Pc^T Qc|^2 / (|Pc^T Pc| |Qc^T Qc|)."""
    p, q = p - p.mean(0), q - q.mean(0)
    return 1 - np.linalg.norm(p.T @ q) ** 2 / (np.linalg.norm(p.T @ p) * np.linalg.norm(q.T @ q))


def rcsa(p, q):
    """1 - cosine of the squared distances between unit rows, pair by pair."""
    p, q = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (p, q))
    pairs = list(itertools.combinations(range(len(p)), 2))
    a, b = (np.array([((rows[i] - rows[j]) ** 2).sum() for i, j in pairs]) for rows in (p, q))
    return 1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def mse(p, q):
    return ((p - q) ** 2).mean()


def cosine(p, q):
    return np.mean([1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in zip(p, q, strict=True)])


REFERENCES = {"gcsa": gcsa, "rcsa": rcsa, "mse": mse, "cosine": cosine}


def client(params, kind="bilinear"):
    torch.manual_seed(0)
    update = FedSAFUpdate(params, Local("0", MODELS[kind](), CLASSES))
    prototypes = np.random.default_rng(1).normal(size=(len(KNOWN), FEATURES)).astype(np.float32)
    update.receive(Downlink({"rows": prototypes, "classes": KNOWN}))
    return update, dict(zip(KNOWN.tolist(), prototypes.astype(np.float64), strict=True))


# ---- parameters and equations -----------------------------------------------------------------------


@pytest.mark.parametrize(("alignment", "weight"), [("gcsa", 10), ("rcsa", 10), ("mse", 0.1), ("cosine", 1)])
def test_weights_by_default_depend_on_the_alignment(alignment, weight):
    params = FedSAFParams(alignment=alignment)
    assert (params.proto_weight, params.inst_weight) == (weight, weight)
    assert FedSAFParams(alignment=alignment, proto_weight=0.0, inst_weight=3.0).inst_weight == 3
    assert FedSAFParams(alignment=alignment, proto_weight=0.0).proto_weight == 0


def test_negative_weights_and_unknown_alignments_are_refused():
    with pytest.raises(SettingError, match="proto-weight must be at least 0, or -1"):
        FedSAFParams(proto_weight=-0.5)
    with pytest.raises(SettingError, match="did you mean gcsa"):
        FedSAFParams(alignment="gsca")


@pytest.mark.parametrize("alignment", REFERENCES)
def test_loss_is_cross_entropy_plus_both_levels_over_the_known_classes(alignment):
    update, prototypes = client(FedSAFParams(alignment=alignment, proto_weight=2.0, inst_weight=3.0))
    held = samples(19, 0)
    loss = update.loss(held.x, held.y)
    x, y = arrays_of_samples(held)
    weights = doubled(update.model.state_dict())
    z = x @ weights["features.weight"].T
    kept = np.isin(y, KNOWN)
    means, _ = class_means(z[kept], y[kept])
    reference = REFERENCES[alignment]
    proto = reference(means[KNOWN], np.array([prototypes[label] for label in KNOWN.tolist()]))
    inst = reference(z[kept], np.array([prototypes[label] for label in y[kept].tolist()]))
    expected = cross_entropy(z @ weights["head.weight"].T, y) + 2 * proto + 3 * inst
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    assert min(proto, inst) > 1e-3
    update.end(held)
    assert update.metrics == pytest.approx(
        {"proto-loss": proto, "inst-loss": inst, "proto-active": 1, "inst-active": 1}, abs=1e-5
    )


@pytest.mark.parametrize("alignment", REFERENCES)
@pytest.mark.parametrize("level", ["proto", "inst"])
def test_each_level_alone_pulls_at_the_extractor_and_never_at_the_head(alignment, level):
    weights = {"proto_weight": float(level == "proto"), "inst_weight": float(level == "inst")}
    held, gradients = samples(19, 0), {}
    for name, chosen in (("with", weights), ("without", ZERO)):
        update, _ = client(FedSAFParams(alignment=alignment, **chosen))
        update.loss(held.x, held.y).backward()
        gradients[name] = {key: value.grad for key, value in update.model.named_parameters()}
    assert (gradients["with"]["features.weight"] - gradients["without"]["features.weight"]).norm() > 1e-4
    assert torch.equal(gradients["with"]["head.weight"], gradients["without"]["head.weight"])


@pytest.mark.parametrize("alignment", ["gcsa", "rcsa"])
def test_a_batch_of_one_class_gives_cross_entropy_exactly(alignment):
    update, _ = client(FedSAFParams(alignment=alignment))
    plain, _ = client(FedSAFParams(alignment=alignment, **ZERO))
    held = samples(8, 0, [6])
    for one in (update, plain):
        one.loss(held.x, held.y).backward()
    with torch.no_grad():
        assert update.loss(held.x, held.y) == plain.loss(held.x, held.y)
    for found, expected in zip(update.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)
    update.end(held)
    assert update.metrics == {"proto-loss": 0, "inst-loss": 0, "proto-active": 0, "inst-active": 0}


@pytest.mark.parametrize("alignment", REFERENCES)
def test_a_batch_of_an_unknown_class_gives_cross_entropy_exactly(alignment):
    update, _ = client(FedSAFParams(alignment=alignment))
    plain, _ = client(FedSAFParams(alignment=alignment, **ZERO))
    held = samples(8, 0, [5])
    assert torch.equal(update.loss(held.x, held.y), plain.loss(held.x, held.y))
    update.end(held)
    assert set(update.metrics.values()) == {0.0}


@pytest.mark.parametrize("alignment", ["gcsa", "rcsa"])
def test_the_share_of_active_batches_is_reported(alignment):
    update, _ = client(FedSAFParams(alignment=alignment))
    for classes in ([6], [0, 1], [0, 1, 3], [0, 1, 5]):  # one class; two; three; two that are known
        held = samples(9, 0, classes)
        update.loss(held.x, held.y)
    update.end(held)
    assert (update.metrics["proto-active"], update.metrics["inst-active"]) == (1 / 4, 3 / 4)


# ---- rounds by hand ---------------------------------------------------------------------------------


def test_two_clients_for_two_rounds_by_hand(tmp_path):
    made = worked(tmp_path, "bilinear")
    lam, gamma = 0.8, 1.7
    params = FedSAFParams(alignment="mse", proto_weight=lam, inst_weight=gamma)
    outcome = made.run("fedsaf", params, num_rounds=2)
    weights = {client: first_weights(client, "bilinear") for client in made.clients}
    prototypes, known = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES, bool)
    for _ in range(2):
        sums, holders = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)

        def pull(z, y, prototypes=prototypes, known=known):
            kept = known[y]
            if not kept.any():
                return 0.0
            means, counts = class_means(z, y)
            number = len(np.unique(y[kept]))
            proto = 2 * (means - prototypes)[y] / (number * FEATURES * counts[y][:, None])
            inst = 2 * (z - prototypes[y]) / (kept.sum() * FEATURES)
            return (lam * proto + gamma * inst) * kept[:, None]

        for client_id, held in zip(made.clients, made.train, strict=True):
            x, y = arrays_of_samples(held)
            means, counts = class_means(x @ weights[client_id]["features.weight"].T, y)
            sums, holders = sums + means, holders + (counts > 0)
            weights[client_id] = step(weights[client_id], held, rate=0.5, pull=pull)
        prototypes, known = sums / np.maximum(holders, 1)[:, None], holders > 0
    for client_id in made.clients:
        assert_close(made.model(outcome.strategy, client_id), weights[client_id])
    assert_close(outcome.strategy.state(), {"prototypes": prototypes, "known": known})


def test_its_messages_are_those_of_fedproto_byte_for_byte(tmp_path):
    made = Federation(tmp_path)
    sizes = [
        [array_bytes(message) for message in (*outcome.grid.sent, *outcome.grid.received)]
        for outcome in (made.run("fedsaf"), made.run("fedproto"))
    ]
    assert sizes[0] == sizes[1]
    assert sum(sizes[0]) > 0


# ---- what others may put in -------------------------------------------------------------------------


@pytest.fixture
def own_alignment():
    name = "covariance"
    register_alignment(name, lambda rows: (rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows))
    yield name
    del ALIGNMENTS[name]


def test_a_structure_operator_of_ones_own_runs_and_pulls(tmp_path, own_alignment):
    made = Federation(tmp_path)
    params = FedSAFParams(alignment=own_alignment)
    assert (params.proto_weight, params.inst_weight) == (10, 10)
    outcome = made.run("fedsaf", params)
    assert outcome.failures == []
    assert outcome.digests != made.run("local").digests
    trained = outcome.records[1].trained[0].metrics
    assert trained["inst-loss"] > 0
    assert trained["inst-active"] == 1


@dataclass
class Anchors:
    """Fixed anchors (Eq. 4): known before the first round, never changed."""

    prototypes: np.ndarray = None
    known: np.ndarray = None

    def begin(self, num_classes, feature_dim, seed):
        drawn = np.random.default_rng(seed).normal(size=(num_classes, feature_dim))
        self.prototypes = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        self.known = np.ones(num_classes, bool)

    def update(self, local, counts):
        pass

    def state(self):
        return {}

    def load_state(self, arrays):
        pass


class Trained:
    """Prototypes that the server trains (Eq. 5): a step towards every upload, with momentum as further state."""

    def __init__(self):
        self.prototypes = self.known = self.momentum = None

    def begin(self, num_classes, feature_dim, seed):
        if self.prototypes is None:
            self.prototypes = np.zeros((num_classes, feature_dim), np.float32)
            self.momentum = np.zeros_like(self.prototypes)
            self.known = np.zeros(num_classes, bool)

    def update(self, local, counts):
        held = (counts > 0)[..., None]
        gradient = ((self.prototypes - local) * held).sum(axis=0)
        self.momentum = (0.9 * self.momentum + gradient).astype(np.float32)
        self.prototypes = (self.prototypes - 0.1 * self.momentum).astype(np.float32)
        self.known = self.known | (counts > 0).any(axis=0)

    def state(self):
        return {"prototypes": self.prototypes, "known": self.known, "momentum": self.momentum}

    def load_state(self, arrays):
        self.prototypes, self.known, self.momentum = arrays["prototypes"], arrays["known"], arrays["momentum"]


def test_fixed_anchors_align_from_the_first_round_on(tmp_path):
    outcome = Federation(tmp_path).run("fedsaf", construction=Anchors())
    assert outcome.failures == []
    for record in outcome.records:
        assert {flow.payload_down for (phase, _), flow in record.traffic.items() if phase == "train"} == {
            CLASSES * (FEATURES + 1) * 4
        }
        assert all(reply.metrics["inst-active"] > 0 for reply in record.trained)


@pytest.mark.parametrize("construction", [Anchors, Trained])
def test_state_of_a_construction_survives_saving(tmp_path, construction):
    made = Federation(tmp_path)
    whole, broken, resumed = (
        made.strategy("fedsaf", run=run, construction=construction()) for run in ("whole", "broken", "broken")
    )
    measured = drive(whole, made.grid(), (1, 2, 3))
    first = drive(broken, made.grid(), (1, 2))
    resumed.load_state({name: array.numpy() for name, array in broken._state_record().items()})
    assert first + drive(resumed, made.grid(), (3,)) == measured
    assert fingerprint(resumed.state()) == fingerprint(whole.state())
    for client_id in made.clients:
        assert fingerprint(made.kept(resumed, client_id)) == fingerprint(made.kept(whole, client_id))
