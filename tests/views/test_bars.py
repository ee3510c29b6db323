"""Progress bars: from a tqdm line, from a loop under `xla_nb.progress`, and of all ranks."""

from dataclasses import replace

import pytest

from xla_nb.monitor.snapshot import Bar
from xla_nb.record.sample import Loop
from xla_nb.views import observer
from xla_nb.views.observer import bar, tqdm

LABELS = [
    "",
    "x",
    "a",
    "train",
    "epoch 1",
    "eval",
    "epoch 2",
    "b",
]  # in the order in which they started


def together(bars):
    return observer.together(bars, LABELS)


TQDM = [
    (
        " 45%|████▌     | 45/100 [00:01<00:01, 40.5it/s]",
        Bar("", 45, 100, note="00:01<00:01, 40.5it/s"),
    ),
    (
        "train:  10%|█ | 1.50k/15.0k [01:02<1:00:09, 2.00s/it]",
        Bar("train", 1500, 15000, note="01:02<1:00:09, 2.00s/it"),
    ),
    ("  0%|          | 0/8 [00:00<?, ?it/s]", Bar("", 0, 8, note="00:00<?, ?it/s")),
    ("stream: 29it [00:02,  9.93it/s]", Bar("stream", 29, None, note="00:02,  9.93it/s")),
    (
        "100%|██████████| 8/8 [00:02<00:00,  3.9img/s, loss=0.3]",
        Bar("", 8, 8, note="00:02<00:00,  3.9img/s, loss=0.3"),
    ),
]


@pytest.mark.parametrize(("line", "bar"), TQDM)
def test_tqdm_line_is_a_bar(line, bar):
    assert tqdm(line) == bar


@pytest.mark.parametrize(
    "line", ["", "45%", "100% sure", "a | b | 3/4 [x]", "of 8it [00:01, 7it/s]", "8it"]
)
def test_other_lines_are_not_bars(line):
    assert tqdm(line) is None


@pytest.mark.parametrize(
    ("change", "eta"), [({"total": None}, None), ({"rate": None}, None), ({"done": 100}, 0.0)]
)
def test_remaining_time_may_be_unknown(change, eta):
    loop = Loop(**({"label": "", "done": 25, "total": 100, "rate": 5.0} | change))
    assert bar(loop).eta == eta


def test_remaining_time_shrinks_during_an_item():
    loop = Loop(label="", done=3, total=6, rate=0.2, since=2.0)
    assert bar(loop).eta == 13.0
    assert bar(replace(loop, since=9.0)).eta == 10.0  # at least the time of the remaining items


def test_run_bar_is_that_of_the_slowest_rank():
    bars = [Bar("x", 30, 100, 10.0, 7.0), Bar("x", 10, 100, 5.0, 18.0)]
    assert together(bars) == bars[1]
    assert together(bars[:1] * 4) == bars[0]
    assert together([]) is None


def test_run_bar_has_remaining_time_of_last_rank_to_finish():
    bars = [Bar("x", 30, 100, 2.0, 35.0), Bar("x", 10, 100, 5.0, 18.0)]
    assert together(bars) == replace(bars[1], eta=35.0)


def test_smaller_fraction_is_behind_if_totals_differ():
    bars = [Bar("", 10, 100, 5.0, 18.0), Bar("", 8, 60, 10.0, 3.0)]
    assert together(bars) == bars[0]


def test_smallest_count_is_behind_without_totals():
    bars = [Bar("x", 30, None, 10.0), Bar("x", 10, None, 5.0)]
    assert together(bars) == bars[1]
    assert together([bars[0], replace(bars[1], total=60)]).done == 10


def test_label_does_not_depend_on_distance_between_ranks():
    labels = {together([Bar("x", done, 9), Bar("x", 4, 9)]).label for done in range(9)}
    assert labels == {"x"}


def test_earlier_loop_with_same_label_is_behind():
    bars = [Bar("train", 30, 40, 3.0, 3.0), Bar("train", 5, 40, 9.0, 4.0, number=3)]
    assert together(bars) == bars[0]
    through = Bar("train", 40, 40, 9.0, 0.0)  # between two loops
    assert together([bars[1], through]) == bars[1]
    assert together([through, through]) == through


def test_label_that_started_first_is_behind():
    bars = [Bar("eval", 1, 8), Bar("train", 30, 60), Bar("train", 20, 60)]
    assert together(bars) == bars[2]
    ahead = Bar("epoch 2", 21, 30)
    assert together([ahead, ahead, Bar("epoch 1", 8, 30)]).label == "epoch 1"


def test_finished_rank_gives_no_remaining_time_if_others_are_unknown():
    done, begun = Bar("epoch 1", 40, 40, 9.8, 0.0), Bar("epoch 1", 2, 40)
    assert together([done, begun]) == begun
    assert together([done, replace(begun, rate=8.0, eta=4.8)]).eta == 4.8


def test_run_bar_prefers_loops_still_in_progress():
    done = [Bar("a", 30, 30, 3.3, None)] * 7
    going = [Bar("b", 31, 45, 3.3, 4.2)] * 6
    assert together([*done, *going]).label == "b"
