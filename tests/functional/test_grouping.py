"""FedSAP's pseudo-domain groups: similarity (Eq. 4), clustering, and group numbers that stay over the rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.grouping import adjusted_rand, cluster, merge_small, nearest_group, relabel, similarity

NAN = float("nan")
LINKAGES = ["components", "complete", "average"]
TRUTH = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]


def ints(*values):
    return np.array(values, dtype=np.int64)


def matrix(size, **pairs):
    """Similarities of ``size`` clients: ones on the diagonal, ``ab=0.6`` between clients a and b, else 0.1."""
    full = np.full((size, size), 0.1)
    np.fill_diagonal(full, 1.0)
    for (first, second), value in pairs.items():
        a, b = ord(first) - ord("a"), ord(second) - ord("a")
        full[a, b] = full[b, a] = value
    return full


def domain_signals(noise, seed=0, width=200):
    """Ten signed signals of four domains on a large common offset."""
    generator = np.random.default_rng(seed)
    return 7 + generator.normal(size=(4, width))[TRUTH] + noise * generator.normal(size=(10, width))


def test_equation_4_is_the_cosine_of_each_pair():
    signals = np.random.default_rng(0).normal(size=(5, 8))
    result = similarity(signals)
    for i in range(5):
        for j in range(5):
            expected = signals[i] @ signals[j] / (np.linalg.norm(signals[i]) * np.linalg.norm(signals[j]))
            assert result[i, j] == pytest.approx(expected, abs=1e-12)


def test_only_entries_that_both_have_active_count():
    signals = np.array([[3.0, 4.0, NAN, 0.0], [NAN, 4.0, 3.0, 0.0], [-4.0, 3.0, 1.0, NAN]])
    result = similarity(signals, ~np.isnan(signals))
    # jointly: entries 1 and 3 for (0, 1): (4, 0) and (4, 0); 0 and 1 for (0, 2): -12 + 12 = 0; 1 and 2 for (1, 2)
    np.testing.assert_allclose(result, [[1, 1, 0], [1, 1, 15 / (5 * 10**0.5)], [0, 15 / (5 * 10**0.5), 1]], atol=1e-12)


def test_masks_alone_do_not_make_equal_signals_differ():
    signal = np.random.default_rng(1).normal(size=400)
    active = np.random.default_rng(2).random((2, 400)) < [[0.2], [0.9]]
    assert similarity(np.stack([signal, signal]), active)[0, 1] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("center", [False, True])
def test_a_zero_signal_resembles_nobody_and_has_its_own_group(center):
    signals = domain_signals(0.1)
    signals[4] = 0
    result = similarity(signals, center=center)
    assert result[4].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    without = np.delete(np.delete(result, 4, 0), 4, 1)
    np.testing.assert_allclose(without, similarity(np.delete(signals, 4, 0), center=center), atol=1e-12)
    for linkage in LINKAGES:
        for count in ("threshold", "silhouette"):
            labels = cluster(result, linkage=linkage, count=count)
            assert (labels == labels[4]).sum() == 1


def test_clients_without_any_common_entry_resemble_each_other_in_nothing():
    active = np.array([[True, True, False, False], [False, False, True, True], [False] * 4])
    np.testing.assert_array_equal(similarity(np.ones((3, 4)), active), np.eye(3))


def test_centring_takes_out_what_all_have_in_common():
    signals = np.array([[10.0, 1.0], [10.0, -1.0], [10.0, 2.0], [10.0, -2.0]])
    assert similarity(signals).min() > 0.9
    alike = np.array([[1.0, -1, 1, -1], [-1, 1, -1, 1], [1, -1, 1, -1], [-1, 1, -1, 1]])
    np.testing.assert_allclose(similarity(signals, center=True), alike, atol=1e-12)


def test_the_mean_that_is_taken_out_runs_over_those_that_have_the_entry():
    signals = np.array([[2.0, 1.0, NAN], [4.0, 1.0, 5.0], [NAN, 4.0, 7.0]])
    # means 3, 2, 6: centred (-1, -1, .), (1, -1, -1), (., 2, 1)
    result = similarity(signals, ~np.isnan(signals), center=True)
    assert result[0, 1] == pytest.approx(0, abs=1e-12)  # -1 * 1 + -1 * -1
    assert result[0, 2] == pytest.approx(-1, abs=1e-12)  # entry 1 alone
    assert result[1, 2] == pytest.approx(-3 / (2**0.5 * 5**0.5), abs=1e-12)  # -2 - 1


@pytest.mark.parametrize("center", [False, True])
def test_equal_signals_are_all_alike_whatever_rounding_leaves_of_them(center):
    signals = np.tile(np.random.default_rng(0).normal(size=30).astype(np.float32) / 3, (7, 1))
    result = similarity(signals, center=center)
    np.testing.assert_allclose(result, np.ones((7, 7)), atol=1e-12)
    for linkage in LINKAGES:
        assert cluster(result, linkage=linkage).tolist() == [0] * 7
        assert cluster(result, linkage=linkage, count="silhouette").tolist() == [0] * 7


def test_very_small_signals_still_have_a_direction():
    result = similarity(np.array([[3e-200, 0.0], [3e-200, 4e-200]]))
    assert result[0, 1] == pytest.approx(0.6, abs=1e-12)


def test_a_chain_is_one_component_and_two_groups_where_every_pair_must_be_alike():
    chain = matrix(3, ab=0.6, bc=0.6)
    assert cluster(chain).tolist() == [0, 0, 0]
    assert cluster(chain, linkage="complete").tolist() == [0, 0, 1]
    # average: {a, b} and c have mean similarity (0.1 + 0.6) / 2 = 0.35
    assert cluster(chain, linkage="average").tolist() == [0, 0, 1]
    assert cluster(chain, linkage="average", threshold=0.35 - 1e-9).tolist() == [0, 0, 0]


def test_a_similarity_at_the_threshold_connects():
    for linkage in LINKAGES:
        assert cluster(matrix(2, ab=0.5), linkage=linkage).tolist() == [0, 0]
        assert cluster(matrix(2, ab=0.499), linkage=linkage).tolist() == [0, 1]


def test_groups_are_numbered_by_their_first_member():
    assert cluster(matrix(5, ad=0.9, be=0.8)).tolist() == [0, 1, 2, 0, 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.floats(-0.5, 0.9))
def test_components_are_what_a_walk_along_similar_pairs_reaches(seed, count, threshold):
    result = similarity(np.random.default_rng(seed).normal(size=(count, 3)))
    reach = result >= threshold
    for _ in range(count):
        reach = reach @ reach
    labels = cluster(result, threshold=threshold)
    np.testing.assert_array_equal(labels[:, None] == labels, reach)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(10)), st.sampled_from(LINKAGES), st.sampled_from(["threshold", "silhouette"]))
def test_the_order_of_clients_does_not_matter(order, linkage, count):
    result = similarity(domain_signals(0.8), center=True)
    labels = cluster(result, linkage=linkage, count=count)
    permuted = cluster(result[np.ix_(order, order)], linkage=linkage, count=count)
    assert adjusted_rand(permuted, labels[order].tolist()) == 1.0


@pytest.mark.parametrize("linkage", LINKAGES)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_silhouette_finds_four_domains_without_a_threshold(linkage, noise):
    result = similarity(domain_signals(noise), center=True)
    labels = cluster(result, linkage=linkage, count="silhouette")
    assert labels.tolist() == TRUTH
    assert cluster(result, linkage=linkage, count="silhouette", max_groups=3).max() == 2
    assert cluster(result, linkage=linkage, count="silhouette", max_groups=1).tolist() == [0] * 10


def test_where_nothing_separates_the_silhouette_leaves_one_group():
    assert cluster(matrix(4), linkage="average", count="silhouette").tolist() == [0] * 4  # all pairs equally far
    assert cluster(matrix(2), linkage="average", count="silhouette").tolist() == [0, 0]
    assert cluster(matrix(1), count="silhouette").tolist() == [0]


def test_at_most_as_many_groups_as_allowed():
    similarities = matrix(4, ab=0.4, cd=0.3)
    assert cluster(similarities).tolist() == [0, 1, 2, 3]
    assert cluster(similarities, max_groups=3).tolist() == [0, 0, 1, 2]
    assert cluster(similarities, max_groups=2).tolist() == [0, 0, 1, 1]


def test_small_groups_join_the_nearest_one():
    # c is nearer to the pair d, e on average (0.35) than to a, b (0.25)
    similarities = matrix(5, ab=0.9, de=0.9, ac=0.4, cd=0.3, ce=0.4)
    labels = ints(0, 0, 1, 2, 2)
    assert merge_small(labels, similarities, 2).tolist() == [0, 0, 1, 1, 1]
    assert merge_small(labels, similarities, 1).tolist() == [0, 0, 1, 2, 2]
    assert merge_small(labels, similarities, 4).tolist() == [0] * 5
    assert labels.tolist() == [0, 0, 1, 2, 2]


def test_fewer_clients_than_the_smallest_group_make_one_group():
    assert merge_small(ints(3, 5), matrix(2), 4).tolist() == [0, 0]
    assert merge_small(ints(3), matrix(1), 4).tolist() == [0]


def test_two_singletons_may_make_a_group_of_their_own():
    assert merge_small(ints(0, 0, 1, 2), matrix(4, ab=0.9, cd=0.8), 2).tolist() == [0, 0, 1, 1]


def test_groups_keep_their_numbers_when_they_are_found_in_another_order():
    assert relabel(ints(0, 0, 1, 1, 2), ints(2, 2, 0, 0, 1)).tolist() == [0, 0, 1, 1, 2]
    assert relabel(ints(4, 4, 7, 7, 7), ints(0, 1, 1, 1, 1)).tolist() == [4, 7, 7, 7, 7]


def test_numbers_are_matched_for_all_groups_together():
    # new 0 overlaps 3 with old 0 and 2 with old 1; new 1 only 2 with old 0: best together is 2 + 2, not 3 + 0
    old, new = ints(0, 0, 0, 1, 1, 0, 0), ints(0, 0, 0, 0, 0, 1, 1)
    assert relabel(old, new).tolist() == [1, 1, 1, 1, 1, 0, 0]


def test_new_groups_get_numbers_that_nobody_holds():
    assert relabel(ints(0, 0, 2, 2), ints(0, 1, 2, 2)).tolist() == [0, 1, 2, 2]
    assert relabel(ints(0, 0, 2, 2), ints(0, 1, 2, 2), taken=[1, 3, -1]).tolist() == [0, 4, 2, 2]
    assert relabel(ints(-1, -1, -1), ints(1, 0, 1)).tolist() == [1, 0, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_renaming_keeps_the_groups_and_is_idempotent(pairs):
    old, new = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    renamed = relabel(old, new)
    np.testing.assert_array_equal(renamed[:, None] == renamed, new[:, None] == new)
    np.testing.assert_array_equal(relabel(renamed, new), renamed)
    for group in set(renamed.tolist()) & set(old.tolist()):
        assert ((renamed == group) & (old == group)).any()  # an old number only where somebody held it


def test_a_newcomer_joins_the_group_it_resembles_most_on_average():
    # group 5: mean 0.3, though one member is the nearest of all; group 2: mean 0.4
    row, labels = np.array([0.9, -0.3, 0.4, 0.4, NAN]), ints(5, 5, 2, 2, -1)
    assert nearest_group(row, labels) == 2
    assert nearest_group(np.array([0.5, 0.5]), ints(3, 1)) == 1


def test_the_adjusted_rand_index_worked_by_hand():
    # of 10 pairs, 2 are together in the groups, 1 + 3 in the domains, 2 in both: (2 - 0.8) / (3 - 0.8)
    assert adjusted_rand([0, 0, 1, 1, 2], ["a", "a", "b", "b", "b"]) == pytest.approx(6 / 11, abs=1e-12)
    assert adjusted_rand([7, 7, 3], ["x", "x", "y"]) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity(np.array([[1.0, NAN]])), "active entries of signals must be finite, got nan"),
        (lambda: similarity(np.ones(3)), r"got \(3,\)"),
        (lambda: similarity(np.ones((2, 3)), np.ones((2, 2), dtype=np.bool_)), r"\(2, 3\) and \(2, 2\)"),
        (lambda: cluster(np.ones((2, 3))), r"\(K, K\), got \(2, 3\)"),
        (lambda: cluster(np.array([[1.0, NAN], [NAN, 1.0]])), "similarity must be finite"),
        (lambda: cluster(np.array([[1.0, 0.2], [0.9, 1.0]])), "symmetric"),
        (lambda: cluster(np.eye(2), linkage="single"), "linkage must be one of components, complete, average"),
        (lambda: cluster(np.eye(2), count="silhouete"), "did you mean 'silhouette'"),
        (lambda: cluster(np.eye(2), threshold=1.5), "got 1.5 and 0"),
        (lambda: cluster(np.eye(2), max_groups=-1), "got 0.5 and -1"),
        (lambda: merge_small(ints(0, 1), np.eye(2), 0), "min_size must be >= 1"),
        (lambda: merge_small(ints(0, 1), np.eye(3), 2), r"\(2,\), \(3, 3\)"),
        (lambda: relabel(ints(0), ints(0, 1)), r"got \[0\] and \[0, 1\]"),
        (lambda: relabel(ints(0), ints(-1)), r"got \[0\] and \[-1\]"),
        (lambda: nearest_group(np.ones(2), ints(-1, -1)), "no client has a group"),
        (lambda: nearest_group(np.ones(2), ints(0)), r"\(2,\) and \(1,\)"),
        (lambda: nearest_group(np.array([NAN]), ints(0)), "similarities must be finite"),
        (lambda: adjusted_rand([0], ["a", "b"]), "got 1 and 2"),
        (lambda: adjusted_rand([], []), "got 0 and 0"),
    ],
)
def test_signals_and_groups_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
