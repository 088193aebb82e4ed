import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.payload import ArraySpec, Downlink, Instruction, Uplink, layout, order, specs_of

NAMES = st.from_regex(r"[a-z_][a-z0-9_.]{0,11}", fullmatch=True)
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint8", "bool"])


def test_layout_names_dtype_and_shape_in_the_order_of_the_model():
    arrays = {"b": np.zeros((2, 3), np.float32), "a": np.array(4, np.int64), "empty": np.zeros((0, 3), np.float64)}
    assert layout(arrays) == "b:float32:2x3 a:int64: empty:float64:0x3"


@given(st.dictionaries(NAMES, st.tuples(DTYPES, SHAPES), max_size=5))
@settings(max_examples=60, deadline=None)
def test_specs_of_a_layout_are_the_arrays_it_was_written_from(wanted):
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in wanted.items()}
    assert specs_of(layout(arrays)) == {name: ArraySpec(shape, dtype) for name, (dtype, shape) in wanted.items()}


def test_a_name_with_a_colon_survives_its_layout():
    assert specs_of(layout({"a:b": np.zeros(2, np.float32)})) == {"a:b": ArraySpec((2,), "float32")}


def test_ids_sort_as_whole_numbers_first_then_as_names():
    assert sorted(["b", "10", "2", "a", "0", "007"], key=order) == ["0", "2", "007", "10", "a", "b"]


def test_digits_of_other_scripts_are_names_not_numbers():
    assert sorted(["²", "3", "١"], key=order)[0] == "3"


@given(st.lists(st.text(max_size=4), unique=True), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_ids_is_total_so_arrival_does_not_matter(clients, random):
    shuffled = random.sample(clients, len(clients))
    assert sorted(shuffled, key=order) == sorted(clients, key=order)


def test_empty_parts_are_not_shared_between_instances():
    assert Instruction("local").downlink.arrays is not Instruction("local").downlink.arrays
    assert Downlink() == Downlink({}, {})


def test_payloads_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Uplink("0", 1).num_examples = 2
