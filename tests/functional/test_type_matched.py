import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.aggregation import weighted_mean
from fedapp.functional.type_matched import Rows, Upload, compose, consensus, remap, type_matched_mean

GROUPS = 3


def array(*values, dtype=np.float64):
    return np.array(values, dtype=dtype)


def booleans(*values):
    return np.array(values, dtype=bool)


def upload(values, rows, private, group, weight):
    """An upload of a vector."""
    return Upload(np.array(values, dtype=float), np.array(rows), None, np.array(private, dtype=bool), group, weight)


@dataclasses.dataclass
class Federation:
    shared: np.ndarray
    pools: dict
    uploads: list

    def mean(self, matching="entry"):
        return type_matched_mean(self.shared, self.pools, self.uploads, matching)


def federation(seed=0, shape=(7, 5, 2, 3), clients=6, dtype=np.float64, all_global=False):
    """Random signed pools and uploads; rows and columns unsorted, the last client full width without lists."""
    generator = np.random.default_rng(seed)

    def draw(*size):
        return generator.normal(size=size).astype(dtype)

    shared, pools, uploads = draw(*shape), {}, []
    for group in range(GROUPS - 1):  # the last group has no pool yet
        index = np.sort(generator.choice(shape[0], 3, replace=False))
        pools[group] = Rows(index, draw(3, *shape[1:]))
    for client in range(clients):
        rows = generator.permutation(shape[0])[: generator.integers(1, shape[0])]
        columns = generator.permutation(shape[1])[: generator.integers(1, shape[1])] if len(shape) > 1 else None
        if client == clients - 1:
            rows = columns = None
        r = shape[0] if rows is None else len(rows)
        width = shape[1:] if columns is None else (len(columns), *shape[2:])
        private = np.zeros(r, bool) if all_global else generator.random(r) < 0.5
        values, sent = draw(r, *width), draw(r, *shape[1:])
        uploads.append(Upload(values, rows, columns, private, client % GROUPS, float(generator.integers(1, 90)), sent))
    return Federation(shared, pools, uploads)


def brute_force(case, matching):
    """Eq. 8 by a loop over every element and every client."""
    shape = case.shared.shape
    mean = case.shared.copy()
    rows_of = {
        group: dict(zip(pool.index.tolist(), pool.values.copy(), strict=True)) for group, pool in case.pools.items()
    }
    for c in range(shape[0]):
        for role in (None, *range(GROUPS)):
            carrying = []
            for sent in case.uploads:
                rows = list(range(shape[0])) if sent.rows is None else sent.rows.tolist()
                if c in rows and (sent.group if sent.private[rows.index(c)] else None) == role:
                    carrying.append((sent, rows.index(c)))
            if not carrying:
                continue
            old = case.shared[c] if role is None else rows_of.get(role, {}).get(c, case.shared[c])
            row = np.array(old)
            for element in np.ndindex(*shape[1:]):
                above = below = 0.0
                for sent, r in carrying:
                    columns = sent.columns.tolist() if sent.columns is not None else list(range((*shape, 1)[1]))
                    if not element:
                        value = sent.values[r]
                    elif element[0] in columns:
                        value = sent.values[(r, columns.index(element[0]), *element[1:])]
                    elif matching == "row":
                        value = sent.sent[(r, *element)]
                    else:
                        continue
                    above, below = above + sent.weight * value, below + sent.weight
                if below:
                    row[element] = above / below
            if role is None:
                mean[c] = row
            else:
                rows_of.setdefault(role, {})[c] = row
    return mean, rows_of


def assert_same(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=tolerance)
    assert set(got[1]) == {group for group, rows in expected[1].items() if rows}
    for group, pool in got[1].items():
        assert pool.index.tolist() == sorted(expected[1][group])
        np.testing.assert_allclose(
            pool.values, [expected[1][group][c] for c in pool.index.tolist()], rtol=0, atol=tolerance
        )


def test_equation_8_on_three_channels_worked_by_hand():
    # Channel 0 is Global for A and B, channel 1 Private for A and B (group 0) and C (group 1), channel 2 Dropped by
    # all but C, which holds it as Global.
    shared = array(1, 2, 3)
    pools = {0: Rows(array(1, dtype=np.int64), array(20.0))}
    a = upload([4, 6], [0, 1], [False, True], group=0, weight=1)
    b = upload([8, 10], [0, 1], [False, True], group=0, weight=3)
    c = upload([-5, 7], [2, 1], [False, True], group=1, weight=100)
    mean, new = type_matched_mean(shared, pools, [a, b, c])
    assert mean.tolist() == [7, 2, -5]  # (1 * 4 + 3 * 8) / 4; nobody held it as Global; -5
    assert {k: (pool.index.tolist(), pool.values.tolist()) for k, pool in new.items()} == {
        0: ([1], [9.0]),  # (1 * 6 + 3 * 10) / 4
        1: ([1], [7.0]),
    }


def test_equation_9_on_three_channels_worked_by_hand():
    shared, pool = array(1, 2, 3), Rows(array(1, 2, dtype=np.int64), array(9, 8))
    assert compose(shared, pool, booleans(False, True, False)).tolist() == [1, 9, 3]
    assert compose(shared, pool, booleans(True, True, True)).tolist() == [1, 9, 8]  # the pool lacks channel 0
    assert compose(shared, None, booleans(True, True, True)).tolist() == [1, 2, 3]
    assert compose(shared, None, booleans(True, True, True)) is not shared


@pytest.mark.parametrize("shape", [(7, 5, 2, 3), (6, 4), (8,)])
def test_a_compact_part_equals_rows_and_columns_of_the_full_composition(shape):
    case, generator = federation(1, shape), np.random.default_rng(0)
    rows, private = generator.permutation(shape[0])[:4], generator.random(shape[0]) < 0.6
    columns = generator.permutation(shape[1])[:3] if len(shape) > 1 else None
    for pool in (case.pools[0], None):
        full = compose(case.shared, pool, private)
        np.testing.assert_array_equal(compose(case.shared, pool, private, rows), full[rows])
        if columns is not None:
            np.testing.assert_array_equal(compose(case.shared, pool, private, None, columns), full[:, columns])
            np.testing.assert_array_equal(compose(case.shared, pool, private, rows, columns), full[rows][:, columns])
    with pytest.raises(ValueError, match=rf"rows must be in \[0, {shape[0]}\), got 0 to 9"):
        compose(case.shared, None, private, np.array([0, 9]))


@pytest.mark.parametrize("matching", ["entry", "row"])
@pytest.mark.parametrize("shape", [(7, 5, 2, 3), (6, 4), (8,)])
@pytest.mark.parametrize("seed", range(4))
def test_equation_8_equals_a_loop_over_every_element(seed, shape, matching):
    case = federation(seed, shape)
    assert_same(case.mean(matching), brute_force(case, matching))


def test_entries_of_many_blocks_equal_a_loop_over_their_rows():
    case = federation(5, (40, 90, 8, 8))  # 230,400 elements
    shared, pools = case.mean()
    total, count = np.zeros(case.shared.shape), np.zeros(case.shared.shape)
    for sent in case.uploads:
        rows = np.arange(40) if sent.rows is None else sent.rows
        columns = np.arange(90) if sent.columns is None else sent.columns
        for r, c in enumerate(rows.tolist()):
            if not sent.private[r]:
                total[c, columns] += sent.weight * sent.values[r]
                count[c, columns] += sent.weight
    expected = np.where(count > 0, total / np.maximum(count, 1), case.shared)
    np.testing.assert_allclose(shared, expected, rtol=0, atol=1e-12)
    assert set(pools) == set(range(GROUPS))


def test_a_channel_kept_by_nobody_keeps_its_bits():
    shared = array(np.pi, -np.e, 1 / 3, dtype=np.float32)
    pools = {0: Rows(array(2, dtype=np.int64), array(0.1, dtype=np.float32))}
    mean, new = type_matched_mean(shared, pools, [upload([5.0], [0], [False], 0, 2)])
    assert mean[1:].tobytes() == shared[1:].tobytes()
    assert new[0].values.tobytes() == pools[0].values.tobytes()
    untouched, same = type_matched_mean(shared, pools, [])
    assert untouched.tobytes() == shared.tobytes()
    assert list(same) == [0]


def test_a_row_that_turns_private_starts_from_the_shared_row_before_this_call():
    shared = np.arange(8.0).reshape(2, 4)
    private = Upload(array([50.0]), np.array([1]), np.array([2]), booleans(True), 0, 1)
    sharing = Upload(np.full((2, 4), -9.0), None, None, booleans(False, False), 0, 1)
    mean, pools = type_matched_mean(shared, {}, [sharing, private])
    assert (mean == -9).all()
    assert pools[0].values.tolist() == [[4, 5, 50, 7]]  # not -9


def test_everything_global_in_full_width_is_the_weighted_mean():
    generator = np.random.default_rng(0)
    shared = np.zeros((6, 5, 3, 3), dtype=np.float32)
    values = [generator.normal(size=shared.shape).astype(np.float32) for _ in range(5)]
    weights = [600.0, 72.0, 590.0, 100.0, 13.5]
    every = np.arange(6), np.arange(5)
    for rows, columns in ((None, None), every):
        uploads = [
            Upload(v, rows, columns, np.zeros(6, bool), k, w)
            for k, (v, w) in enumerate(zip(values, weights, strict=True))
        ]
        for matching in ("entry", "row"):
            mean, pools = type_matched_mean(shared, {}, uploads, matching)
            expected = weighted_mean([{"w": v} for v in values], weights)["w"]
            np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-7)
            assert pools == {}
            assert mean.dtype == np.float32


def test_nested_masks_give_the_count_average_of_heterofl():
    # Widths 1, 2 and 4 of 4: the element (o, i) is held by the clients whose width exceeds both.
    generator = np.random.default_rng(1)
    shared, widths = generator.normal(size=(4, 4)), (1, 2, 4)
    values = [generator.normal(size=(width, width)) for width in widths]
    uploads = [
        Upload(v, np.arange(width), np.arange(width), np.zeros(width, bool), 0, 1.0)
        for v, width in zip(values, widths, strict=True)
    ]
    mean, _ = type_matched_mean(shared, {}, uploads)
    for o in range(4):
        for i in range(4):
            holding = [v[o, i] for v, width in zip(values, widths, strict=True) if max(o, i) < width]
            assert mean[o, i] == pytest.approx(np.mean(holding), abs=1e-12)


def test_row_matching_counts_untrained_elements_as_they_were_broadcast():
    # One row of two inputs: A (weight 1) trained input 0 only, B (weight 3) both.
    shared = array([10.0, 20.0])
    a = Upload(array([14.0]), None, np.array([0]), booleans(False), 0, 1, sent=array([10.0, 20.0]))
    b = Upload(array([18.0, 24.0]), None, None, booleans(False), 0, 3)
    assert type_matched_mean(shared, {}, [a, b], "row")[0].tolist() == [[17.0, 23.0]]  # (20 + 3 * 24) / 4
    assert type_matched_mean(shared, {}, [a, b], "entry")[0].tolist() == [[17.0, 24.0]]
    # stale-avg over the row's set: sum_i p_i (m_i w_i + (1 - m_i) W)
    case = federation(3, (6, 5, 2), all_global=True)
    mean, _ = case.mean("row")
    for c in range(6):
        above, below = np.zeros((5, 2)), 0.0
        for sent in case.uploads:
            rows = np.arange(6) if sent.rows is None else sent.rows
            for r in np.flatnonzero(rows == c):
                full = sent.sent[r].copy()
                full[slice(None) if sent.columns is None else sent.columns] = sent.values[r]
                above, below = above + sent.weight * full, below + sent.weight
        np.testing.assert_allclose(mean[c], above / below, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(6)), st.integers(0, 10**6), st.sampled_from(["entry", "row"]))
def test_the_order_of_clients_does_not_matter(order, seed, matching):
    case = federation(seed, dtype=np.float32)
    shared, pools = case.mean(matching)
    shuffled, others = type_matched_mean(case.shared, case.pools, [case.uploads[k] for k in order], matching)
    np.testing.assert_allclose(shared, shuffled, rtol=0, atol=1e-6)
    assert pools.keys() == others.keys()
    for group, pool in pools.items():
        np.testing.assert_array_equal(pool.index, others[group].index)
        np.testing.assert_allclose(pool.values, others[group].values, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, GROUPS - 1))
def test_private_rows_of_one_group_move_nothing_else(seed, group):
    case = federation(seed, dtype=np.float32)
    shared, pools = case.mean()
    other = [dataclasses.replace(sent, values=sent.values.copy()) for sent in case.uploads]
    for sent in other:
        if sent.group == group:
            sent.values[sent.private] += 100
    perturbed, moved = type_matched_mean(case.shared, case.pools, other)
    assert perturbed.tobytes() == shared.tobytes()
    for k in pools.keys() - {group}:
        assert moved[k].values.tobytes() == pools[k].values.tobytes()
    if any(sent.private.any() for sent in other if sent.group == group):
        assert (moved[group].values != pools[group].values).any()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6))
def test_global_rows_move_no_pool(seed):
    case = federation(seed, dtype=np.float32)
    _, pools = case.mean()
    for sent in case.uploads:
        sent.values[~sent.private] -= 100
    _, same = case.mean()
    for k, pool in pools.items():
        assert same[k].values.tobytes() == pool.values.tobytes()


@pytest.mark.parametrize("matching", ["entry", "row"])
def test_arguments_are_not_changed(matching):
    case, twin = federation(2), federation(2)
    new = case.mean(matching)
    remap(case.pools, case.shared, {0: {0: 1.0, 1: 2.0}})
    compose(case.shared, case.pools[0], np.ones(7, bool))[:] = 0
    new[0][:] = 0
    for pool in new[1].values():
        pool.values[:] = 0  # every group trained something: no array of the old pools is handed back
    np.testing.assert_array_equal(case.shared, twin.shared)
    for group, pool in twin.pools.items():
        np.testing.assert_array_equal(case.pools[group].values, pool.values)
    for sent, same in zip(case.uploads, twin.uploads, strict=True):
        np.testing.assert_array_equal(sent.values, same.values)
        np.testing.assert_array_equal(sent.sent, same.sent)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.array([0, 3])}, r"rows of upload 1 must be in \[0, 3\), got 0 to 3"),
        ({"rows": np.array([-1, 0])}, r"rows of upload 1 must be in \[0, 3\), got -1 to 0"),
        ({"rows": np.array([2, 2])}, r"rows of upload 1 must not repeat, got \[2\] again"),
        ({"rows": np.array([0.0, 1.0])}, "rows of upload 1 must be a list of positions, got float64"),
        ({"rows": None}, r"upload 1 must have values \(3, 2\) and roles \(3,\).*got \(2, 2\) and \(2,\)"),
        ({"columns": np.array([0, 2])}, r"columns of upload 1 must be in \[0, 2\)"),
        ({"columns": np.array([1, 1])}, "columns of upload 1 must not repeat"),
        ({"columns": np.array([1])}, r"upload 1 must have values \(2, 1\)"),
        ({"private": booleans(True)}, r"roles \(2,\).*got \(2, 2\) and \(1,\)"),
        ({"weight": 0.0}, "weight of upload 1 must be finite and > 0, got 0.0"),
        ({"weight": float("nan")}, "weight of upload 1 must be finite"),
        ({"values": array([1.0, np.nan], [0.0, 0.0])}, "values must be finite, but those of upload 1 are not"),
        ({"values": array([np.inf, 1.0], [0.0, 0.0])}, "those of upload 1 are not"),
    ],
)
def test_a_misfit_is_refused_with_its_number(changes, message):
    good = Upload(np.ones((2, 2)), np.array([0, 2]), None, booleans(False, True), 0, 1.0)
    type_matched_mean(np.zeros((3, 2)), {}, [good, good])
    with pytest.raises(ValueError, match=message):
        type_matched_mean(np.zeros((3, 2)), {}, [good, dataclasses.replace(good, **changes)])


def test_other_misfits_are_refused():
    good = Upload(np.ones((2, 1)), np.array([0, 2]), np.array([1]), booleans(False, True), 0, 1.0)
    shared = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"needs the rows of upload 0 as they were sent, \(2, 2\), got None"):
        type_matched_mean(shared, {}, [good], "row")
    with pytest.raises(ValueError, match=r"as they were sent, \(2, 2\), got \(3, 2\)"):
        type_matched_mean(shared, {}, [dataclasses.replace(good, sent=shared)], "row")
    with pytest.raises(ValueError, match="matching must be one of entry, row, got 'rows'; did you mean 'row'"):
        type_matched_mean(shared, {}, [good], "rows")
    with pytest.raises(ValueError, match=r"an entry of shape \(3,\) has no columns"):
        type_matched_mean(np.zeros(3), {}, [good])
    with pytest.raises(ValueError, match="got int64"):
        type_matched_mean(np.zeros(3, dtype=np.int64), {}, [])
    pool = Rows(np.array([3]), np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"pool 4 must hold rows of an entry \(3, 2\), got \(1, 2\) for .* \[3\]"):
        type_matched_mean(shared, {4: pool}, [])
    with pytest.raises(ValueError, match=r"pool 0 must hold rows of an entry \(3, 5\)"):
        compose(np.zeros((3, 5)), Rows(np.array([0]), np.zeros((1, 2))), np.zeros(3, bool))
    with pytest.raises(ValueError, match="private must be 3 booleans, got int64"):
        compose(shared, None, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match=r"must ascend from 0 or later, got \[2, 1\]"):
        Rows(np.array([2, 1]), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"one row a channel, got \(1, 2\) for \(2,\)"):
        Rows(np.array([1, 2]), np.zeros((1, 2)))


def test_consensus_worked_by_hand():
    shared = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4], [5, 5]])
    pools = {
        0: Rows(np.array([0, 1, 2, 3]), np.array([[9.0, 9], [10, 20], [30, 30], [40, 40]])),
        5: Rows(np.array([1, 3]), np.array([[50.0, -20], [80, 80]])),
    }
    # Channel 0 is Global for somebody; 1 lies in both pools, 3 : 1; 2 in one; 3 in both, one without weight; 4 in none.
    weights = {0: array(3, 3, 1, 0, 7), 5: array(0, 1, 9, 2, 7)}
    full = consensus(shared, pools, weights, booleans(True, False, False, False, False))
    assert full.tolist() == [[1, 1], [20, 10], [30, 30], [80, 80], [5, 5]]
    none = {group: np.zeros(5) for group in pools}
    assert consensus(shared, pools, none, np.zeros(5, bool)).tolist() == shared.tolist()
    assert consensus(shared, {}, {}, np.zeros(5, bool)).tolist() == shared.tolist()
    with pytest.raises(ValueError, match="pool 5 needs a weight for each of 5 channels"):
        consensus(shared, pools, {0: np.ones(5)}, np.zeros(5, bool))
    with pytest.raises(ValueError, match="weights of pool 0 must be finite and >= 0"):
        consensus(shared, pools, {0: -np.ones(5), 5: np.ones(5)}, np.zeros(5, bool))


def test_regrouping_takes_the_mean_of_what_the_members_saw():
    shared = array(1, 2, 3, 4)
    pools = {
        0: Rows(array(1, 2, dtype=np.int64), array(20, 30)),
        1: Rows(array(2, dtype=np.int64), array(-30)),
    }
    moved = remap(pools, shared, {7: {0: 3.0, 1: 1.0}, 8: {1: 2.0}, 9: {4: 1.0}, 10: {0: 1.0, 4: 1.0}})
    assert moved.keys() == {7, 8, 10}  # group 4 had no pool
    assert moved[7].index.tolist() == [1, 2]
    assert moved[7].values.tolist() == [(3 * 20 + 2) / 4, (3 * 30 - 30) / 4]  # pool 1 lacks channel 1: shared
    assert (moved[8].index.tolist(), moved[8].values.tolist()) == ([2], [-30])
    assert moved[10].values.tolist() == [(20 + 2) / 2, (30 + 3) / 2]
    with pytest.raises(
        ValueError, match="weight of the members of group 1 from group 0 must be finite and > 0, got -1"
    ):
        remap(pools, shared, {1: {0: -1}})


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(GROUPS)), st.integers(0, 10**6))
def test_a_mere_renaming_of_groups_keeps_every_bit_that_a_client_sees(names, seed):
    case = federation(seed, dtype=np.float32)
    _, pools = case.mean()
    moved = remap(pools, case.shared, {names[k]: {k: 3.7} for k in range(GROUPS)})
    private = np.ones(len(case.shared), bool)
    for k in range(GROUPS):
        before = compose(case.shared, pools.get(k), private)
        assert compose(case.shared, moved.get(names[k]), private).tobytes() == before.tobytes()
