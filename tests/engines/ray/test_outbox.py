"""What leaves a host: all of it, in its order, and of endless logs the ends."""

import os
import random
import re

import pytest

from xla_nb.engines.ray import outbox
from xla_nb.engines.ray.outbox import FileChunk, Outbox

LEFT_OUT = re.compile(rb"\xe2\x80\xa6 ([\d,]+) lines \(([\d.,]+) MB\) are left out here; the whole")


class Host:
    """A record that is written to, and what came out of its outbox so far, by file."""

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
        """Until there is nothing new; gives how often there was."""
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
    """Limits that a test reaches."""
    for name, size in {"WHOLE": 1000, "TAIL": 200, "_CHUNK": 300, "_MOST": 700}.items():
        monkeypatch.setattr(outbox, name, size)


def lines(first, last):
    return b"".join(b"line %03d\n" % number for number in range(first, last))


# ---------------------------------------------------------------- logs


def test_a_log_arrives_as_it_grows(host):
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


def test_more_than_one_look_takes_comes_in_several(host, small):
    host.writes("rank-0.out", lines(0, 80))
    assert host.looks() == 3  # of 720 bytes, 300 at a time
    assert host.arrived["rank-0.out"] == lines(0, 80)


def test_ranks_that_write_without_end_leave_a_turn_to_the_others(host, small):
    for _ in range(4):
        for rank in range(4):
            host.writes(f"rank-{rank}.out", lines(0, 40))
        host.writes("rank-9.out", b"me too\n")
        host.look()
    assert host.arrived["rank-9.out"].startswith(b"me too\n")


def test_files_that_are_not_for_the_notebook_stay(host):
    (host.path / "program").mkdir()
    for name in ("owner", "stacks", "alone", "run.json", "rank-0.partial", "run.json.partial"):
        host.writes(name, b"content")
    assert host.look() == []


def test_a_file_that_goes_while_it_is_looked_at_does_no_harm(host):
    host.writes("rank-1.out", b"here\n")
    for name in ("rank-0.now", "rank-0.out"):
        (host.path / name).symlink_to("gone")  # which is listed, and not there
    assert host.look() == [FileChunk("rank-1.out", "append", b"here\n")]


# ---------------------------------------------------------------- logs that are too long


def test_a_log_up_to_the_limit_has_no_gap(host, small):
    host.writes("rank-0.out", lines(0, 111))  # 999 bytes
    host.looks()
    assert host.arrived["rank-0.out"] == lines(0, 111)


def test_of_a_log_beyond_the_limit_the_beginning_and_the_newest_lines_go(host, small):
    host.writes("rank-0.out", lines(0, 999))
    host.looks()
    before, told, after = re.split(rb"(\xe2\x80\xa6.*\n)", host.arrived["rank-0.out"])
    head = before.count(b"\n") + 1  # the last look ended inside of a line
    tail = after.count(b"\n")
    assert lines(0, head).startswith(before.removesuffix(b"\n"))
    assert after == lines(999 - tail, 999)
    assert 200 - 9 <= len(after) <= 200
    assert head - 1 + int(LEFT_OUT.match(told)[1]) + tail == 999


def test_what_is_left_out_says_how_much_it_is_and_where_it_lies(host, monkeypatch):
    monkeypatch.setattr(outbox, "WHOLE", 9)
    monkeypatch.setattr(outbox, "TAIL", 900)
    host.writes("rank-0.out", lines(0, 1))
    host.look()
    host.writes("rank-0.out", b"x" * 1_500_000 + b"\n" + lines(0, 1500) + lines(0, 100))
    host.look()
    told, _, rest = host.arrived["rank-0.out"].removeprefix(lines(0, 1)).partition(b"\n")
    assert told.decode() == (
        f"… 1,502 lines (1.5 MB) are left out here; the whole is in {host.path}/rank-0.out on "
        f"{os.uname().nodename} …"
    )
    assert rest == lines(1, 100)


@pytest.mark.parametrize(("end", "kept"), [(b"", 200), (b"\n", 0)])
def test_a_line_without_end_is_cut_rather_than_waited_for(host, small, end, kept):
    host.writes("rank-0.out", b"a" * 3000 + end)
    host.looks()
    head, told, tail = host.arrived["rank-0.out"].split(b"\n", 2)
    assert len(head) == 1200
    assert LEFT_OUT.match(told)
    assert tail == b"a" * kept


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_and_what_is_said_to_be_left_out_are_all_lines(host, small, seed):
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
    gaps = [int(found[1]) for line in arrived if (found := LEFT_OUT.match(line))]
    assert gaps
    assert len(arrived) - len(gaps) + sum(gaps) == written


# ---------------------------------------------------------------- the job's own output


def test_each_line_of_a_job_says_its_host_where_there_are_several(one_of_two):
    one_of_two.writes("job.out", b"one\ntwo\n")
    one_of_two.writes("rank-0.out", b"three\n")
    one_of_two.looks()
    assert one_of_two.arrived == {"job.out": b"[left] one\n[left] two\n", "rank-0.out": b"three\n"}


def test_the_jobs_lines_of_the_only_host_are_as_they_were_written(host):
    host.writes("job.err", b"a warning, unfinis")
    host.look()
    assert host.arrived == {"job.err": b"a warning, unfinis"}


def test_a_jobs_line_waits_until_it_is_whole(one_of_two):
    one_of_two.writes("job.err", b"10%\r20%")
    assert one_of_two.look() == []
    one_of_two.writes("job.err", b"\r30%\ndone\nand")
    one_of_two.looks()
    assert one_of_two.arrived["job.err"] == b"[left] 10%\r20%\r30%\n[left] done\n"


def test_a_jobs_last_line_comes_with_the_end_though_nobody_has_ended_it(one_of_two):
    one_of_two.writes("job.err", b"one\nSegmentation fault")
    one_of_two.looks()
    one_of_two.looks(over=True)
    assert one_of_two.arrived["job.err"] == b"[left] one\n[left] Segmentation fault\n"


def test_a_jobs_line_that_is_very_long_is_not_waited_for(one_of_two, small):
    one_of_two.writes("job.out", b"a" * 650)
    one_of_two.looks()
    one_of_two.writes("job.out", b"b\nc\n")
    one_of_two.looks()
    assert one_of_two.arrived["job.out"] == b"[left] " + b"a" * 650 + b"b\n[left] c\n"


def test_a_jobs_output_beyond_the_limit_is_in_whole_lines_too(one_of_two, small):
    one_of_two.writes("job.out", lines(0, 999))
    one_of_two.looks()
    arrived = one_of_two.arrived["job.out"].splitlines()
    assert all(line.startswith(b"[left] ") for line in arrived)
    gaps = [int(found[1]) for line in arrived if (found := LEFT_OUT.match(line[7:]))]
    assert len(gaps) == 1
    assert len(arrived) - 1 + gaps[0] == 999


# ---------------------------------------------------------------- samples, results, histories


def test_a_sample_goes_when_it_has_changed(host):
    host.samples(0, b"first", at=1)
    assert host.look() == [FileChunk("rank-0.now", "replace", b"first")]
    assert host.look() == []
    host.samples(0, b"second", at=2)
    assert host.look() == [FileChunk("rank-0.now", "replace", b"second")]


def test_results_and_histories_arrive_whole_whatever_is_in_them(host, small):
    content = bytes(range(256)) * 8
    host.writes("rank-0.result", content)
    host.writes("rank-0.history", content)
    host.looks()
    assert host.arrived == {"rank-0.result": content, "rank-0.history": content}


def test_a_result_is_delivered_when_its_last_part_has_been_sent(host, small):
    host.writes("rank-0.result", b"r" * 1500)
    told = [host.outbox.delivered(0)]
    for _ in range(3):
        host.look()
        told.append(host.outbox.delivered(0))
    assert told == [False, False, False, True]
