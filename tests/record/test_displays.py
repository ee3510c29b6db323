"""Displays of ranks: written in whole lines, read while the file grows, and bounded."""

import fcntl
import os
import signal

import pytest

from xla_nb.record import displays
from xla_nb.record.displays import Display, Journal, Reader, encode, read


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.displays"


@pytest.fixture
def journal(path):
    return Journal(path)


def show(text, **more):
    body = {"data": {"text/plain": text}, "metadata": {}, "id": None, "result": False}
    return encode("show", **{**body, **more})


def update(id, text):
    return encode("update", id=id, data={"text/plain": text}, metadata={})


def texts(path):
    return [display.text for display in read(path)]


# ---------------------------------------------------------------- kinds of lines


def test_displays_are_read_in_order(journal, path):
    journal.add(show("one", data={"text/plain": "one", "image/png": "iVBO"}, id="a"))
    journal.add(show("two", metadata={"image/png": {"width": 3}}, result=True))
    one, two = read(path)
    assert one == Display({"text/plain": "one", "image/png": "iVBO"}, {}, "a")
    assert two == Display({"text/plain": "two"}, {"image/png": {"width": 3}}, None, result=True)


def test_missing_file_has_no_displays(path):
    assert read(path) == []


def test_clear_removes_all_displays(journal, path):
    for line in (show("one"), encode("clear", wait=False)):
        journal.add(line)
    assert texts(path) == []
    journal.add(show("two"))
    assert texts(path) == ["two"]


def test_clear_with_wait_takes_effect_at_the_next_display(journal, path):
    for line in (show("one"), encode("clear", wait=True)):
        journal.add(line)
    assert texts(path) == ["one"]
    journal.add(show("two"))
    assert texts(path) == ["two"]


def test_update_replaces_displays_with_its_id(journal, path):
    for line in (show("one", id="a"), show("other", id="b"), update("a", "new")):
        journal.add(line)
    assert texts(path) == ["new", "other"]


def test_update_of_an_unknown_id_is_a_new_display(journal, path):
    for line in (show("one", id="a"), show("none"), update("z", "new"), update("z", "newer")):
        journal.add(line)
    assert texts(path) == ["one", "none", "newer"]


def test_update_after_a_waiting_clear_replaces_in_place_or_clears(journal, path):
    for line in (show("one", id="a"), show("two"), encode("clear", wait=True), update("a", "new")):
        journal.add(line)
    assert texts(path) == ["new", "two"]
    journal.add(update("z", "other"))
    assert texts(path) == ["other"]


def test_display_object_shows_itself_again(journal, path):
    journal.add(show("one", metadata={"a": 1}))
    assert read(path)[0]._repr_mimebundle_(include=None) == ({"text/plain": "one"}, {"a": 1})


def test_lone_surrogates_become_question_marks(journal, path):
    journal.add(show("a\ud800b"))
    assert texts(path) == ["a?b"]


# ---------------------------------------------------------------- reading while the file grows


def test_each_look_reads_new_displays(journal, path):
    reader = Reader(path)
    assert not reader.look()
    journal.add(show("one"))
    assert reader.look()
    assert not reader.look()
    journal.add(show("two"))
    assert reader.look()
    assert [one.text for one in reader.shown.displays] == ["one", "two"]


def test_partial_line_waits_for_the_rest(path):
    reader = Reader(path)
    line = show("one")
    path.write_bytes(line[:20])
    reader.look()
    assert reader.shown.displays == []
    path.write_bytes(line)
    reader.look()
    assert [one.text for one in reader.shown.displays] == ["one"]


def test_partial_line_of_a_killed_process_costs_no_other_display(journal, path):
    journal.add(show("one"))
    with path.open("ab") as file:
        file.write(show("half")[:30])
    journal.add(show("two"))
    reader = Reader(path)
    reader.look()
    assert [one.text for one in reader.shown.displays] == ["one", "two"]
    assert reader.shown.unreadable == 1


@pytest.mark.parametrize(
    "line",
    [
        *(b"{}\n", b"[1]\n", b"{\n", b"\xff\n", b"null\n", b'{"kind": "_trim"}\n'),
        b'{"kind": "show", "data": 1, "metadata": {}}\n',
        b'{"kind": "show", "metadata": {}}\n',
        b'{"kind": "clear"}\n',
    ],
)
def test_damaged_line_is_counted(line, journal, path):
    journal.add(show("one"))
    journal.add(line)
    reader = Reader(path)
    reader.look()
    assert [one.text for one in reader.shown.displays] == ["one"]
    assert reader.shown.unreadable == 1


# ---------------------------------------------------------------- limits


def test_only_the_newest_displays_are_kept_and_the_others_counted(journal, path):
    for number in range(displays.MOST + 20):
        journal.add(show(str(number)))
    reader = Reader(path)
    reader.look()
    assert [one.text for one in reader.shown.displays][:: displays.MOST - 1] == ["20", "119"]
    assert reader.shown.dropped == 20


def test_only_the_newest_displays_within_the_byte_limit_are_kept(journal, path, monkeypatch):
    monkeypatch.setattr(displays, "MOST_BYTES", 10_000)
    for number in range(4):
        journal.add(show(f"{number}" * 4000))
    assert [text[0] for text in texts(path)] == ["2", "3"]


def test_long_journal_is_rewritten_when_cleared(journal, path, monkeypatch):
    monkeypatch.setattr(displays, "MOST_BYTES", 10_000)
    reader = Reader(path)
    sizes = []
    for number in range(50):
        journal.add(encode("clear", wait=True), clears=True)
        journal.add(show(f"{number} " + "x" * 1000, id="a"))
        reader.look()
        assert [one.text.split()[0] for one in reader.shown.displays] == [str(number)]
        sizes.append(path.stat().st_size)
    assert max(sizes) < 16_000
    assert list(path.parent.iterdir()) == [path]


def test_full_journal_rejects_displays_until_cleared(journal, path, monkeypatch):
    monkeypatch.setattr(displays, "MOST_BYTES", 1000)
    monkeypatch.setattr(displays, "JOURNAL", 2000)
    with pytest.raises(OSError, match="2 KiB is the limit for a rank's displays"):
        for _ in range(100):
            journal.add(show("x" * 100))
    journal.add(encode("clear", wait=False), clears=True)
    journal.add(show("after"))
    assert texts(path) == ["after"]


# ---------------------------------------------------------------- several writers, full disks


def test_concurrent_processes_write_whole_lines(journal, path):
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for number in range(25):
                    journal.add(show(f"{child}.{number} " + "x" * 50_000))
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    reader = Reader(path)
    reader.look()
    assert reader.shown.unreadable == 0
    assert {one.text.split()[0] for one in reader.shown.displays} == {
        f"{child}.{number}" for child in range(4) for number in range(25)
    }


def test_killed_writer_does_not_block_others(journal, path):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.flock(path.open("ab"), fcntl.LOCK_EX)
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    journal.add(show("one"))
    assert texts(path) == ["one"]


def test_failed_write_on_a_full_disk_leaves_no_partial_line(journal, path, monkeypatch):
    journal.add(show("one"))
    before, write = path.read_bytes(), os.write

    def full(fd, data):
        if len(data) < 60:
            raise OSError(28, "No space left on device")
        return write(fd, bytes(data)[:50])

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(displays.os, "write", full)
        journal.add(show("two"))
    assert path.read_bytes() == before
    journal.add(show("three"))
    assert texts(path) == ["one", "three"]
