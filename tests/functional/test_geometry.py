"""How prototypes of clients lie to each other, against formulas written out here."""

import numpy as np
import pytest

from fedapp.functional import geometry


def linear_cka(p, q):
    p, q = p - p.mean(0), q - q.mean(0)
    return np.linalg.norm(p.T @ q) ** 2 / (np.linalg.norm(p.T @ p) * np.linalg.norm(q.T @ q))


def test_cross_client_cka_is_the_mean_over_pairs_on_the_classes_both_hold():
    rng = np.random.default_rng(0)
    prototypes, counts = rng.normal(size=(3, 6, 4)), np.ones((3, 6), int)
    counts[0, 5] = counts[1, 0] = 0
    counts[2, 2:] = 0  # shares two classes with anybody: no structure to compare
    expected = linear_cka(prototypes[0, 1:5], prototypes[1, 1:5])
    assert geometry.cross_client_cka(prototypes, counts) == pytest.approx(expected, abs=1e-12)


def test_cka_without_a_pair_that_shares_three_classes_is_not_a_number():
    assert np.isnan(geometry.cross_client_cka(np.ones((2, 2, 3)), np.ones((2, 2), int)))


def test_many_pairs_are_sampled_evenly_and_their_number_is_bounded(monkeypatch):
    rng = np.random.default_rng(1)
    prototypes, counts = rng.normal(size=(30, 3, 4)), np.ones((30, 3), int)
    seen = []
    real = geometry.gcsa
    monkeypatch.setattr(geometry, "gcsa", lambda p, q: seen.append(1) or real(p, q))
    geometry.cross_client_cka(prototypes, counts)
    assert len(seen) == geometry.MOST_PAIRS < 30 * 29 / 2


def test_shape_and_rigid_sum_to_the_distance_of_unit_rows_on_known_classes_held():
    rng = np.random.default_rng(2)
    own, reference = rng.normal(size=(5, 7)), rng.normal(size=(5, 7))
    counts, known = np.array([2, 0, 1, 4, 9]), np.array([True, True, False, True, True])
    both = [0, 3, 4]
    unit = [array[both] / np.linalg.norm(array[both], axis=1, keepdims=True) for array in (own, reference)]
    shape, rigid = geometry.shape_and_rigid(own, counts, reference, known)
    nuclear = np.linalg.svd(unit[1].T @ unit[0], compute_uv=False).sum()
    assert shape == pytest.approx(2 * 3 - 2 * nuclear, abs=1e-9)
    assert shape + rigid == pytest.approx(((unit[0] - unit[1]) ** 2).sum(), abs=1e-9)


def test_a_client_without_a_known_class_has_no_parts():
    parts = geometry.shape_and_rigid(np.ones((2, 3)), np.array([1, 0]), np.ones((2, 3)), np.array([False, True]))
    assert np.isnan(parts).all()
