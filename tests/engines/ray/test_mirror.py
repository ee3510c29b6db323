"""The notebook's copy of a record, as readers of records find it."""

import os

import pytest

from xla_nb.engines.ray import outbox
from xla_nb.engines.ray.mirror import Mirror, Unwritable
from xla_nb.engines.ray.outbox import FileChunk, Outbox
from xla_nb.protocol import results
from xla_nb.protocol.parcel import Parcel
from xla_nb.record.sample import Sample, decode, encode
from xla_nb.record.tail import Tail


@pytest.fixture
def mirror(tmp_path):
    return Mirror(tmp_path)


def test_appended_chunks_follow_each_other_in_the_file(mirror, tmp_path):
    mirror.take(
        [FileChunk("rank-0.out", "append", b"one\ntw"), FileChunk("rank-1.out", "append", b"1\n")]
    )
    mirror.take([FileChunk("rank-0.out", "append", b"o\n")])
    assert (tmp_path / "rank-0.out").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "rank-1.out").read_bytes() == b"1\n"


def test_a_file_that_is_sent_anew_takes_the_place_of_the_old_one(mirror, tmp_path):
    path = tmp_path / "rank-0.displays"
    mirror.take([FileChunk(path.name, "append", b"one\ntwo\n")])
    before = path.stat().st_ino
    with path.open("rb") as held:
        mirror.take(
            [FileChunk(path.name, "anew", b"new\n"), FileChunk(path.name, "append", b"x\n")]
        )
        assert held.read() == b"one\ntwo\n"
        assert path.stat().st_ino != before
    assert path.read_bytes() == b"new\nx\n"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_private_to_their_owner(mirror, tmp_path):
    mirror.take([FileChunk("rank-0.out", "append", b"x"), FileChunk("rank-0.now", "replace", b"x")])
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["../rank-0.out", "/rank-0.out", "there/rank-0.out"])
def test_only_files_of_the_record_are_written(tmp_path, name):
    (tmp_path / "record").mkdir()
    Mirror(tmp_path / "record").take([FileChunk(name, "append", b"x")])
    assert (tmp_path / "record" / "rank-0.out").read_bytes() == b"x"


def test_a_result_that_does_not_fit_is_an_error_that_names_the_folder(mirror, tmp_path):
    (tmp_path / "rank-0.result").symlink_to("/dev/full")
    with pytest.raises(Unwritable, match=f"{tmp_path}: .*No space left.*Free space on that disk"):
        mirror.take([FileChunk("rank-0.result", "append", b"x")])


def test_output_that_does_not_fit_ends_there_and_is_told_once(mirror, tmp_path):
    log = tmp_path / "rank-0.out"
    log.symlink_to("/dev/full")
    chunk = FileChunk("rank-0.out", "append", b"x")
    (told,) = mirror.take([chunk, chunk, FileChunk("rank-1.out", "append", b"fits")])
    assert "No space left" in told
    assert (tmp_path / "rank-1.out").read_bytes() == b"fits"
    log.unlink()
    assert mirror.take([chunk]) == []
    assert not log.exists()


def test_a_log_can_be_tailed_while_it_is_written(mirror, tmp_path):
    tail = Tail(tmp_path / "rank-0.out")
    mirror.take([FileChunk("rank-0.out", "append", b"one\ntw")])
    assert tail.look(None).lines == ["one"]
    mirror.take([FileChunk("rank-0.out", "append", b"o\n")])
    assert tail.look(None).lines == ["two"]


def test_a_sample_shorter_than_the_last_one_can_be_read(mirror, tmp_path):
    for line in ("Cell In[3], line 1000", "", "Cell In[3], line 7"):
        sample = Sample(at=1.0, since=1.0, place=line)
        mirror.take([FileChunk("rank-0.now", "replace", encode(sample))])
        assert decode((tmp_path / "rank-0.now").read_bytes()) == sample


def test_a_result_written_in_parts_can_be_unpickled(mirror, tmp_path, monkeypatch):
    host = tmp_path / "host"
    host.mkdir()
    fd = os.open(host / "rank-0.result", os.O_RDWR | os.O_CREAT)
    results.pack_home(list(range(1000)), ()).write(fd)
    os.close(fd)
    monkeypatch.setattr(outbox, "_MOST", 512)
    out, parts = Outbox(host), 0
    while pieces := out.look():
        mirror.take(pieces)
        parts += 1
    assert parts > 2
    fd = os.open(tmp_path / "rank-0.result", os.O_RDWR)
    try:
        assert Parcel(fd).open()["result"] == list(range(1000))
    finally:
        os.close(fd)
