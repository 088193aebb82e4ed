import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.functional.aggregation import weighted_mean


def clients(seed=0, count=4):
    generator = np.random.default_rng(seed)
    return [
        {"w": generator.normal(size=(3, 2)).astype(np.float32), "scale": np.float64(generator.normal()).reshape(())}
        for _ in range(count)
    ]


def test_mean_equals_the_formula_name_by_name_and_keeps_dtypes():
    arrays, weights = clients(), [3, 0.5, 2, 1]
    mean = weighted_mean(arrays, weights)
    for name in ("w", "scale"):
        expected = sum(n * a[name].astype(np.float64) for n, a in zip(weights, arrays, strict=True)) / 6.5
        np.testing.assert_allclose(mean[name], expected, atol=1e-7)
        assert mean[name].dtype == arrays[0][name].dtype
        assert mean[name].shape == arrays[0][name].shape


def test_order_of_names_does_not_matter_and_the_first_client_sets_it():
    first, second = clients(count=2)
    mean = weighted_mean([first, dict(reversed(second.items()))], [1, 1])
    assert list(mean) == ["w", "scale"]
    np.testing.assert_array_equal(mean["w"], weighted_mean([first, second], [1, 1])["w"])


def test_integers_are_averaged_and_rounded_half_to_even():
    steps = [{"num_batches_tracked": np.array(n, dtype=np.int64)} for n in (10, 13)]
    assert weighted_mean(steps, [1, 1])["num_batches_tracked"] == 12  # 11.5
    assert weighted_mean(steps, [3, 1])["num_batches_tracked"] == 11  # 10.75
    assert weighted_mean(steps, [1, 1])["num_batches_tracked"].dtype == np.int64


def test_equal_clients_give_themselves_bit_for_bit():
    (client,) = clients(count=1)
    mean = weighted_mean([client] * 3, [1, 1, 1])
    np.testing.assert_array_equal(mean["w"], client["w"])


def test_half_precision_accumulates_in_float64():
    arrays = [{"w": np.array([1.0 + k / 1024], dtype=np.float16)} for k in range(1000)]
    expected = np.mean([1.0 + k / 1024 for k in range(1000)])
    assert abs(float(weighted_mean(arrays, [1] * 1000)["w"][0]) - expected) < 1e-3


def test_a_client_of_weight_zero_is_not_read():
    mean = weighted_mean([{"w": np.array([np.nan])}, {"w": np.array([2.0])}], [0, 5])
    assert mean["w"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0, 0], "weight 1"),
        ([1, -2], r"\[1.0, -2.0\]"),
        ([1, float("nan")], "finite"),
        ([1], "got 1 for 2 clients"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_mean(clients(count=2), weights)


def test_no_clients_are_refused():
    with pytest.raises(ValueError, match="at least one client"):
        weighted_mean([], [])


def test_shapes_that_would_broadcast_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'w' .*\(1,\) float64 from client 1 and \(3,\) float64 from client 0"):
        weighted_mean([{"w": np.zeros(3)}, {"w": np.zeros(1)}], [1, 1])
    with pytest.raises(ValueError, match=r"float32 from client 1"):
        weighted_mean([{"w": np.zeros(3)}, {"w": np.zeros(3, dtype=np.float32)}], [1, 1])
    with pytest.raises(ValueError, match=r"client 1 and client 0 differ in \['b', 'w'\]"):
        weighted_mean([{"w": np.zeros(3)}, {"b": np.zeros(3)}], [1, 1])
    with pytest.raises(ValueError, match="'flag' must be floating or integer"):
        weighted_mean([{"flag": np.array([True])}], [1])


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(4)), st.integers(0, 10**6))
def test_arrival_order_does_not_change_a_bit_once_clients_are_sorted(arrival, seed):
    arrays, weights = clients(seed), [1, 5, 2, 7]
    expected = weighted_mean(arrays, weights)
    arrived = [(k, arrays[k], weights[k]) for k in arrival]
    _, in_order, ordered_weights = zip(*sorted(arrived, key=lambda item: item[0]), strict=True)
    assert weighted_mean(in_order, ordered_weights)["w"].tobytes() == expected["w"].tobytes()
    shuffled = weighted_mean([a for _, a, _ in arrived], [n for _, _, n in arrived])
    np.testing.assert_allclose(shuffled["w"], expected["w"], atol=1e-6)


def test_arguments_are_not_changed():
    arrays = clients()
    before = [client["w"].copy() for client in arrays]
    weighted_mean(arrays, [1, 2, 3, 4])
    for client, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(client["w"], copy)


def test_memory_does_not_grow_with_the_number_of_clients():
    size = 200_000
    arrays = [{"w": np.ones(size, dtype=np.float32)} for _ in range(10)]
    tracemalloc.start()
    weighted_mean(arrays, [1] * 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.7 * 8 * size  # two float64 buffers and the float32 result
