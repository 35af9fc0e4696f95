from __future__ import annotations

import ast
import contextlib
import json
import struct
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import isthmus
from isthmus.core.codec import MAX_DEPTH, PREFIX, decode, encode, encoded_size
from isthmus.core.errors import BadMessage
from isthmus.core.record import DTYPES, Record, State, check_record

from .toys import Inner, Outer, memories, outer, outers, quick, same, tensors


@dataclass(frozen=True)
class Positive(Record):
    number: float

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError(f"number is {self.number}; it must be positive")


@dataclass(frozen=True)
class Careless(Record):
    params: dict[str, torch.Tensor]

    def __post_init__(self) -> None:
        self.params["w"].sum()


def message(skeleton: Any, tail: bytes = b"", magic: bytes = b"ISTH", version: int = 1, flags: int = 0) -> bytes:
    """Return a message made by hand."""
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    return PREFIX.pack(magic, version, flags, len(text)) + text + tail


def skeleton_of(data: bytes) -> Any:
    length = PREFIX.unpack_from(data)[3]
    return json.loads(data[PREFIX.size : PREFIX.size + length])


def refused(data: bytes, expected: Any = Any, **options: int) -> str:
    """Return why a message is refused; any other exception than BadMessage goes through and fails the test."""
    with pytest.raises(BadMessage) as caught:
        decode(data, expected, **options)
    return str(caught.value)


# ---- what goes in comes out


@quick
@given(memories)
@example({"a": float("nan"), "b": (float("inf"), -float("inf"), -0.0)})
@example({"big": 2**4000, "ünï": "\U0001f980\x00\u2028\ud800"})
def test_a_value_is_the_same_after_a_round_trip(value: Any) -> None:
    assert same(decode(encode(value), Any), value)


@quick
@given(outers)
def test_a_record_is_the_same_after_a_round_trip(record: Outer) -> None:
    assert same(decode(encode(record), Outer), record)


@quick
@given(tensors())
def test_a_tensor_has_the_same_bits_after_a_round_trip(tensor: torch.Tensor) -> None:
    found = decode(encode(tensor), torch.Tensor)
    assert same(found, tensor.detach())
    assert found.is_contiguous() and not found.requires_grad


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (7,), (2, 3)])
def test_every_type_of_tensor_survives_in_every_shape(name: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(64).reshape(8, 8)[: max(shape, default=1)].sum() + torch.zeros(shape)).to(DTYPES[name])
    assert same(decode(encode(tensor), torch.Tensor), tensor)


@quick
@given(st.one_of(memories, outers))
def test_the_announced_size_is_the_size(value: Any) -> None:
    assert encoded_size(value) == len(encode(value))


def test_the_size_is_known_without_copying_the_tensors() -> None:
    wide = torch.zeros(1).expand(2**40)  # 4 TiB if it were written out
    assert encoded_size({"w": wide}) > 2**42


def test_decoded_tensors_share_no_memory_with_the_message_or_each_other() -> None:
    data = bytearray(encode((torch.ones(4), torch.ones(4))))
    first, second = decode(data, tuple[torch.Tensor, ...])  # type: ignore[arg-type]
    data[-64:] = bytes(64)
    first[0] = 5.0
    assert first.tolist() == [5.0, 1.0, 1.0, 1.0]
    assert second.tolist() == [1.0] * 4


def test_equal_values_have_equal_bytes_wherever_they_lie() -> None:
    assert encode({"w": torch.arange(6).reshape(2, 3).t()}) == encode({"w": torch.tensor([[0, 3], [1, 4], [2, 5]])})


def test_the_layout_is_what_the_docstring_says() -> None:
    data = encode({"a": torch.tensor([1.5, -2.0, 3.0])})
    text = b'{"value":{"d":[["a",{"t":0}]]},"tensors":[["f32",[3]]]}'
    assert data == struct.pack("<4sHHQ", b"ISTH", 1, 0, len(text)) + text + struct.pack("<3f", 1.5, -2.0, 3.0) + bytes(
        4
    )


# ---- what cannot be encoded


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1]}, "message['a']: cannot encode a list"),
        ((1, {2}), "message[1]: cannot encode a set"),
        ({"a": object()}, "message['a']: cannot encode a object"),
        ({"a": b"x"}, "message['a']: cannot encode a bytes"),
        ({1.5: 1}, "message: cannot encode the dict key 1.5"),
        ({True: 1}, "message: cannot encode the dict key True"),
        ({"a": torch.eye(2).to_sparse()}, "message['a']: cannot encode a torch.sparse_coo tensor"),
        ({"a": torch.eye(2).to_sparse_csr()}, "message['a']: cannot encode a torch.sparse_csr tensor"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, "message['a']: cannot encode a torch.strided tensor of"),
        ({"a": torch.ones([1] * 17)}, "message['a']: cannot encode a torch.strided tensor of torch.float32 with 17"),
        (10**5000, "message: cannot encode it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_storable_is_refused_at_encoding_and_its_place_named(value: Any, place: str) -> None:
    for write in (encode, encoded_size):
        with pytest.raises(BadMessage) as caught:
            write(value)
        assert str(caught.value).startswith(place)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = (value,) if level % 2 else {"x": value}
    return value


def test_what_can_be_encoded_can_be_decoded_at_any_depth() -> None:
    assert decode(encode(nested(MAX_DEPTH)), Any) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5000):
        with pytest.raises(BadMessage, match=f"nested deeper than {MAX_DEPTH}"):
            encode(nested(depth))


# ---- what is refused at decoding


@quick
@given(st.binary(max_size=200))
@example(b"")
@example(b"ISTH")
def test_random_bytes_are_refused(data: bytes) -> None:
    refused(data)


@quick
@given(st.binary(max_size=200))
def test_random_bytes_after_a_good_prefix_are_refused(data: bytes) -> None:
    refused(message(data, b"x"))


json_trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.sampled_from(["t", "nan", "f32"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["t", "n", "d", "r", "f", "x"]), inner, max_size=2),
    ),
    max_leaves=8,
)


@quick
@given(json_trees, json_trees)
def test_a_skeleton_of_any_json_is_read_or_refused_and_nothing_else_happens(value: Any, table: Any) -> None:
    for skeleton in ({"value": value, "tensors": []}, {"value": value, "tensors": table}, table):
        for expected in (Any, Outer, State):
            with contextlib.suppress(BadMessage):
                decode(message(skeleton), expected)


def test_a_message_cut_at_any_place_is_refused() -> None:
    data = encode(outer())
    for length in range(len(data)):
        refused(data[:length], Outer)


def test_a_flipped_bit_in_prefix_or_skeleton_is_refused_or_gives_another_well_typed_record() -> None:
    data = encode(outer())
    end = PREFIX.size + PREFIX.unpack_from(data)[3]
    for place in range(end):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            if place < PREFIX.size:
                refused(bytes(changed), Outer)
                continue
            try:
                found = decode(bytes(changed), Outer)
            except BadMessage:
                continue
            check_record(found)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message({"value": 1, "tensors": []}, magic=b"PK\x03\x04"), "starts with b'PK"),
        (message({"value": 1, "tensors": []}, version=2), "format version 2, this package reads 1"),
        (message({"value": 1, "tensors": []}, flags=1), "flags 0x1"),
        (message({"value": 1, "tensors": []}, b"\0" * 8), "8 bytes after its last tensor"),
        (message({"value": 1}), "not {value, tensors}"),
        (message({"value": 1, "tensors": [], "more": 1}), "not {value, tensors}"),
        (message([1]), "not {value, tensors}"),
        (message(b'{"value":1,"value":2,"tensors":[]}'), "a key twice"),
        (message(b'{"value":NaN,"tensors":[]}'), "NaN is not JSON"),
        (message(b'{"value":' + b"9" * 5000 + b',"tensors":[]}'), "not JSON"),
        (message(b'{"value":"\xff","tensors":[]}'), "not JSON"),
        (message({"value": 1, "tensors": {}}), "no table of tensors"),
        (message({"value": 1, "tensors": [["f99", [1]]]}), "expected [dtype, shape]"),
        (message({"value": 1, "tensors": [[["f32"], [1]]]}), "expected [dtype, shape]"),
        (message({"value": 1, "tensors": [["f32"]]}), "expected [dtype, shape]"),
        (message({"value": {"t": 0}, "tensors": [["f32", [-1]]]}), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [1.0]]]}), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [True]]]}, bytes(8)), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [1] * 17]]}, bytes(8)), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [0, 2**39, 2**39]]]}), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [2**39, 2**39, 2**39, 0]]]}), "impossible shape"),
        (message({"value": {"t": 0}, "tensors": [["f32", [2]]]}, bytes(7)), "ends within tensor 0"),
        (message({"value": {"t": 0}, "tensors": [["f32", [1]]]}, bytes(7)), "ends within the padding"),
        (message({"value": {"t": 1}, "tensors": [["f32", [2]]]}, bytes(8)), "is no tensor"),
        (message({"value": {"t": -1}, "tensors": [["f32", [2]]]}, bytes(8)), "is no tensor"),
        (message({"value": {"t": False}, "tensors": [["f32", [2]]]}, bytes(8)), "is no tensor"),
        (message({"value": [{"t": 0}, {"t": 0}], "tensors": [["f32", [2]]]}, bytes(8)), "is no tensor"),
        (message({"value": 1, "tensors": [["f32", [2]]]}, bytes(8)), "1 tensors that its value does not hold"),
        (message({"value": {"t": 0}, "tensors": [["bool", [2]]]}, b"\1\7" + bytes(6)), "other than 0 and 1"),
        (message({"value": {"n": "1e5"}, "tensors": []}), "is no tensor, dict, record or float"),
        (message({"value": {"n": ["nan"]}, "tensors": []}), "is no tensor, dict, record or float"),
        (message({"value": {"d": [["a", 1], ["a", 2]]}, "tensors": []}), "is no new [key, value]"),
        (message({"value": {"d": [[1, 1], [1, 2]]}, "tensors": []}), "is no new [key, value]"),
        (message({"value": {"d": [[True, 1]]}, "tensors": []}), "is no new [key, value]"),
        (message({"value": {"d": [[[], 1]]}, "tensors": []}), "is no new [key, value]"),
        (message({"value": {"d": [["a"]]}, "tensors": []}), "is no new [key, value]"),
        (message({"value": {"d": {}}, "tensors": []}), "is no tensor, dict, record or float"),
        (message({"value": {"r": "Inner", "f": {}}, "tensors": []}), "'Inner', expected no record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_message_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    assert reason in refused(data)


@pytest.mark.parametrize(
    "skeleton",
    [
        {"value": {"t": 0}, "tensors": [["f32", [2**38]]]},
        {"value": {"t": 0}, "tensors": [["f64", [2**20, 2**20]]]},
        {"value": 1, "tensors": [["u8", [2**39]]] * 1000},
    ],
)
def test_announced_sizes_far_above_the_data_allocate_nothing(skeleton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(torch, "empty", never)
    tracemalloc.start()
    refused(message(skeleton, bytes(64)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_an_announced_skeleton_longer_than_the_message_is_refused() -> None:
    assert "announces a skeleton" in refused(PREFIX.pack(b"ISTH", 1, 0, 2**63) + b"{}")


def test_a_message_above_the_limit_is_refused_unread() -> None:
    data = encode({"w": torch.zeros(100)})
    decode(data, Any, max_bytes=len(data))
    assert "above the limit" in refused(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 990, 2000, 200_000])
@pytest.mark.parametrize("where", ["value", "tensors"])
@pytest.mark.parametrize("shape", ["[%s]", '{"d":[["x",%s]]}', '{"x":%s}'])
def test_deep_nesting_is_refused(depth: int, where: str, shape: str) -> None:
    before, after = shape.split("%s")
    tree = before * depth + "1" + after * depth
    parts = {"value": "1", "tensors": "[]", where: tree}
    refused(message(f'{{"value":{parts["value"]},"tensors":{parts["tensors"]}}}'.encode()))


# ---- only what the receiver expects


def changed_field(name: str, tree: Any) -> bytes:
    """Return the message of an Outer without tensors but for one field, which is changed in the skeleton."""
    fields = {
        "params": {"d": []},
        "weight": 1.0,
        "count": 1,
        "sure": True,
        "name": "n",
        "inner": {"r": "Inner", "f": {"values": {"t": 0}, "label": None}},
        "several": [],
        "pair": [1, 1.0],
        "by_number": {"d": []},
        "anything": None,
        "maybe": None,
    }
    skeleton = {"value": {"r": "Outer", "f": {**fields, name: tree}}, "tensors": [["f32", [2]]]}
    return message(skeleton, bytes(8))


def test_the_message_made_by_hand_is_good_before_it_is_changed() -> None:
    assert same(decode(changed_field("count", 5), Outer).count, 5)


@pytest.mark.parametrize(
    ("field", "tree"),
    [
        ("params", {"d": [["w", 1.0]]}),
        ("params", {"d": [[1, 1.0]]}),
        ("params", []),
        ("weight", True),
        ("weight", "1"),
        ("weight", None),
        ("count", True),
        ("count", 1.0),
        ("count", {"n": "nan"}),
        ("sure", 1),
        ("name", 1),
        ("name", None),
        ("inner", {"r": "Outer", "f": {"values": {"t": 0}, "label": None}}),
        ("inner", {"r": ["Inner"], "f": {"values": {"t": 0}, "label": None}}),
        ("inner", {"r": "Inner", "f": {"values": {"t": 0}}}),
        ("inner", {"r": "Inner", "f": {"values": {"t": 0}, "label": None, "more": 1}}),
        ("inner", {"r": "Inner", "f": {"values": 1, "label": None}}),
        ("inner", {"r": "Inner", "f": {"values": {"t": 0}, "label": 1}}),
        ("inner", {"t": 0}),
        ("several", {"d": []}),
        ("several", [1]),
        ("pair", [1]),
        ("pair", [1, 1.0, 1.0]),
        ("pair", [1.0, 1.0]),
        ("by_number", {"d": [["1", 1]]}),
        ("anything", {"r": "Inner", "f": {"values": {"t": 0}, "label": None}}),
        ("maybe", "x"),
    ],
)
def test_a_field_that_does_not_fit_its_annotation_is_refused_by_name(field: str, tree: Any) -> None:
    assert field in refused(changed_field(field, tree), Outer)


@pytest.mark.parametrize("name", ["Outer", "Path", "isthmus.core.record.Record", "", "Request"])
def test_a_record_that_the_receiver_did_not_name_is_refused(name: str) -> None:
    data = message({"value": {"r": name, "f": {}}, "tensors": []})
    assert "expected Inner" in refused(data, Inner)


def test_a_record_cannot_hide_in_memory() -> None:
    refused(encode({"x": Inner(torch.ones(1), None)}), State)


@pytest.mark.parametrize("drop", ["weight", "anything", "maybe"])
def test_a_missing_field_is_refused_even_when_it_has_a_default(drop: str) -> None:
    data = encode(outer(anything=None))
    skeleton = skeleton_of(data)
    del skeleton["value"]["f"][drop]
    tail = data[PREFIX.size + PREFIX.unpack_from(data)[3] :]
    assert "has the fields" in refused(message(skeleton, tail), Outer)


def test_a_record_that_refuses_its_fields_is_a_bad_message() -> None:
    assert "it must be positive" in refused(
        message({"value": {"r": "Positive", "f": {"number": -1}}, "tensors": []}), Positive
    )


@pytest.mark.parametrize("tree", [1, {"d": []}, {"d": [["w", 1]]}, []])
def test_a_record_whose_own_check_stumbles_over_wrong_fields_is_a_bad_message(tree: Any) -> None:
    refused(message({"value": {"r": "Careless", "f": {"params": tree}}, "tensors": []}), Careless)


# ---- no pickle


def test_no_module_uses_pickle_or_evaluates_text() -> None:
    root = Path(isthmus.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Call):
                names = [ast.unparse(node.func)]
                if names == ["torch.load"] and any(ast.unparse(k) == "weights_only=True" for k in node.keywords):
                    names = []  # tensors only: torch refuses everything that could run code
                if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
                    names.append("pickle")
            banned = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
            calls = {"eval", "exec", "torch.load", "torch.save", "yaml.load", "yaml.unsafe_load"}
            if any(name.split(".")[0] in banned or name in calls for name in names):
                found.append(f"{path.relative_to(root)}:{node.lineno} {names}")  # type: ignore[attr-defined]
    assert found == []
    assert len(list(root.rglob("*.py"))) > 50


def test_a_whole_number_beyond_any_float_is_refused_where_a_float_is_due() -> None:
    from isthmus.core.protocol import Evaluation

    message = encode(Evaluation({"val": {"accuracy": 10**400}}, {"val": 7}))
    with pytest.raises(BadMessage, match="too large for a float"):
        decode(message, Evaluation)
