"""The notebook's record of ranks elsewhere, as those who read a record find it."""

import os

import pytest

from xla_nb.engines.ray import outbox
from xla_nb.engines.ray.mirror import Mirror, Unwritable
from xla_nb.engines.ray.outbox import FileChunk, Outbox
from xla_nb.protocol import pickling
from xla_nb.record.sample import Sample, decode, encode
from xla_nb.record.tail import Tail


@pytest.fixture
def mirror(tmp_path):
    return Mirror(tmp_path)


def test_what_is_appended_lies_behind_what_came_before(mirror, tmp_path):
    mirror.take(
        [FileChunk("rank-0.out", "append", b"one\ntw"), FileChunk("rank-1.out", "append", b"1\n")]
    )
    mirror.take([FileChunk("rank-0.out", "append", b"o\n")])
    assert (tmp_path / "rank-0.out").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "rank-1.out").read_bytes() == b"1\n"


def test_files_are_their_owners_alone(mirror, tmp_path):
    mirror.take([FileChunk("rank-0.out", "append", b"x"), FileChunk("rank-0.now", "replace", b"x")])
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["../rank-0.out", "/rank-0.out", "there/rank-0.out"])
def test_nothing_is_written_but_files_of_the_record(tmp_path, name):
    (tmp_path / "record").mkdir()
    Mirror(tmp_path / "record").take([FileChunk(name, "append", b"x")])
    assert (tmp_path / "record" / "rank-0.out").read_bytes() == b"x"


def test_on_a_full_disk_it_is_said_where_it_is_full(mirror, tmp_path):
    (tmp_path / "rank-0.out").symlink_to("/dev/full")
    with pytest.raises(Unwritable, match=f"{tmp_path}: .*No space left.*What to do"):
        mirror.take([FileChunk("rank-0.out", "append", b"x")])


def test_a_log_is_tailed_while_it_arrives(mirror, tmp_path):
    tail = Tail(tmp_path / "rank-0.out")
    mirror.take([FileChunk("rank-0.out", "append", b"one\ntw")])
    assert list(tail.lines()) == ["one"]
    mirror.take([FileChunk("rank-0.out", "append", b"o\n")])
    assert list(tail.lines()) == ["two"]


def test_a_sample_that_is_shorter_than_the_last_one_can_be_read(mirror, tmp_path):
    for place in ("Cell In[3], line 1000", "", "Cell In[3], line 7"):
        sample = Sample(at=1.0, since=1.0, place=place)
        mirror.take([FileChunk("rank-0.now", "replace", encode(sample))])
        assert decode((tmp_path / "rank-0.now").read_bytes()) == sample


def test_a_result_that_comes_in_parts_is_the_value(mirror, tmp_path, monkeypatch):
    host = tmp_path / "host"
    host.mkdir()
    fd = os.open(host / "rank-0.result", os.O_RDWR | os.O_CREAT)
    pickling.send_home(fd, list(range(1000)), ())
    os.close(fd)
    monkeypatch.setattr(outbox, "_MOST", 512)
    out, parts = Outbox(host), 0
    while pieces := out.look():
        mirror.take(pieces)
        parts += 1
    assert parts > 2
    fd = os.open(tmp_path / "rank-0.result", os.O_RDWR)
    try:
        assert pickling.Parcel(fd).group(0)["result"] == list(range(1000))
    finally:
        os.close(fd)
