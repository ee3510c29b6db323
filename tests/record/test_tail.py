"""The tails of log files: whole lines, bounded reads, and what a terminal would show."""

import tracemalloc

import pytest

from xla_nb.record import tail as record_tail
from xla_nb.record.tail import Earlier, Ends, LineBlock, Tail, before, ends


@pytest.fixture
def tail(tmp_path):
    """A tail of a file; `tail.add` appends to the file."""
    made = Tail(tmp_path / "log")

    def add(written):
        with made.path.open("ab") as file:
            file.write(written)

    made.add = add
    return made


def test_a_file_that_is_not_there_yet_has_no_lines(tail):
    assert list(tail.lines()) == []
    assert list(tail.finish()) == []


def test_a_line_is_given_once(tail):
    tail.add(b"one\ntwo\n")
    assert list(tail.lines()) == ["one", "two"]
    tail.add(b"three\n")
    assert list(tail.lines()) == ["three"]
    assert list(tail.finish()) == []


def test_a_partial_line_waits_until_it_is_whole(tail):
    tail.add(b"be")
    assert list(tail.lines()) == []
    assert tail.open_lines == ["be"]
    tail.add(b"gun\nnext")
    assert list(tail.lines()) == ["begun"]
    assert tail.open_lines == ["next"]


def test_at_the_end_a_partial_line_is_a_line(tail):
    tail.add(b"one\nlast words")
    assert list(tail.finish()) == ["one", "last words"]
    assert tail.open_lines == []


def test_an_empty_line_is_a_line(tail):
    tail.add(b"\n\n")
    assert list(tail.lines()) == ["", ""]


def test_a_progress_bar_is_one_line_its_last_state(tail):
    tail.add(b"\r 10%")
    assert list(tail.lines()) == []
    assert tail.open_lines == [" 10%"]
    tail.add(b"\r 90%\r")
    assert list(tail.lines()) == []
    assert tail.open_lines == [" 90%"]
    tail.add(b"\r100%\ndone\n")
    assert list(tail.lines()) == ["100%", "done"]


def test_a_carriage_return_before_the_newline_is_no_part_of_the_line(tail):
    tail.add(b"dos\r\n10%\r100%\r\n")
    assert list(tail.finish()) == ["dos", "100%"]


def test_bytes_that_are_no_text_are_shown_as_replacement_characters(tail):
    tail.add(b"a\xff\xfeb\n\xe2\x82\n")
    assert list(tail.lines()) == ["a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b",
                                  "\N{REPLACEMENT CHARACTER}"]  # fmt: skip


def test_nul_bytes_do_not_end_a_line(tail):
    tail.add(b"a\0b\n\0\n")
    assert list(tail.lines()) == ["a\0b", "\0"]


@pytest.mark.parametrize("size", range(1, 8))
def test_characters_and_lines_may_lie_across_two_reads(tail, monkeypatch, size):
    monkeypatch.setattr(record_tail, "_CHUNK", size)
    tail.add("αβ €\n\n\N{GRINNING FACE}x\r\nend".encode())
    assert list(tail.finish()) == ["αβ €", "", "\N{GRINNING FACE}x", "end"]


def test_a_character_may_be_written_in_two_parts(tail):
    tail.add("€".encode()[:2])
    assert list(tail.lines()) == []
    tail.add("€".encode()[2:] + b"\n")
    assert list(tail.lines()) == ["€"]


def test_a_long_line_is_cut_and_says_so(tail):
    tail.add(b"x" * (record_tail.LONGEST + 1) + b"\n" + b"y" * record_tail.LONGEST + b"\n")
    long, whole = tail.lines()
    assert long == "x" * record_tail.LONGEST + " …"
    assert whole == "y" * record_tail.LONGEST


def test_an_endless_line_takes_no_more_memory_than_a_few_reads(tail, monkeypatch):
    monkeypatch.setattr(record_tail, "_CHUNK", 1 << 16)
    tail.add(b"x" * 10_000_000 + b"the end")
    tracemalloc.start()
    try:
        assert list(tail.lines()) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        assert len(tail.open_lines[0]) < 2 * record_tail.LONGEST
    finally:
        tracemalloc.stop()


def test_a_bar_that_is_done_is_a_line_once_another_line_follows(tail):
    tail.add(b"\r100%\r100%\n")
    assert list(tail.lines()) == []
    assert tail.open_lines == ["100%"]
    tail.add(b"next\n")
    assert list(tail.lines()) == ["100%", "next"]


def nested(outer, inner):
    """What tqdm writes for a bar and a second one below it, as it writes it."""
    return [f"\router {outer}".encode(), b"\n", f"\rinner {inner}".encode(), b"\x1b[A"]


def test_bars_of_nested_loops_are_no_lines_however_the_writes_are_cut(tail):
    for outer in range(3):
        for inner in range(3):
            for written in nested(outer, inner):
                tail.add(written)
                assert list(tail.lines()) == []
    assert tail.open_lines == ["outer 2", "inner 2"]
    tail.add(b"\router 3\ndone\n")
    assert list(tail.finish()) == ["outer 3", "done"]


def test_a_megabyte_of_nested_bars_is_folded_in_one_pass(tail):
    tail.add(b"".join(nested(1, 2)) * 40_000 + b"\nend\n")
    assert list(tail.finish()) == ["outer 1", "end"]


def test_going_up_more_often_than_there_are_lines_harms_nothing(tail):
    tail.add(b"\x1b[A\x1b[Aup\nnext\n")
    assert list(tail.finish()) == ["up", "next"]


# ---------------------------------------------------------------- a bounded look


def test_a_look_gives_the_last_lines_and_counts_the_others(tail):
    tail.add(b"zero\none\ntwo\nth")
    assert tail.look(2) == LineBlock(start=5, skipped=1, lines=["one", "two"])
    assert tail.look(2) is None
    assert tail.count == 3


def test_a_look_that_wants_no_lines_counts_them(tail):
    tail.add(b"zero\none\n")
    assert tail.look(0) == LineBlock(start=9, skipped=2, lines=[])


# ---------------------------------------------------------------- a file as it lies there


@pytest.fixture
def small(monkeypatch):
    """Files of a few lines are big ones."""
    monkeypatch.setattr(record_tail, "_CHUNK", 64)
    monkeypatch.setattr(record_tail, "_BLOCK", 48)


def numbered(path, count):
    path.write_bytes(b"".join(b"line %03d\n" % number for number in range(count)))
    return path


def test_a_short_file_has_a_head_and_nothing_left_out(tmp_path):
    assert ends(numbered(tmp_path / "log", 3), 2, 2) == Ends(
        ["line 000", "line 001", "line 002"], 0, []
    )


def test_between_head_and_tail_lines_are_left_out_and_counted(tmp_path):
    found = ends(numbered(tmp_path / "log", 10), 2, 1)
    assert found == Ends(["line 000", "line 001"], 7, ["line 009"])


def test_a_big_file_has_the_same_ends(tmp_path, small):
    found = ends(numbered(tmp_path / "log", 100), 2, 3)
    assert found == Ends(["line 000", "line 001"], 95, ["line 097", "line 098", "line 099"])


def test_a_count_that_is_known_is_not_counted_again(tmp_path, small):
    assert ends(numbered(tmp_path / "log", 100), 2, 3, count=1000).left_out == 995


def test_a_file_that_is_not_there_has_no_ends(tmp_path):
    assert ends(tmp_path / "log", 2, 2) == Ends([], 0, [])


def test_the_lines_before_a_place_are_the_ones_that_end_there(tmp_path):
    path = numbered(tmp_path / "log", 5)
    found = before(path, 3 * 9, 2)
    assert found == Earlier(start=9, lines=["line 001", "line 002"], first=False)
    assert before(path, found.start, 2) == Earlier(0, ["line 000"], True)


def test_nothing_lies_before_the_beginning(tmp_path):
    assert before(numbered(tmp_path / "log", 5), 0, 2) == Earlier(0, [], True)


def test_going_back_through_a_big_file_gives_every_line_once(tmp_path, small):
    path = numbered(tmp_path / "log", 50)
    place, lines = path.stat().st_size, []
    while place:
        found = before(path, place, 3)
        lines = found.lines + lines
        place = found.start
    assert lines == [f"line {number:03d}" for number in range(50)]
