"""What ranks reported, read back while they report and ever after."""

import json

import pytest

from xla_nb.record.figures import History, Row, Rows


def line(number, step=None, at=1.5, **figures):
    return json.dumps([number, at, step, figures]) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.history"


@pytest.fixture
def history(tmp_path):
    """The history that lies in files with these lines, by rank."""

    def history(**lines):
        paths = {int(rank[1:]): tmp_path / rank for rank in lines}
        for rank, text in lines.items():
            paths[int(rank[1:])].write_text("".join(text))
        return History(paths)

    return history


# ---------------------------------------------------------------- rows as they come


def test_each_row_is_given_once(path):
    rows = Rows(path)
    path.write_text(line(0, loss=1.0) + line(1, loss=0.5))
    assert [row.number for row in rows.new()] == [0, 1]
    assert list(rows.new()) == []
    with path.open("a") as file:
        file.write(line(2, loss=0.25))
    assert list(rows.new()) == [Row(2, 1.5, 2, {"loss": 0.25})]


def test_half_a_row_waits_for_its_other_half(path):
    rows = Rows(path)
    whole = line(0, loss=1.0)
    path.write_text(whole + whole[:10])
    assert len(list(rows.new())) == 1
    assert list(rows.new()) == []
    path.write_text(whole + whole)
    assert len(list(rows.new())) == 1


def test_a_rank_that_has_not_reported_has_no_rows_until_it_does(path):
    rows = Rows(path)
    assert list(rows.new()) == []
    path.write_text(line(0, loss=1.0))
    assert len(list(rows.new())) == 1


def test_more_than_is_read_at_a_time_comes_whole(path, monkeypatch):
    monkeypatch.setattr("xla_nb.record.figures._CHUNK", 100)
    path.write_text("".join(line(n, loss=float(n)) for n in range(50)))
    assert [row.figures["loss"] for row in Rows(path).new()] == list(range(50))


def test_a_row_stands_at_its_step_or_else_at_its_number(path):
    path.write_text(line(7, loss=1.0) + line(8, step=100, loss=1.0) + line(9, step=0, loss=1.0))
    assert [row.step for row in Rows(path).new()] == [7, 100, 0]


# ---------------------------------------------------------------- by name


def test_a_figure_is_given_by_rank_in_the_order_it_was_reported_in(history):
    late_first = line(1, loss=0.5) + line(0, loss=1.0) + line(2, loss=0.25)
    found = history(r0=late_first, r3=line(0, loss=9.0))
    assert found["loss"] == {0: [1.0, 0.5, 0.25], 3: [9.0]}


def test_only_ranks_that_reported_a_figure_have_it(history):
    found = history(r0=line(0, loss=1.0) + line(1, accuracy=0.5), r1=line(0, loss=2.0))
    assert found["accuracy"] == {0: [0.5]}


def test_the_names_are_those_of_all_ranks_each_once(history):
    found = history(r0=line(0, loss=1.0) + line(1, loss=1.0), r1=line(0, accuracy=0.5))
    assert list(found) == ["loss", "accuracy"]
    assert len(found) == 2
    assert "loss" in found


def test_a_name_that_nobody_reported_is_told_with_those_there_are(history):
    found = history(r0=line(0, loss=1.0, accuracy=1.0))
    with pytest.raises(KeyError, match=r"no rank reported 'los'; there are \['accuracy', 'loss'\]"):
        found["los"]


def test_it_says_in_short_what_it_has(history):
    found = history(r0=line(0, loss=1.0) + line(1, loss=0.12345), r1=line(0, loss=2.0, f1=0.5))
    assert repr(found) == "<History loss: 3 of 2 ranks, last 0.1235; f1: 1 of 1 rank, last 0.5>"


def test_it_says_when_there_is_nothing(tmp_path):
    assert repr(History({0: tmp_path / "none"})) == "<History nothing was reported>"


# ---------------------------------------------------------------- as a table


def test_rows_have_rank_step_time_and_the_figures_reported_together(history):
    found = history(r0=line(0, loss=1.0, f1=0.5), r1=line(0, step=10, at=3.0, loss=2.0))
    assert found.rows == [
        {"rank": 0, "step": 0, "at": 1.5, "loss": 1.0, "f1": 0.5},
        {"rank": 1, "step": 10, "at": 3.0, "loss": 2.0},
    ]


def test_a_figure_named_like_a_column_of_ours_does_not_replace_it(history):
    found = history(r2=line(0, rank=7.0, loss=1.0))
    assert found.rows == [{"rank": 2, "step": 0, "at": 1.5, "loss": 1.0}]
    assert list(found.frame().columns) == ["rank", "step", "at", "loss"]


def test_a_frame_has_a_row_for_each_report_and_gaps_where_a_figure_is_missing(history):
    frame = history(r0=line(0, loss=1.0) + line(1, f1=0.5)).frame()
    assert list(frame.columns) == ["rank", "step", "at", "loss", "f1"]
    assert frame["loss"].isna().tolist() == [False, True]
    assert frame["at"][0].isoformat() == "1970-01-01T00:00:01.500000+00:00"


def test_a_frame_of_nothing_has_the_columns(tmp_path):
    frame = History({0: tmp_path / "none"}).frame()
    assert list(frame.columns) == ["rank", "step", "at"]
    assert len(frame) == 0
