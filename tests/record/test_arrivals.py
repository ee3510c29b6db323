"""When lines were seen: which times are kept, and how damaged files are handled."""

import math

import pytest

from xla_nb.record.files import Record
from xla_nb.record.tail import MOST, Arrivals, Tail, ends


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def look(arrivals, now, *tails):
    arrivals.now = now
    for tail in tails:
        while tail.look(10) is not None:
            pass


def times(arrivals, path, most=MOST):
    found = ends(path, most, most)
    counts = len(found.head), found.left_out, len(found.tail)
    return arrivals.times(path.name, *counts)


def test_line_has_the_time_at_which_it_was_first_seen_complete(record):
    arrivals, path = Arrivals(), record.log(0, "out")
    tail = Tail(path, arrivals)
    for now, text in ((1.0, "a\nb\nhal"), (2.0, "f\n"), (3.0, ""), (4.0, "c\nopen")):
        with path.open("a") as file:
            file.write(text)
        look(arrivals, now, tail)
    assert times(arrivals, path) == (1.0, 1.0, 2.0, 4.0, math.inf)


def test_only_first_and_last_lines_of_a_flood_keep_their_times(record):
    arrivals, path = Arrivals(), record.log(0, "out")
    tail = Tail(path, arrivals)
    with path.open("a") as file:
        for now in range(3000):
            file.write(f"line {now}\n")
            file.flush()
            look(arrivals, float(now), tail)
    assert times(arrivals, path) == (*range(MOST), *range(3000 - MOST, 3000))
    arrivals.note("rank-1.out", 1)
    arrivals.save(record)
    assert record.arrivals.stat().st_size < 2000


def test_saved_times_can_be_read_again(record):
    arrivals = Arrivals()
    for now, name, count in (
        (1.0, "rank-0.out", 2),
        (1.5, "rank-1.err", 1),
        (9.0, "rank-0.out", 3),
    ):
        arrivals.now = now
        arrivals.note(name, count)
    arrivals.save(record)
    again = Arrivals.read(record)
    assert again.times("rank-0.out", 3, 0, 0) == (1.0, 1.0, 9.0)
    assert again.times("rank-1.err", 1, 0, 0) == (1.5,)


def test_times_of_a_single_stream_are_not_saved(record):
    arrivals = Arrivals()
    arrivals.note("rank-0.out", 2)
    arrivals.save(record)
    assert not record.arrivals.exists()


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"a": 1}', '{"a": [[1]]}', '{"a": [["x", 1]]}', "[" * 100_000, "\xff"]
)
def test_damaged_file_counts_as_empty(record, content):
    record.arrivals.write_text(content, encoding="latin-1")
    assert Arrivals.read(record).times("a", 1, 0, 0) == ()
