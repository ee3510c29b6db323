"""Reading log files while they grow: whole lines, bounded reads, as a terminal shows them."""

import tracemalloc

import pytest

from xla_nb.record import tail as record_tail
from xla_nb.record.tail import Ends, LineBlock, Tail, before, ends


@pytest.fixture
def tail(tmp_path):
    """A tail of a file; `tail.add` appends to the file."""
    made = Tail(tmp_path / "log")

    def add(written):
        with made.path.open("ab") as file:
            file.write(written)

    made.add = add
    return made


def lines(tail):
    """The lines completed since the last look."""
    found = []
    while (block := tail.look(None)) is not None:
        found += block.lines
    return found


def test_missing_file_has_no_lines(tail):
    assert lines(tail) == []
    assert tail.finish() == []


def test_each_line_is_returned_once(tail):
    tail.add(b"one\ntwo\n")
    assert lines(tail) == ["one", "two"]
    tail.add(b"three\n")
    assert lines(tail) == ["three"]
    assert tail.finish() == []


def test_partial_line_waits_for_the_rest(tail):
    tail.add(b"be")
    assert lines(tail) == []
    assert tail.open_lines == ["be"]
    tail.add(b"gun\nnext")
    assert lines(tail) == ["begun"]
    assert tail.open_lines == ["next"]


def test_finish_returns_a_partial_line(tail):
    tail.add(b"one\nlast words")
    assert tail.finish() == ["one", "last words"]
    assert tail.open_lines == []


def test_empty_line_is_a_line(tail):
    tail.add(b"\n\n")
    assert lines(tail) == ["", ""]


def test_progress_bar_is_one_line_with_its_last_state(tail):
    tail.add(b"\r 10%")
    assert lines(tail) == []
    assert tail.open_lines == [" 10%"]
    tail.add(b"\r 90%\r")
    assert lines(tail) == []
    assert tail.open_lines == [" 90%"]
    tail.add(b"\r100%\ndone\n")
    assert lines(tail) == ["100%", "done"]


def test_carriage_return_before_the_newline_is_dropped(tail):
    tail.add(b"dos\r\n10%\r100%\r\n")
    assert tail.finish() == ["dos", "100%"]


def test_invalid_utf8_is_shown_as_replacement_characters(tail):
    tail.add(b"a\xff\xfeb\n\xe2\x82\n")
    assert lines(tail) == ["a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b",
                                  "\N{REPLACEMENT CHARACTER}"]  # fmt: skip


def test_nul_bytes_do_not_end_a_line(tail):
    tail.add(b"a\0b\n\0\n")
    assert lines(tail) == ["a\0b", "\0"]


@pytest.mark.parametrize("size", range(1, 8))
def test_characters_and_lines_may_span_reads(tail, monkeypatch, size):
    monkeypatch.setattr(record_tail, "_CHUNK", size)
    tail.add("αβ €\n\n\N{GRINNING FACE}x\r\nend".encode())
    assert tail.finish() == ["αβ €", "", "\N{GRINNING FACE}x", "end"]


def test_character_may_be_written_in_two_parts(tail):
    tail.add("€".encode()[:2])
    assert lines(tail) == []
    tail.add("€".encode()[2:] + b"\n")
    assert lines(tail) == ["€"]


def test_long_line_is_cut_with_an_ellipsis(tail):
    tail.add(b"x" * (record_tail.LONGEST + 1) + b"\n" + b"y" * record_tail.LONGEST + b"\n")
    long, whole = lines(tail)
    assert long == "x" * record_tail.LONGEST + " …"
    assert whole == "y" * record_tail.LONGEST


def test_endless_line_takes_bounded_memory(tail, monkeypatch):
    monkeypatch.setattr(record_tail, "_CHUNK", 1 << 16)
    tail.add(b"x" * 10_000_000 + b"the end")
    tracemalloc.start()
    try:
        assert lines(tail) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        assert len(tail.open_lines[0]) < 2 * record_tail.LONGEST
    finally:
        tracemalloc.stop()


def test_finished_bar_becomes_a_line_when_another_follows(tail):
    tail.add(b"\r100%\r100%\n")
    assert lines(tail) == []
    assert tail.open_lines == ["100%"]
    tail.add(b"next\n")
    assert lines(tail) == ["100%", "next"]


def nested(outer, inner):
    """The output of tqdm for a bar and a second one below it."""
    return [f"\router {outer}".encode(), b"\n", f"\rinner {inner}".encode(), b"\x1b[A"]


def test_nested_bars_are_not_lines_however_writes_are_split(tail):
    for outer in range(3):
        for inner in range(3):
            for written in nested(outer, inner):
                tail.add(written)
                assert lines(tail) == []
    assert tail.open_lines == ["outer 2", "inner 2"]
    tail.add(b"\router 3\ndone\n")
    assert tail.finish() == ["outer 3", "done"]


def test_megabyte_of_nested_bars_is_folded(tail):
    tail.add(b"".join(nested(1, 2)) * 40_000 + b"\nend\n")
    assert tail.finish() == ["outer 1", "end"]


def test_moving_up_past_the_first_line_is_harmless(tail):
    tail.add(b"\x1b[A\x1b[Aup\nnext\n")
    assert tail.finish() == ["up", "next"]


# ---------------------------------------------------------------- bounded looks


def test_look_returns_the_last_lines_and_counts_the_others(tail):
    tail.add(b"zero\none\ntwo\nth")
    assert tail.look(2) == LineBlock(1, ["one", "two"], [9, 13])
    assert tail.look(2) is None
    assert tail.count == 3


def test_look_with_limit_zero_counts_lines(tail):
    tail.add(b"zero\none\n")
    assert tail.look(0) == LineBlock(2, [], [])


# ---------------------------------------------------------------- ends of a file


@pytest.fixture
def small(monkeypatch):
    """Make files of a few lines count as big."""
    monkeypatch.setattr(record_tail, "_CHUNK", 64)
    monkeypatch.setattr(record_tail, "_BLOCK", 48)


def numbered(path, count):
    path.write_bytes(b"".join(b"line %03d\n" % number for number in range(count)))
    return path


def test_short_file_is_all_head(tmp_path):
    assert ends(numbered(tmp_path / "log", 3), 2, 2) == Ends(
        ["line 000", "line 001", "line 002"], 0, [], [9, 18, 27]
    )


def test_lines_between_head_and_tail_are_counted(tmp_path):
    assert ends(numbered(tmp_path / "log", 10), 2, 1) == Ends(
        ["line 000", "line 001"], 7, ["line 009"], [9, 18, 90]
    )


def test_big_file_has_the_same_ends(tmp_path, small):
    last = ["line 097", "line 098", "line 099"]
    path = numbered(tmp_path / "log", 100)
    offsets = [9, 18, 882, 891, 900]
    assert ends(path, 2, 3) == Ends(["line 000", "line 001"], 95, last, offsets)


def test_few_long_lines_of_a_big_file_are_shown_once(tmp_path, small):
    path = numbered(tmp_path / "log", 6)
    shown = ends(path, 9, 9)
    assert [*shown.head, *shown.tail] == [f"line {number:03d}" for number in range(6)]
    assert (shown.left_out, shown.offsets) == (0, [9, 18, 27, 36, 45, 54])


def test_long_line_that_neither_end_has_whole_is_shown_from_its_start(tmp_path, small):
    (tmp_path / "log").write_bytes(b"one\n" + b"y" * 500 + b"\nend\n")
    shown = ends(tmp_path / "log", 9, 9)
    one, long, end = shown.head
    assert (one, set(long), end) == ("one", {"y"}, "end")
    assert len(long) > 20
    assert (shown.left_out, shown.tail) == (0, [])


def test_known_count_is_used(tmp_path, small):
    assert ends(numbered(tmp_path / "log", 100), 2, 3, count=1000).left_out == 995


def test_missing_file_has_no_ends(tmp_path):
    assert ends(tmp_path / "log", 2, 2) == Ends([], 0, [], [])


def test_bars_redrawn_by_cursor_movement_end_where_they_were_last_drawn(tmp_path):
    path = tmp_path / "log"
    drawn = (
        "outer 0%",
        "\n",
        "inner 0%",
        "\x1b[A",
        "\router 50%",
        "\n",
        "\rinner 100%",
        "\n",
        "rest\n",
    )
    path.write_text("".join(drawn))
    found = ends(path, 9, 9)
    assert found.head == ["outer 50%", "inner 100%", "rest"]
    left = [sum(map(len, drawn[:n])) for n in (6, 8, 9)]
    assert found.offsets == left


def test_before_returns_the_lines_that_end_at_an_offset(tmp_path):
    path = numbered(tmp_path / "log", 5)
    earlier = before(path, 3 * 9, 2)
    assert earlier == LineBlock(0, ["line 001", "line 002"], [18, 27])
    assert before(path, 9, 2) == LineBlock(0, ["line 000"], [9])


def test_no_lines_precede_the_start_of_a_file(tmp_path):
    assert before(numbered(tmp_path / "log", 5), 0, 2) == LineBlock(0, [], [])


def test_offset_beyond_the_end_returns_the_last_lines(tmp_path):
    path = numbered(tmp_path / "log", 5)
    assert before(path, 2**53 - 1, 2) == before(path, 5 * 9, 2)
    assert before(tmp_path / "none", 2**53 - 1, 2) == LineBlock(0, [], [])
    (tmp_path / "empty").touch()
    assert before(tmp_path / "empty", 2**53 - 1, 2) == LineBlock(0, [], [])


def test_reading_a_big_file_backwards_returns_every_line_once(tmp_path, small):
    path = numbered(tmp_path / "log", 50)
    offset, lines = path.stat().st_size, []
    while offset:
        earlier = before(path, offset, 3)
        lines = earlier.lines + lines
        offset = earlier.ends[0] - len(earlier.lines[0]) - 1
    assert lines == [f"line {number:03d}" for number in range(50)]


def test_aligned_tails_are_read_up_to_the_same_moment(tmp_path):
    out, err = Tail(tmp_path / "out"), Tail(tmp_path / "err")

    def write(line: str) -> None:
        for tail in (out, err):
            with tail.path.open("a") as file:
                file.write(line)

    write("before\n")
    out.align(err)
    write("after\n")
    assert out.look(9) == err.look(9) == LineBlock(0, ["before"], [7])
    assert out.look(9) is None
    out.align(err)
    assert out.look(9) == err.look(9) == LineBlock(0, ["after"], [13])


def test_tails_that_keep_growing_can_be_aligned(tmp_path, monkeypatch):
    out, err = Tail(tmp_path / "out"), Tail(tmp_path / "err")
    monkeypatch.setattr(Tail, "size", property(lambda tail: next(sizes)))
    sizes = iter(range(100))
    out.align(err)
