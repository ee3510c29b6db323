"""A rank's newest sample, written to a file and read back."""

import json

import pytest

from xla_nb.record.sample import Loop, Sample, decode, encode

FULL = Sample(
    at=20.5,
    activity="waiting",
    since=12.25,
    place="Cell In[3], line 7",
    operation="all_reduce('sum') of f32[4], “grads”",
    missing=(1, 3),
    memory=1 << 30,
    cpu=7.5,
    device_used=5,
    device_limit=10,
    compiles=3,
    compile_seconds=1.5,
    compiling=0.5,
    waited=2.5,
    lock_waited=0.25,
    data_waited=4.0,
    steps=40,
    fallbacks={"aten::nonzero": 2},
    loops=(
        Loop(label="epochs", done=1, total=3, rate=None),
        Loop(label="", done=9, total=None, rate=2.5),
    ),
)


@pytest.mark.parametrize("sample", [FULL, Sample(at=1.0, since=0.5)])
def test_sample_round_trips(sample):
    assert decode(encode(sample)) == sample


def test_sample_of_an_older_record_has_no_items():
    old = json.loads(encode(FULL))
    del old["items"]
    assert decode(json.dumps(old).encode()).items == 0


@pytest.mark.parametrize("name", ["waited", "lock_waited", "data_waited", "compiling"])
def test_missing_seconds_are_zero_or_none(name):
    body = json.loads(encode(FULL))
    del body[name]
    assert not getattr(decode(json.dumps(body).encode()), name)


def test_sample_is_one_line():
    written = encode(FULL)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1


def test_undecodable_characters_are_replaced():
    assert decode(encode(Sample(at=1.0, since=0.5, place="\udcff.py, line 3"))).place == (
        "?.py, line 3"
    )


def test_trailing_spaces_are_ignored():
    assert decode(encode(FULL) + b"   ") == FULL


@pytest.mark.parametrize("cut", [0, 1, 40, -2])
def test_partial_sample_is_rejected(cut):
    with pytest.raises(ValueError):
        decode(encode(FULL)[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"3",
        b"null",
        b"{}",
        b'{"loops": [3], "missing": []}',
        b'{"loops": [], "missing": [], "at": 1, "since": 1, "invented": 1}',
        b'{"at": 1, "since": 1, "loops": [{"label": "a"}]}',
        b'{"at": 1, "since": 1, "missing": 3}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_other_data_is_rejected(data):
    with pytest.raises(ValueError):
        decode(data)
