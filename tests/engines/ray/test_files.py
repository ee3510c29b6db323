"""Copying the files of a host's record to the notebook's record."""

import os

import pytest

from xla_nb.engines.ray import files
from xla_nb.engines.ray.files import Copies, FileChunk, NewBytes


@pytest.fixture
def there(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def add(path, data):
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("ending", ["out", "err", "history", "result", "displays"])
def test_new_content_of_a_file_is_sent_once_in_chunks(there, here, monkeypatch, ending):
    monkeypatch.setattr(files, "LARGEST", 4)
    name = f"rank-3.{ending}"
    new, copies = NewBytes(there), Copies(here)
    for data in (b"0123456789", b"", b"abc"):
        add(there / name, data)
        chunks = list(new.look())
        assert all(len(chunk.data) <= 4 for chunk in chunks)
        assert copies.take(chunks) == ""
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert list(new.look()) == []


def test_look_sends_only_what_was_written_before_it(there):
    add(there / "rank-0.out", b"before")
    chunks = NewBytes(there).look()
    add(there / "rank-0.out", b" and after")
    assert [chunk.data for chunk in chunks] == [b"before"]


def test_files_that_do_not_grow_are_not_sent(there):
    for name in ("run.json", "owner", "stacks", "rank-0.raised.partial"):
        add(there / name, b"x")
    assert list(NewBytes(there).look()) == []


def test_changed_sample_is_sent_completely(there, here):
    new, copies = NewBytes(there), Copies(here)
    for content in (b"a long first sample", b"short"):
        (there / "rank-0.now").write_bytes(content)
        copies.take(new.look())
        assert (here / "rank-0.now").read_bytes() == content
        assert list(new.look()) == []


def test_rewritten_journal_replaces_the_old_one(there, here):
    new, copies = NewBytes(there), Copies(here)
    add(there / "rank-0.displays", b"a long first journal")
    copies.take(new.look())
    add(there / "other", b"anew")
    (there / "other").rename(there / "rank-0.displays")
    copies.take(new.look())
    assert (here / "rank-0.displays").read_bytes() == b"anew"


def test_name_with_a_path_stays_in_the_record(here):
    Copies(here).take([FileChunk("../../rank-0.out", b"x")])
    assert os.listdir(here) == ["rank-0.out"]  # noqa: PTH208


def test_output_that_does_not_fit_is_reported_once_and_then_dropped(here):
    (here / "rank-0.out").symlink_to("/dev/full")
    copies = Copies(here)
    told = copies.take([FileChunk("rank-0.out", b"x"), FileChunk("rank-1.out", b"x")])
    assert "No space left" in told
    assert (here / "rank-1.out").read_bytes() == b"x"
    assert copies.take([FileChunk("rank-0.out", b"y")]) == ""


@pytest.mark.parametrize("name", ["rank-0.result", "rank-0.out"])
def test_result_that_does_not_fit_or_a_deleted_record_raises(here, name):
    if name == "rank-0.result":
        (here / name).symlink_to("/dev/full")
    else:
        here.rmdir()
    with pytest.raises(OSError):
        Copies(here).take([FileChunk(name, b"x")])
