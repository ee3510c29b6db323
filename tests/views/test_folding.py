"""Equal lines of several ranks are merged, without changing the order within a rank."""

import random

import pytest

from xla_nb.views import folding
from xla_nb.views.folding import HOLD, Folder, folded


def shown(lines):
    """The lines as `(ranks, line)`."""
    return [(tuple(sorted(one.ranks)), one.line) for one in lines]


def at_once(written):
    """The merged lines if all arrive in one read."""
    return timed({rank: [(0.0, line) for line in lines] for rank, lines in written.items()})


def timed(written):
    """The merged lines of one stream; lines have arrival times."""
    each = {(rank, "out"): [(at, 0, text) for at, text in own] for rank, own in written.items()}
    return list(folded(each))


def in_order(out, err):
    """The merged lines of two streams as `(stream, ranks, line)`. Lines have arrival times,
    optionally followed by the number of switches between streams."""
    written = {
        (rank, stream): [line if line[2:] else (line[0], 0, line[1]) for line in lines]
        for stream, each in (("out", out), ("err", err))
        for rank, lines in each.items()
    }
    return [(one.stream, tuple(sorted(one.ranks)), one.line) for one in folded(written)]


def held(**written):
    """A `Folder` with the words that ranks wrote at time 0 (`r0="a b"`)."""
    folder = Folder()
    for name, words in written.items():
        folder.add(int(name[1:]), [("out", word) for word in words.split()], 0.0)
    return folder


# ---------------------------------------------------------------- a whole record


def test_equal_lines_are_merged_despite_other_lines_between_them():
    written = {0: ["hello", "epoch 1", "done"], 1: ["hello", "done"], 2: ["hello", "done"]}
    assert shown(at_once(written)) == [((0, 1, 2), "hello"), ((0,), "epoch 1"), ((0, 1, 2), "done")]


def test_lines_of_single_ranks_stay_between_merged_lines():
    written = {rank: ["epoch 0", f"loss {rank}", "epoch 1", f"loss {rank + 9}"] for rank in (0, 1)}
    found = [line for _, line in shown(at_once(written))]
    assert found == ["epoch 0", "loss 0", "loss 1", "epoch 1", "loss 9", "loss 10"]


def test_repeated_lines_of_a_rank_are_kept():
    assert shown(at_once({0: ["x", "x"], 1: ["x"]})) == [((0, 1), "x"), ((0,), "x")]


def test_finished_bars_are_merged_without_their_times():
    bar = "steps: 100%|████| 20/20 [00:0{}<00:00, {}.5it/s]"
    both = {0: [bar.format(1, 9)], 1: [bar.format(2, 8)]}
    assert shown(at_once(both)) == [((0, 1), "steps: 100%|████| 20/20")]
    assert shown(at_once({0: [bar.format(1, 9)]})) == [((0,), bar.format(1, 9))]


def test_postfix_of_finished_bars_is_kept():
    bar = "steps: 100%|████| 20/20 [00:0{}<00:00, 8.5it/s, loss={}, acc=1]"
    alike = {0: [bar.format(1, 0.5)], 1: [bar.format(2, 0.5)]}
    assert shown(at_once(alike)) == [((0, 1), "steps: 100%|████| 20/20 [loss=0.5, acc=1]")]
    others = {0: [bar.format(1, 0.5)], 1: [bar.format(1, 0.25)]}
    assert [line for _, line in shown(at_once(others))] == [others[0][0], others[1][0]]


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_lost_and_each_rank_keeps_its_order(seed):
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


def test_lines_are_in_time_order_and_ranks_in_step_are_merged():
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


def test_much_later_equal_line_is_not_merged():
    written = {0: [(0.0, "a")], 1: [(5.0, "a"), (5.0, "b")]}
    assert shown(timed(written)) == [((0,), "a"), ((1,), "a"), ((1,), "b")]


def test_streams_are_merged_separately_and_in_time_order():
    # Both lines of rank 0 arrived in one read; it wrote to stderr first.
    out = {0: [(1.0, 1, "done")], 1: [(1.0, "done"), (3.0, "end")]}
    err = {0: [(1.0, 0, "warning")], 1: [(0.9, "warning"), (2.0, "late")]}
    assert in_order(out, err) == [
        ("err", (0, 1), "warning"),
        ("out", (0, 1), "done"),
        ("err", (1,), "late"),
        ("out", (1,), "end"),
    ]


def test_line_is_not_merged_before_earlier_output_of_its_rank():
    # Rank 0 was read a moment later: its last line came before its warning.
    out = {0: [(1.1, "last of 0")], 1: [(1.0, "last of 1")]}
    err = {0: [(1.1, "warning")], 1: [(1.0, "warning")]}
    assert in_order(out, err) == [
        ("out", (1,), "last of 1"),
        ("out", (0,), "last of 0"),
        ("err", (0, 1), "warning"),
    ]


def test_held_line_stays_before_later_output_of_its_rank():
    out = {0: [(0.0, "begin")], 1: [(0.2, "begin"), (0.3, "end")]}
    err = {0: [(0.1, "warning"), (0.5, "end")]}
    assert in_order(out, err) == [
        ("out", (0, 1), "begin"),
        ("err", (0,), "warning"),
        ("out", (1,), "end"),
        ("err", (0,), "end"),
    ]


# ---------------------------------------------------------------- live output


def test_line_is_shown_when_all_ranks_have_written_it():
    folder = held(r0="a", r1="a")
    assert shown(folder.due([0, 1, 2], 0.0)) == []
    folder.add(2, [("out", "a")], 0.1)
    assert shown(folder.due([0, 1, 2], 0.1)) == [((0, 1, 2), "a")]
    assert folder.is_empty


def test_line_is_held_only_for_a_moment():
    folder = held(r0="a")
    assert shown(folder.due([0, 1], HOLD - 0.01)) == []
    assert shown(folder.due([0, 1], HOLD)) == [((0,), "a")]


def test_line_is_released_when_other_ranks_write_other_lines():
    folder = held(r0="a b", r1="b a")
    assert shown(folder.due([0, 1], 0.0)) == [((0,), "a"), ((0, 1), "b")]
    assert shown(folder.due([0, 1], HOLD)) == [((1,), "a")]


def test_shown_line_is_not_merged_again():
    folder = held(r0="a")
    assert shown(folder.due([0], 0.0)) == [((0,), "a")]
    folder.add(1, [("out", "a")], 0.1)
    assert shown(folder.all()) == [((1,), "a")]


def test_flood_of_equal_lines_is_merged_quickly():
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
def test_who_formats_ranks(ranks, name):
    assert folding.who(ranks) == name
