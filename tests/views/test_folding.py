"""Equal lines of several ranks as one: when they are shown, and that no rank's order changes."""

import random

import pytest

from xla_nb.views import folding
from xla_nb.views.folding import HOLD, Folder, folded


def shown(lines):
    """As `(ranks, line)`."""
    return [(tuple(sorted(one.ranks)), one.line) for one in lines]


def at_once(written):
    """What is folded of lines that all came in one look."""
    return timed({rank: [(0.0, line) for line in lines] for rank, lines in written.items()})


def timed(written):
    """The same of lines with the times at which they came, of one stream."""
    each = {(rank, "out"): [(at, 0, text) for at, text in own] for rank, own in written.items()}
    return list(folded(each))


def in_order(out, err):
    """What is folded of two streams, as `(stream, ranks, line)`. Lines have their times, and may
    have the number of switches behind these."""
    written = {
        (rank, stream): [line if line[2:] else (line[0], 0, line[1]) for line in lines]
        for stream, each in (("out", out), ("err", err))
        for rank, lines in each.items()
    }
    return [(one.stream, tuple(sorted(one.ranks)), one.line) for one in folded(written)]


def held(**written):
    """A folder in which ranks (`r0="a b"`) have written words at the time 0."""
    folder = Folder()
    for name, words in written.items():
        folder.add(int(name[1:]), [("out", word) for word in words.split()], 0.0)
    return folder


# ---------------------------------------------------------------- a whole record


def test_equal_lines_are_folded_though_a_rank_has_others_between_them():
    written = {0: ["hello", "epoch 1", "done"], 1: ["hello", "done"], 2: ["hello", "done"]}
    assert shown(at_once(written)) == [((0, 1, 2), "hello"), ((0,), "epoch 1"), ((0, 1, 2), "done")]


def test_each_ranks_own_lines_stand_between_those_of_all():
    written = {rank: ["epoch 0", f"loss {rank}", "epoch 1", f"loss {rank + 9}"] for rank in (0, 1)}
    found = [line for _, line in shown(at_once(written))]
    assert found == ["epoch 0", "loss 0", "loss 1", "epoch 1", "loss 9", "loss 10"]


def test_lines_that_are_equal_within_a_rank_stay_as_many():
    assert shown(at_once({0: ["x", "x"], 1: ["x"]})) == [((0, 1), "x"), ((0,), "x")]


def test_finished_bars_of_ranks_are_one_without_their_times():
    bar = "steps: 100%|████| 20/20 [00:0{}<00:00, {}.5it/s]"
    both = {0: [bar.format(1, 9)], 1: [bar.format(2, 8)]}
    assert shown(at_once(both)) == [((0, 1), "steps: 100%|████| 20/20")]
    assert shown(at_once({0: [bar.format(1, 9)]})) == [((0,), bar.format(1, 9))]


def test_what_a_program_has_put_behind_finished_bars_is_kept():
    bar = "steps: 100%|████| 20/20 [00:0{}<00:00, 8.5it/s, loss={}, acc=1]"
    alike = {0: [bar.format(1, 0.5)], 1: [bar.format(2, 0.5)]}
    assert shown(at_once(alike)) == [((0, 1), "steps: 100%|████| 20/20 [loss=0.5, acc=1]")]
    others = {0: [bar.format(1, 0.5)], 1: [bar.format(1, 0.25)]}
    assert [line for _, line in shown(at_once(others))] == [others[0][0], others[1][0]]


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_lost_and_no_rank_is_out_of_order(seed):
    choose = random.Random(seed)
    written = {
        rank: [choose.choice("abcdef") for _ in range(choose.randrange(12))] for rank in range(5)
    }
    late = {
        rank: sorted((choose.choice((0.0, 0.1, 1.0)), line) for line in lines)
        for rank, lines in written.items()
    }
    for each in (late, {rank: [(0.0, line) for line in own] for rank, own in written.items()}):
        lines = timed(each)
        for rank, own in each.items():
            assert [one.line for one in lines if rank in one.ranks] == [line for _, line in own]


def test_lines_come_in_the_order_of_their_times_and_ranks_in_step_are_one():
    step = [(0.0, "step 1"), (1.0, "step 2")]
    late = [(0.1, "step 1"), (1.05, "step 2")]
    written = {0: step, 1: [*step, (1.5, "only 1")], 2: [*late, (3.0, "end")], 3: late}
    every = (0, 1, 2, 3)
    assert shown(timed(written)) == [
        (every, "step 1"),
        (every, "step 2"),
        ((1,), "only 1"),
        ((2,), "end"),
    ]


def test_an_equal_line_that_comes_much_later_is_a_line_of_its_own():
    written = {0: [(0.0, "a")], 1: [(5.0, "a"), (5.0, "b")]}
    assert shown(timed(written)) == [((0,), "a"), ((1,), "a"), ((1,), "b")]


def test_streams_are_folded_apart_and_stand_in_order_of_time():
    # What rank 0 wrote was seen at once; it wrote to stderr first.
    out = {0: [(1.0, 1, "done")], 1: [(1.0, "done"), (3.0, "end")]}
    err = {0: [(1.0, 0, "warning")], 1: [(0.9, "warning"), (2.0, "late")]}
    assert in_order(out, err) == [
        ("err", (0, 1), "warning"),
        ("out", (0, 1), "done"),
        ("err", (1,), "late"),
        ("out", (1,), "end"),
    ]


def test_a_line_joins_none_before_what_its_rank_wrote_to_the_other_stream():
    # As where rank 0 was seen a moment later: its last line came before its warning.
    out = {0: [(1.1, "last of 0")], 1: [(1.0, "last of 1")]}
    err = {0: [(1.1, "warning")], 1: [(1.0, "warning")]}
    assert in_order(out, err) == [
        ("out", (1,), "last of 1"),
        ("out", (0,), "last of 0"),
        ("err", (0, 1), "warning"),
    ]


def test_a_line_that_waits_for_the_same_is_not_overtaken_by_what_its_rank_wrote_later():
    out = {0: [(0.0, "begin")], 1: [(0.2, "begin"), (0.3, "end")]}
    err = {0: [(0.1, "warning"), (0.5, "end")]}
    assert in_order(out, err) == [
        ("out", (0, 1), "begin"),
        ("err", (0,), "warning"),
        ("out", (1,), "end"),
        ("err", (0,), "end"),
    ]


# ---------------------------------------------------------------- as it comes


def test_a_line_is_shown_once_every_rank_that_may_write_it_has():
    folder = held(r0="a", r1="a")
    assert shown(folder.due([0, 1, 2], 0.0)) == []
    folder.add(2, [("out", "a")], 0.1)
    assert shown(folder.due([0, 1, 2], 0.1)) == [((0, 1, 2), "a")]
    assert folder.is_empty


def test_a_line_is_held_for_a_moment_only():
    folder = held(r0="a")
    assert shown(folder.due([0, 1], HOLD - 0.01)) == []
    assert shown(folder.due([0, 1], HOLD)) == [((0,), "a")]


def test_a_line_is_held_no_more_once_the_others_have_gone_on():
    folder = held(r0="a b", r1="b a")
    assert shown(folder.due([0, 1], 0.0)) == [((0,), "a"), ((0, 1), "b")]
    assert shown(folder.due([0, 1], HOLD)) == [((1,), "a")]


def test_what_is_shown_is_joined_by_nobody():
    folder = held(r0="a")
    assert shown(folder.due([0], 0.0)) == [((0,), "a")]
    folder.add(1, [("out", "a")], 0.1)
    assert shown(folder.all()) == [((1,), "a")]


def test_a_flood_of_equal_lines_is_folded_in_a_moment():
    folder = Folder()
    for rank in range(8):
        folder.add(rank, [("out", "y")] * 20_000, 0.0)
    lines = list(folder.all())
    assert len(lines) == 20_000
    assert {one.who for one in lines} == {"0–7"}


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2, 5], "0–2, 5"), ([None], "cell")],
)
def test_who_wrote_a_line(ranks, name):
    assert folding.who(ranks) == name
