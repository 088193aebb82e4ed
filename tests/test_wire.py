import dataclasses
import io
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedapp.payload import ArraySpec, ClientInfo, Downlink, Instruction, Uplink
from fedapp.wire import (
    RejectedMessage,
    check_arrays,
    header_bytes,
    pack_info,
    pack_instruction,
    pack_uplink,
    payload_bytes,
    unpack_info,
    unpack_instruction,
    unpack_uplink,
)

DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8", "bool"]
NAMES = st.text(min_size=1, max_size=12)
SIZES = st.integers(0, 2**40)
FINITE = {"allow_nan": False, "allow_infinity": False}
ARRAYS = st.dictionaries(
    NAMES,
    hnp.arrays(
        dtype=st.sampled_from(DTYPES),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        elements=FINITE,
    ),
    max_size=3,
)
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(**FINITE), st.text(max_size=6))
SETTINGS = st.dictionaries(NAMES, SCALARS, max_size=3)


def through_flower(content: RecordDict) -> RecordDict:
    """What a deployment makes of a message's content."""
    contents = {key: nested.deflate() for key, nested in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, contents)


def assert_same_arrays(left, right):
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].shape == right[name].shape
        np.testing.assert_array_equal(left[name], right[name])


def specs_for(arrays):
    return {name: ArraySpec(array.shape, str(array.dtype)) for name, array in arrays.items()}


def a_reply(**changes) -> RecordDict:
    arrays = {"rows": np.array([[1.0, -2.0]], np.float32), "counts": np.array([3], np.int32)}
    return pack_uplink(dataclasses.replace(Uplink("7", 4, arrays, {"loss": 0.5}), **changes))


SPECS = {"rows": ArraySpec(("H", 2)), "counts": ArraySpec(("H",), "int32")}


def rejection(content, client="7", specs=SPECS):
    with pytest.raises(RejectedMessage) as caught:
        unpack_uplink(content, client, specs)
    return str(caught.value)


def reply_with(name="rows", **array):
    """A reply whose one array is made by hand, as a foreign client could."""
    content = a_reply()
    standard = {"dtype": "float32", "shape": (1, 2), "stype": "numpy.ndarray", "data": b""}
    content.array_records["arrays"][name] = Array(**(standard | array))
    return content


def npy(array) -> bytes:
    return Array(array).data


# ---- what is packed is what is unpacked ------------------------------------------------------------


@given(ARRAYS, SETTINGS, st.text(max_size=8), st.text(max_size=8), SIZES, SIZES)
@settings(max_examples=40, deadline=None)
def test_an_instruction_arrives_as_it_was_sent(arrays, scalars, params, run, round_number, seed):
    sent = Instruction("fedsaf", params, run, round_number, 9, seed, "", "~/x", Downlink(arrays, scalars))
    content = pack_instruction(sent)
    for received in (unpack_instruction(content), unpack_instruction(through_flower(content))):
        assert_same_arrays(received.downlink.arrays, arrays)
        assert received.downlink.settings == scalars
        assert {k: type(v) for k, v in received.downlink.settings.items()} == {k: type(v) for k, v in scalars.items()}
        assert dataclasses.replace(received, downlink=sent.downlink) == sent


@given(ARRAYS, st.dictionaries(NAMES, st.floats(**FINITE), max_size=3), st.text(max_size=8), SIZES)
@settings(max_examples=40, deadline=None)
def test_an_uplink_arrives_as_it_was_sent(arrays, metrics, client, num_examples):
    content = pack_uplink(Uplink(client, num_examples, arrays, metrics))
    for received in (content, through_flower(content)):
        uplink = unpack_uplink(received, client, specs_for(arrays))
        assert_same_arrays(uplink.arrays, arrays)
        assert (uplink.client, uplink.num_examples, uplink.metrics) == (client, num_examples, metrics)


TEXTS = st.text(max_size=8)


@given(
    st.builds(
        ClientInfo, client=TEXTS, model=TEXTS, num_classes=SIZES, feature_dim=SIZES, num_examples=SIZES,
        num_test=SIZES, domain=TEXTS, model_layout=TEXTS, head_layout=TEXTS, num_clients=SIZES, digest=TEXTS,
        error=TEXTS, input_shape=st.lists(st.integers(0, 300), max_size=4).map(tuple),
    )
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_clients_answer_arrives_as_it_was_sent(info):
    assert unpack_info(pack_info(info)) == info
    assert unpack_info(through_flower(pack_info(info))) == info


def test_a_scalar_buffer_stays_an_int64_of_shape_zero():
    arrays = {"bn.num_batches_tracked": np.array(11, np.int64)}
    received = unpack_uplink(through_flower(pack_uplink(Uplink("0", 1, arrays))), "0", specs_for(arrays))
    array = received.arrays["bn.num_batches_tracked"]
    assert (array.dtype, array.shape, int(array)) == (np.int64, (), 11)


def test_arrays_that_are_not_contiguous_or_not_writable_arrive_whole():
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = grid.copy()
    frozen.flags.writeable = False
    arrays = {"columns": grid.T, "every second": grid[:, ::2], "frozen": frozen}
    received = unpack_instruction(pack_instruction(Instruction("local", downlink=Downlink(arrays))))
    assert_same_arrays(received.downlink.arrays, arrays)
    received.downlink.arrays["frozen"][0, 0] = 7  # a client's copy is its own
    assert frozen[0, 0] == 0


def test_the_order_of_the_arrays_does_not_matter_to_the_check():
    arrays = {"counts": np.array([3], np.int32), "rows": np.array([[1.0, -2.0]], np.float32)}
    assert set(unpack_uplink(a_reply(arrays=arrays), "7", SPECS).arrays) == {"rows", "counts"}


def test_optional_arrays_may_be_missing_all_at_once():
    specs = {name: dataclasses.replace(spec, optional=True) for name, spec in SPECS.items()}
    assert unpack_uplink(a_reply(arrays={}), "7", specs).arrays == {}


def test_metrics_are_plain_floats_whatever_number_the_client_had():
    content = a_reply(metrics={"loss": np.float32(0.5), "steps": 3, "share": np.float64(0.25)})
    assert dict(content.metric_records["metrics"]) == {"loss": 0.5, "steps": 3.0, "share": 0.25}


# ---- what is rejected ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_that_are_not_finite_are_rejected_by_name(value, dtype):
    specs = {"rows": ArraySpec((2,), dtype)}
    text = rejection(a_reply(arrays={"rows": np.array([1.0, value], dtype)}), specs=specs)
    assert "client '7'" in text
    assert "rows holds values that are not finite" in text


@pytest.mark.parametrize("shape", [(1,), (1, 3), (1, 2, 1), (2,), (), (0, 3)])
def test_a_misshapen_array_is_rejected_with_both_shapes(shape):
    text = rejection(a_reply(arrays={"rows": np.zeros(shape, np.float32), "counts": np.array([3], np.int32)}))
    for part in ("client '7'", "rows", "('H', 2)", str(shape)):
        assert part in text


def test_letters_stand_for_one_size_within_an_uplink():
    arrays = {"rows": np.zeros((2, 2), np.float32), "counts": np.array([1, 2, 3], np.int32)}
    text = rejection(a_reply(arrays=arrays))
    for part in ("counts", "('H',)", "{'H': 2}", "(3,)"):
        assert part in text


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", ">f4"])
def test_another_dtype_is_rejected_with_both_dtypes(dtype):
    arrays = {"rows": np.zeros((1, 2), dtype), "counts": np.array([3], np.int32)}
    text = rejection(a_reply(arrays=arrays))
    assert "rows must be float32" in text
    assert dtype in text


def test_missing_and_extra_arrays_are_named():
    text = rejection(a_reply(arrays={"rows": np.zeros((1, 2), np.float32), "gradient": np.zeros(1, np.float32)}))
    assert "missing: ['counts']" in text
    assert "not asked for: ['gradient']" in text


def test_a_reply_in_another_name_is_foreign():
    text = rejection(a_reply(client="8"))
    assert "'7'" in text
    assert "'8'" in text


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_another_schema_asks_for_the_same_version_on_both_sides(schema):
    content = a_reply()
    if schema is None:
        del content.config_records["about"]["schema"]
    else:
        content.config_records["about"]["schema"] = schema
    assert "install the same fedapp on both sides" in rejection(content)


def test_an_empty_reply_is_rejected():
    assert "schema None" in rejection(RecordDict())


@pytest.mark.parametrize("value", [-1, True, 2.0, "4", [4]])
def test_a_number_of_samples_that_is_no_count_is_rejected(value):
    content = a_reply()
    content.config_records["about"]["num_examples"] = value
    assert "num_examples must be a whole number of at least 0" in rejection(content)


def test_a_missing_number_of_samples_is_rejected():
    content = a_reply()
    del content.config_records["about"]["num_examples"]
    assert "num_examples" in rejection(content)


@pytest.mark.parametrize("value", [[1.0, 2.0], [3]])
def test_metrics_that_are_not_numbers_are_rejected(value):
    content = a_reply()
    content.metric_records["metrics"] = MetricRecord({"loss": value})
    assert "metric loss must be a" in rejection(content)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_not_finite_are_rejected_since_one_would_spoil_the_mean(value):
    text = rejection(a_reply(metrics={"accuracy": value}))
    assert "client '7'" in text
    assert "metric accuracy" in text


def test_a_reply_without_metrics_is_fine():
    content = a_reply()
    del content.metric_records["metrics"]
    assert unpack_uplink(content, "7", SPECS).metrics == {}


GOOD = npy(np.zeros((1, 2), np.float32))


def archive() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, rows=np.zeros((1, 2), np.float32))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an array",
        GOOD[:-1],
        GOOD[:20],
        b"PK\x03\x04" + GOOD[4:],
        archive(),
        GOOD.replace(b"(1, 2)", b"(1, [["),
        GOOD.replace(b", }         ", b"\n  x\n y, }  "),
        GOOD.replace(b"(1, 2), }               ", b"(99999999999999999,), } "),
        GOOD.replace(b"'<f4'", b"'|O' "),
    ],
)
def test_bytes_that_are_no_array_are_rejected_and_nothing_else_happens(data):
    text = rejection(reply_with(data=data))
    assert "client '7'" in text
    assert "rows" in text


def test_an_encoding_from_elsewhere_is_rejected():
    assert "client '7'" in rejection(reply_with(stype="torch.tensor", data=GOOD))


@pytest.mark.parametrize("lie", [{"shape": (1, 3)}, {"shape": (10**6, 10**6)}, {"dtype": "float64"}])
def test_an_array_that_is_not_what_it_says_it_is_is_rejected(lie):
    assert "rows" in rejection(reply_with(**({"data": GOOD} | lie)))


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_flipped_bytes_give_an_array_or_a_rejection(flips):
    data = bytearray(GOOD)
    for position, value in flips:
        data[position] = value
    try:
        arrays = unpack_uplink(reply_with(data=bytes(data)), "7", SPECS).arrays
    except RejectedMessage:
        return
    assert arrays["rows"].shape == (1, 2)
    assert arrays["rows"].dtype == np.float32


def test_a_rejected_array_in_an_instruction_names_the_server():
    content = pack_instruction(Instruction("local", downlink=Downlink({"rows": np.zeros(2)})))
    content.array_records["arrays"]["rows"] = Array("float64", (2,), "numpy.ndarray", b"junk")
    with pytest.raises(RejectedMessage, match="the server"):
        unpack_instruction(content)


def test_an_instruction_with_an_unknown_entry_is_rejected():
    content = pack_instruction(Instruction("local"))
    content.config_records["about"]["colour"] = "red"
    with pytest.raises(RejectedMessage, match="colour"):
        unpack_instruction(content)


@pytest.mark.parametrize(
    ("name", "value"),
    [("client", 5), ("client", ["0"]), ("num_classes", "3"), ("error", 4), ("feature_dim", [1]), ("num_clients", 2.0),
     ("num_examples", True), ("input_shape", "3xa")],
)  # fmt: skip
def test_an_answer_with_a_value_of_the_wrong_type_is_rejected(name, value):
    content = pack_info(ClientInfo("0"))
    content.config_records["about"][name] = value
    with pytest.raises(RejectedMessage, match="does not say who it is"):
        unpack_info(content)


@pytest.mark.parametrize("name", ["client", "input_shape"])
def test_an_answer_that_lacks_an_entry_is_rejected(name):
    content = pack_info(ClientInfo("0"))
    del content.config_records["about"][name]
    with pytest.raises(RejectedMessage, match="does not say who it is"):
        unpack_info(content)


def test_checked_arrays_may_use_a_letter_twice_in_one_shape():
    specs = {"gram": ArraySpec(("C", "C"), "float64")}
    check_arrays({"gram": np.eye(3)}, specs, "client '7'")
    with pytest.raises(RejectedMessage, match="gram"):
        check_arrays({"gram": np.zeros((3, 2))}, specs, "client '7'")


# ---- bytes -----------------------------------------------------------------------------------------


def test_payload_bytes_are_elements_times_their_size():
    arrays = {
        "a": np.zeros((3, 4), np.float32),  # 48
        "b": np.zeros((5,), np.float16),  # 10
        "c": np.array(1, np.int64),  # 8
        "d": np.zeros((0, 7), np.float64),  # 0
        "e": np.zeros((9,), np.bool_),  # 9
    }
    assert payload_bytes(pack_uplink(Uplink("0", 1, arrays, {"loss": 1.0}))) == 75
    assert payload_bytes(pack_instruction(Instruction("local", downlink=Downlink(arrays)))) == 75
    assert payload_bytes(pack_uplink(Uplink("0", 1))) == 0


def test_header_bytes_do_not_grow_with_the_values_of_an_array():
    small, large = (pack_uplink(Uplink("0", 1, {"w": np.zeros(size)})) for size in (10, 99))
    assert header_bytes(small) == header_bytes(large) > 0


def test_header_bytes_count_names_scalars_and_array_headers():
    content = pack_uplink(Uplink("ab", 1, {"w": np.zeros(4, np.float32)}, {"loss": 1.0}))
    npy_header = len(npy(np.zeros(4, np.float32))) - 16
    about = len("schema") + 8 + len("client") + len("ab") + len("num_examples") + 8
    assert header_bytes(content) == len("w") + npy_header + about + len("loss") + 8


def test_header_bytes_count_lists_and_text_by_their_bytes():
    content = RecordDict({"a": ConfigRecord({"é": ["ab", "c"], "f": True, "b": b"xyz"})})
    assert header_bytes(content) == (2 + 3) + (1 + 1) + (1 + 3)


@pytest.mark.parametrize(("dtype", "shape"), [("(2,", (1,)), (",", (1,)), ("garbage", (4,)), ("float32", (-2, 3))])
def test_bytes_of_a_foreign_array_count_as_none(dtype, shape):
    content = RecordDict({"arrays": ArrayRecord({"w": Array(dtype, shape, "numpy.ndarray", b"12")})})
    assert payload_bytes(content) == 0
    assert header_bytes(content) == len("w") + 2


# ---- one mapping for many nodes --------------------------------------------------------------------


def test_a_mapping_for_many_nodes_is_serialised_once_and_every_record_is_fresh(monkeypatch):
    made = []
    monkeypatch.setattr("fedapp.wire.Array", lambda array: made.append(array) or Array(array))
    arrays, packed = {"w": np.arange(3.0)}, {}
    contents = [pack_instruction(Instruction("local", downlink=Downlink(arrays)), packed) for _ in range(5)]
    assert len(made) == 1
    assert len({id(content) for content in contents}) == 5
    assert len({id(content.config_records["about"]) for content in contents}) == 5
    for content in contents:
        np.testing.assert_array_equal(unpack_instruction(content).downlink.arrays["w"], [0.0, 1.0, 2.0])


def test_equal_mappings_that_are_not_the_same_are_not_mixed_up():
    packed = {}
    downlinks = [Downlink({"w": np.array([float(number)])}) for number in range(3)]
    contents = [pack_instruction(Instruction("local", downlink=downlink), packed) for downlink in downlinks]
    assert [float(unpack_instruction(content).downlink.arrays["w"][0]) for content in contents] == [0.0, 1.0, 2.0]


def test_a_mapping_lives_as_long_as_what_was_made_of_it_so_its_identity_cannot_return():
    packed, downlink = {}, Downlink({"w": np.zeros(1)})
    pack_instruction(Instruction("local", downlink=downlink), packed)
    ((held, _),) = packed.values()
    assert held is downlink.arrays


def test_a_client_that_changes_what_it_received_changes_nothing_for_the_next():
    arrays, packed = {"w": np.zeros(2)}, {}
    first, second = (pack_instruction(Instruction("local", downlink=Downlink(arrays)), packed) for _ in range(2))
    unpack_instruction(first).downlink.arrays["w"][:] = 5
    np.testing.assert_array_equal(unpack_instruction(second).downlink.arrays["w"], [0.0, 0.0])
