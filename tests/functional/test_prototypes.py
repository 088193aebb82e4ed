import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.prototypes import (
    batch_prototypes,
    class_means,
    class_sums,
    dense,
    held,
    merge_previous,
    nearest_prototype,
    weighted_mean,
)


def signed(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_class_means_equal_a_loop_over_classes_and_absent_classes_are_zero():
    features, labels = signed(30, 5), torch.arange(30) % 4
    means, counts = class_means(features, labels, 6)
    for c in range(4):
        rows = [features[j] for j in range(30) if j % 4 == c]
        np.testing.assert_allclose(means[c], sum(rows) / len(rows), atol=1e-12)
    assert counts.tolist() == [8, 8, 7, 7, 0, 0]
    assert not means[4:].any()


def test_class_sums_of_batches_add_up_to_the_sums_of_the_whole():
    features, labels = signed(20, 3, dtype=torch.float32), torch.arange(20) % 3
    first, second, whole = (class_sums(features[s], labels[s], 3) for s in (slice(7), slice(7, 20), slice(20)))
    assert whole[0].dtype == torch.float64
    np.testing.assert_allclose(first[0] + second[0], whole[0], atol=1e-12)
    assert (first[1] + second[1]).tolist() == whole[1].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_class_means_keep_the_dtype_but_accumulate_in_float64(dtype):
    # 1000 times 1 + 2^-7 in bfloat16 itself would stall at 256.
    features = torch.full((1000, 2), 1.0078125, dtype=dtype)
    means, counts = class_means(features, torch.zeros(1000, dtype=torch.int64), 1)
    assert means.dtype == dtype
    assert counts.dtype == torch.int64
    assert means.tolist() == [[1.0078125, 1.0078125]]


def test_class_means_of_no_samples_are_zero():
    means, counts = class_means(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), 2)
    assert means.tolist() == [[0.0] * 3] * 2
    assert counts.tolist() == [0, 0]


def test_batch_prototypes_are_class_means_and_let_the_gradient_through():
    features, labels = signed(6, 2).requires_grad_(), torch.tensor([5, 2, 5, 5, 2, 9])
    prototypes, classes = batch_prototypes(features, labels)
    assert classes.tolist() == [2, 5, 9]
    expected = torch.stack(
        [(features[1] + features[4]) / 2, (features[0] + features[2] + features[3]) / 3, features[5]]
    )
    torch.testing.assert_close(prototypes, expected)
    prototypes.sum().backward()
    np.testing.assert_allclose(features.grad[:, 0], [1 / 3, 1 / 2, 1 / 3, 1 / 3, 1 / 2, 1], atol=1e-12)


def test_batch_prototypes_of_bfloat16_features_are_float32():
    prototypes, _ = batch_prototypes(signed(4, 2).bfloat16(), torch.tensor([0, 0, 1, 1]))
    assert prototypes.dtype == torch.float32


def test_labels_of_another_length_are_refused_with_both_shapes():
    for function in (batch_prototypes, lambda z, y: class_means(z, y, 3), lambda z, y: class_sums(z, y, 3)):
        with pytest.raises(ValueError, match=r"\(4, 2\) and \(3,\)"):
            function(torch.ones(4, 2), torch.zeros(3, dtype=torch.int64))


def test_nearest_prototype_equals_brute_force_over_known_classes():
    features, prototypes = signed(50, 4), signed(6, 4, seed=1)
    known = torch.tensor([True, False, True, True, False, True])
    got = nearest_prototype(features, prototypes, known)
    for j in range(50):
        distances = {c: ((features[j] - prototypes[c]) ** 2).sum().item() for c in range(6) if known[c]}
        assert got[j].item() == min(distances, key=distances.get)


def test_nearest_prototype_never_reads_an_unknown_row():
    prototypes = torch.tensor([[float("nan")], [1.0]])
    assert nearest_prototype(torch.tensor([[0.0]]), prototypes, torch.tensor([False, True])).tolist() == [1]


def test_nearest_prototype_without_known_classes_is_an_error():
    with pytest.raises(ValueError, match="at least one class"):
        nearest_prototype(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(4, 5\)"):
        nearest_prototype(torch.ones(2, 3), torch.ones(4, 5), torch.ones(4, dtype=torch.bool))


def test_weighted_mean_by_hand_for_both_weightings():
    # Class 0: held by both with counts 1 and 3; class 1: by the second client alone; class 2: by nobody.
    prototypes = np.array([[[2.0], [50.0], [7.0]], [[-6.0], [1.5], [7.0]]], dtype=np.float32)
    counts = np.array([[1, 0, 0], [3, 4, 0]])
    uniform, known = weighted_mean(prototypes, counts, "uniform")
    samples, _ = weighted_mean(prototypes, counts, "samples")
    assert uniform.ravel().tolist() == [-2.0, 1.5, 0.0]
    assert samples.ravel().tolist() == [-4.0, 1.5, 0.0]
    assert known.tolist() == [True, True, False]
    assert uniform.dtype == np.float32


def test_a_nan_of_a_client_that_does_not_hold_the_class_is_not_read():
    prototypes = np.array([[[np.nan]], [[1.0]]])
    means, known = weighted_mean(prototypes, np.array([[0], [2]]), "samples")
    assert means.tolist() == [[1.0]]
    assert known.tolist() == [True]


def test_weighted_mean_of_no_clients_knows_nothing():
    means, known = weighted_mean(np.empty((0, 2, 3)), np.empty((0, 2), dtype=int), "uniform")
    assert means.shape == (2, 3)
    assert not means.any()
    assert not known.any()


def test_weighted_mean_refuses_bad_input():
    with pytest.raises(ValueError, match=r"\(2, 3, 4\) and \(2, 4\)"):
        weighted_mean(np.zeros((2, 3, 4)), np.zeros((2, 4), dtype=int), "uniform")
    with pytest.raises(ValueError, match="got -1"):
        weighted_mean(np.zeros((1, 1, 1)), np.array([[-1]]), "uniform")
    with pytest.raises(ValueError, match="'sample'"):
        weighted_mean(np.zeros((1, 1, 1)), np.array([[1]]), "sample")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=24, max_size=24), st.integers(0, 10**6))
def test_splitting_data_over_clients_leaves_sample_weighted_prototypes_unchanged(owners, seed):
    features, labels = signed(24, 5, seed=seed), torch.arange(24) % 5
    whole, _ = class_means(features, labels, 6)
    owner = torch.tensor(owners)
    clients = [class_means(features[owner == k], labels[owner == k], 6) for k in range(4)]
    prototypes = np.stack([means.numpy() for means, _ in clients])
    counts = np.stack([count.numpy() for _, count in clients])
    merged, known = weighted_mean(prototypes, counts, "samples")
    np.testing.assert_allclose(merged, whole, atol=1e-6)
    assert known.tolist() == [True] * 5 + [False]


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(5)), st.sampled_from(["uniform", "samples"]), st.integers(0, 10**6))
def test_arrival_order_does_not_change_a_bit_once_clients_are_sorted(arrival, weighting, seed):
    generator = np.random.default_rng(seed)
    prototypes, counts = generator.normal(size=(5, 4, 3)), generator.integers(0, 4, (5, 4))
    expected, known = weighted_mean(prototypes, counts, weighting)
    arrival = np.array(arrival)
    shuffled, _ = weighted_mean(prototypes[arrival], counts[arrival], weighting)
    np.testing.assert_allclose(shuffled, expected, atol=1e-6)
    order = np.argsort(arrival)
    resorted, reknown = weighted_mean(prototypes[arrival][order], counts[arrival][order], weighting)
    assert resorted.tobytes() == expected.tobytes()
    assert reknown.tolist() == known.tolist()


def test_absent_class_keeps_the_previous_prototype():
    new, old = np.array([[1.0], [0.0], [0.0]], dtype=np.float32), np.array([[9.0], [-2.0], [np.nan]], dtype=np.float32)
    means, known = merge_previous(new, np.array([True, False, False]), old, np.array([True, True, False]))
    assert means.ravel().tolist() == [1.0, -2.0, 0.0]
    assert means.dtype == np.float32
    assert known.tolist() == [True, True, False]
    assert new.ravel().tolist() == [1.0, 0.0, 0.0], "the argument must not change"
    with pytest.raises(ValueError, match=r"\(3, 1\), \(2, 1\)"):
        merge_previous(new, known, old[:2], known)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 10**6))
def test_dense_inverts_held(counts, seed):
    counts = np.array(counts)
    means = np.random.default_rng(seed).normal(size=(len(counts), 3)).astype(np.float32) * (counts > 0)[:, None]
    rows, classes, held_counts = held(means, counts)
    assert rows.shape == ((counts > 0).sum(), 3)
    assert classes.dtype == np.int32
    assert held_counts.dtype == np.int32
    assert rows.dtype == np.float32
    again, again_counts = dense(rows, classes, held_counts, len(counts))
    np.testing.assert_array_equal(again, means)
    np.testing.assert_array_equal(again_counts, counts)


def test_dense_and_held_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"distinct and in \[0, 3\), got \[1, 1\]"):
        dense(np.zeros((2, 1)), np.array([1, 1]), np.array([1, 1]), 3)
    with pytest.raises(ValueError, match=r"got \[3\]"):
        dense(np.zeros((1, 1)), np.array([3]), np.array([1]), 3)
    with pytest.raises(ValueError, match=r"> 0 .* got \[0\]"):
        dense(np.zeros((1, 1)), np.array([2]), np.array([0]), 3)
    with pytest.raises(ValueError, match=r"\(2, 1\), \(1,\) and \(2,\)"):
        dense(np.zeros((2, 1)), np.array([2]), np.array([1, 1]), 3)
    with pytest.raises(ValueError, match=r"\(2, 1\) and \(3,\)"):
        held(np.zeros((2, 1)), np.array([2, 1, 1]))
