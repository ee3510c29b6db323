"""What a host sends: everything in order, but only both ends of very long logs."""

import os
import random
import re

import pytest

from xla_nb.engines.ray import outbox
from xla_nb.engines.ray.outbox import FileChunk, Outbox

OMITTED = re.compile(rb"\xe2\x80\xa6 ([\d,]+) lines \(([\d.,]+) MB\) omitted here; the full log")


class Host:
    """A record that is written to, and what its outbox has sent so far, by file."""

    def __init__(self, path, name=""):
        self.path, self.outbox = path, Outbox(path, name)
        self.arrived = {}

    def writes(self, name, data):
        with (self.path / name).open("ab") as file:
            file.write(data)

    def samples(self, rank, data, at):
        path = self.path / f"rank-{rank}.now"
        path.write_bytes(data)
        os.utime(path, ns=(at, at))

    def look(self, *, over=False):
        pieces = self.outbox.look(over=over)
        for piece in pieces:
            before = self.arrived.get(piece.name, b"") if piece.mode == "append" else b""
            self.arrived[piece.name] = before + piece.data
        return pieces

    def looks(self, *, over=False):
        """Look until nothing is new; returns how often something was."""
        count = 0
        while self.look(over=over):
            count += 1
        return count


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def one_of_two(tmp_path):
    return Host(tmp_path, "left")


@pytest.fixture
def small(monkeypatch):
    """Limits small enough for tests."""
    for name, size in {"WHOLE": 1000, "TAIL": 200, "_CHUNK": 300, "_MOST": 700}.items():
        monkeypatch.setattr(outbox, name, size)


def lines(first, last):
    return b"".join(b"line %03d\n" % number for number in range(first, last))


# ---------------------------------------------------------------- logs


def test_a_log_is_sent_as_it_grows(host):
    host.writes("rank-0.out", b"one\ntw")
    assert host.look() == [FileChunk("rank-0.out", "append", b"one\ntw")]
    assert host.look() == []
    host.writes("rank-0.out", b"o\n\xff")
    assert host.look() == [FileChunk("rank-0.out", "append", b"o\n\xff")]


def test_both_streams_of_every_rank_are_sent(host):
    for name in ("rank-0.out", "rank-0.err", "rank-12.err", "job.err"):
        host.writes(name, name.encode())
    host.looks()
    assert host.arrived == {name: name.encode() for name in host.arrived}
    assert len(host.arrived) == 4


def test_a_long_log_is_sent_in_several_looks(host, small):
    host.writes("rank-0.out", lines(0, 80))
    assert host.looks() == 3  # of 720 bytes, 300 at a time
    assert host.arrived["rank-0.out"] == lines(0, 80)


def test_ranks_that_flood_their_logs_do_not_starve_others(host, small):
    for _ in range(4):
        for rank in range(4):
            host.writes(f"rank-{rank}.out", lines(0, 40))
        host.writes("rank-9.out", b"me too\n")
        host.look()
    assert host.arrived["rank-9.out"].startswith(b"me too\n")


def test_files_not_meant_for_the_notebook_are_not_sent(host):
    (host.path / "program").mkdir()
    for name in ("owner", "stacks", "alone", "run.json", "rank-0.partial", "run.json.partial"):
        host.writes(name, b"content")
    assert host.look() == []


def test_a_file_deleted_during_a_look_is_skipped(host):
    host.writes("rank-1.out", b"here\n")
    for name in ("rank-0.now", "rank-0.out"):
        (host.path / name).symlink_to("gone")  # listed, but missing
    assert host.look() == [FileChunk("rank-1.out", "append", b"here\n")]


# ---------------------------------------------------------------- very long logs


def test_a_log_up_to_the_limit_is_sent_whole(host, small):
    host.writes("rank-0.out", lines(0, 111))  # 999 bytes
    host.looks()
    assert host.arrived["rank-0.out"] == lines(0, 111)


def test_a_log_beyond_the_limit_is_sent_as_its_beginning_and_newest_lines(host, small):
    host.writes("rank-0.out", lines(0, 999))
    host.looks()
    before, note, after = re.split(rb"(\xe2\x80\xa6.*\n)", host.arrived["rank-0.out"])
    head = before.count(b"\n") + 1  # the last look ended inside a line
    tail = after.count(b"\n")
    assert lines(0, head).startswith(before.removesuffix(b"\n"))
    assert after == lines(999 - tail, 999)
    assert 200 - 9 <= len(after) <= 200
    assert head - 1 + int(OMITTED.match(note)[1]) + tail == 999


def test_a_gap_gives_its_size_and_the_path_of_the_full_log(host, monkeypatch):
    monkeypatch.setattr(outbox, "WHOLE", 9)
    monkeypatch.setattr(outbox, "TAIL", 900)
    host.writes("rank-0.out", lines(0, 1))
    host.look()
    host.writes("rank-0.out", b"x" * 1_500_000 + b"\n" + lines(0, 1500) + lines(0, 100))
    host.look()
    note, _, rest = host.arrived["rank-0.out"].removeprefix(lines(0, 1)).partition(b"\n")
    assert note.decode() == (
        f"… 1,502 lines (1.5 MB) omitted here; the full log is {host.path}/rank-0.out on "
        f"{os.uname().nodename} …"
    )
    assert rest == lines(1, 100)


@pytest.mark.parametrize(("end", "kept"), [(b"", 200), (b"\n", 0)])
def test_an_endless_line_is_cut(host, small, end, kept):
    host.writes("rank-0.out", b"a" * 3000 + end)
    host.looks()
    head, note, tail = host.arrived["rank-0.out"].split(b"\n", 2)
    assert len(head) == 1200
    assert OMITTED.match(note)
    assert tail == b"a" * kept


@pytest.mark.parametrize("seed", range(20))
def test_sent_lines_and_omitted_lines_add_up_to_all_lines(host, small, seed):
    chance = random.Random(seed)
    written = 0
    for _ in range(60):
        text = b"".join(
            b"%d" % (written + n) + b"." * chance.randrange(60) + b"\n"
            for n in range(chance.choice([0, 1, 1, 5, 40]))
        )
        written += text.count(b"\n")
        cut = chance.randrange(len(text) + 1)
        host.writes("rank-0.out", text[:cut])
        host.look()
        host.writes("rank-0.out", text[cut:])
        for _ in range(chance.randrange(3)):
            host.look()
    host.looks()
    arrived = host.arrived["rank-0.out"].splitlines()
    gaps = [int(match[1]) for line in arrived if (match := OMITTED.match(line))]
    assert gaps
    assert len(arrived) - len(gaps) + sum(gaps) == written


# ---------------------------------------------------------------- the job's own output


def test_each_job_line_names_its_host_if_there_are_several(one_of_two):
    one_of_two.writes("job.out", b"one\ntwo\n")
    one_of_two.writes("rank-0.out", b"three\n")
    one_of_two.looks()
    assert one_of_two.arrived == {"job.out": b"[left] one\n[left] two\n", "rank-0.out": b"three\n"}


def test_job_lines_of_the_only_host_are_unchanged(host):
    host.writes("job.err", b"a warning, unfinis")
    host.look()
    assert host.arrived == {"job.err": b"a warning, unfinis"}


def test_a_job_line_is_sent_once_complete(one_of_two):
    one_of_two.writes("job.err", b"10%\r20%")
    assert one_of_two.look() == []
    one_of_two.writes("job.err", b"\r30%\ndone\nand")
    one_of_two.looks()
    assert one_of_two.arrived["job.err"] == b"[left] 10%\r20%\r30%\n[left] done\n"


def test_an_unfinished_last_job_line_is_sent_at_the_end(one_of_two):
    one_of_two.writes("job.err", b"one\nSegmentation fault")
    one_of_two.looks()
    one_of_two.looks(over=True)
    assert one_of_two.arrived["job.err"] == b"[left] one\n[left] Segmentation fault\n"


def test_a_very_long_job_line_is_sent_in_parts(one_of_two, small):
    one_of_two.writes("job.out", b"a" * 650)
    one_of_two.looks()
    one_of_two.writes("job.out", b"b\nc\n")
    one_of_two.looks()
    assert one_of_two.arrived["job.out"] == b"[left] " + b"a" * 650 + b"b\n[left] c\n"


def test_job_output_beyond_the_limit_is_in_whole_lines(one_of_two, small):
    one_of_two.writes("job.out", lines(0, 999))
    one_of_two.looks()
    arrived = one_of_two.arrived["job.out"].splitlines()
    assert all(line.startswith(b"[left] ") for line in arrived)
    gaps = [int(match[1]) for line in arrived if (match := OMITTED.match(line[7:]))]
    assert len(gaps) == 1
    assert len(arrived) - 1 + gaps[0] == 999


# ---------------------------------------------------------------- samples, results, histories


def test_a_sample_is_sent_when_it_changes(host):
    host.samples(0, b"first", at=1)
    assert host.look() == [FileChunk("rank-0.now", "replace", b"first")]
    assert host.look() == []
    host.samples(0, b"second", at=2)
    assert host.look() == [FileChunk("rank-0.now", "replace", b"second")]


def test_results_and_histories_are_sent_whole_whatever_their_bytes(host, small):
    content = bytes(range(256)) * 8
    host.writes("rank-0.result", content)
    host.writes("rank-0.history", content)
    host.looks()
    assert host.arrived == {"rank-0.result": content, "rank-0.history": content}


def test_a_result_is_delivered_once_its_last_part_is_sent(host, small):
    host.writes("rank-0.result", b"r" * 1500)
    delivered = [host.outbox.delivered(0)]
    for _ in range(3):
        host.look()
        delivered.append(host.outbox.delivered(0))
    assert delivered == [False, False, False, True]


# ---------------------------------------------------------------- displays


def test_a_journal_of_displays_is_sent_as_it_grows(host):
    host.writes("rank-0.displays", b"one\n")
    assert host.look() == [FileChunk("rank-0.displays", "append", b"one\n")]
    assert host.look() == []
    host.writes("rank-0.displays", b"two\n")
    assert host.look() == [FileChunk("rank-0.displays", "append", b"two\n")]


def test_a_journal_that_was_written_anew_is_sent_anew(host):
    host.writes("rank-0.displays", b"one\ntwo\n")
    host.look()
    host.writes("scratch", b"a longer one than before\n")
    (host.path / "scratch").rename(host.path / "rank-0.displays")
    assert host.look() == [FileChunk("rank-0.displays", "anew", b"a longer one than before\n")]
    host.writes("rank-0.displays", b"more\n")
    assert host.look() == [FileChunk("rank-0.displays", "append", b"more\n")]
