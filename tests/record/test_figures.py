"""Rows that ranks reported: written, read during the run, and read later."""

import json
import math

import pytest

from xla_nb.record.figures import History, Row, Rows, decode, encode


def line(number, step=None, at=1.5, **figures):
    return json.dumps([number, at, step, figures]) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.history"


@pytest.fixture
def history(tmp_path):
    """A history of files with these lines, by rank: history(r0=..., r1=...)."""

    def history(**lines):
        paths = {int(rank[1:]): tmp_path / rank for rank in lines}
        for rank, text in lines.items():
            paths[int(rank[1:])].write_text("".join(text))
        return History(paths)

    return history


# ---------------------------------------------------------------- single rows


def test_row_round_trips():
    row = Row(3, 1.5, 40, {"loss": 0.25, "top": math.inf})
    assert decode(encode(3, 1.5, 40, row.figures)) == row


def test_row_is_one_line_of_json():
    assert encode(0, 1.5, None, {"loss": 1.0}).decode() == line(0, loss=1.0)


# ---------------------------------------------------------------- new rows


def test_each_row_is_returned_once(path):
    rows = Rows(path)
    path.write_text(line(0, loss=1.0) + line(1, loss=0.5))
    assert [row.number for row in rows.new()] == [0, 1]
    assert list(rows.new()) == []
    with path.open("a") as file:
        file.write(line(2, loss=0.25))
    assert list(rows.new()) == [Row(2, 1.5, 2, {"loss": 0.25})]


def test_partial_row_waits_for_the_rest(path):
    rows = Rows(path)
    whole = line(0, loss=1.0)
    path.write_text(whole + whole[:10])
    assert len(list(rows.new())) == 1
    assert list(rows.new()) == []
    path.write_text(whole + whole)
    assert len(list(rows.new())) == 1


def test_missing_file_has_no_rows_until_it_is_written(path):
    rows = Rows(path)
    assert list(rows.new()) == []
    path.write_text(line(0, loss=1.0))
    assert len(list(rows.new())) == 1


def test_rows_beyond_one_read_are_returned(path, monkeypatch):
    monkeypatch.setattr("xla_nb.record.figures._CHUNK", 100)
    path.write_text("".join(line(n, loss=float(n)) for n in range(50)))
    assert [row.figures["loss"] for row in Rows(path).new()] == list(range(50))


def test_step_of_a_row_defaults_to_its_number(path):
    path.write_text(line(7, loss=1.0) + line(8, step=100, loss=1.0) + line(9, step=0, loss=1.0))
    with path.open("a") as file:
        file.write(line(10, step=math.nan, loss=1.0))
    assert [row.step for row in Rows(path).new()] == [7, 100, 0, 10]


# ---------------------------------------------------------------- by name


def test_figure_maps_ranks_to_values_in_report_order(history):
    late_first = line(1, loss=0.5) + line(0, loss=1.0) + line(2, loss=0.25)
    reported = history(r0=late_first, r3=line(0, loss=9.0))
    assert reported["loss"] == {0: [1.0, 0.5, 0.25], 3: [9.0]}


def test_ranks_that_did_not_report_a_figure_are_left_out(history):
    reported = history(r0=line(0, loss=1.0) + line(1, accuracy=0.5), r1=line(0, loss=2.0))
    assert reported["accuracy"] == {0: [0.5]}


def test_names_of_all_ranks_are_listed_once(history):
    reported = history(r0=line(0, loss=1.0) + line(1, loss=1.0), r1=line(0, accuracy=0.5))
    assert list(reported) == ["loss", "accuracy"]
    assert len(reported) == 2
    assert "loss" in reported


def test_unknown_figure_raises_and_lists_the_reported_ones(history):
    reported = history(r0=line(0, loss=1.0, accuracy=1.0))
    with pytest.raises(KeyError, match=r"No rank reported 'los'\. Reported: accuracy and loss\."):
        reported["los"]


def test_repr_names_the_figures(history):
    reported = history(r0=line(0, loss=1.0), r1=line(0, loss=2.0, f1=0.5))
    assert repr(reported) == "<History loss, f1>"


def test_repr_of_an_empty_history(tmp_path):
    assert repr(History({0: tmp_path / "none"})) == "<History nothing reported>"


# ---------------------------------------------------------------- as a table


def test_rows_have_rank_step_time_and_figures(history):
    reported = history(r0=line(0, loss=1.0, f1=0.5), r1=line(0, step=10, at=3.0, loss=2.0))
    assert reported.rows == [
        {"rank": 0, "step": 0, "at": 1.5, "loss": 1.0, "f1": 0.5},
        {"rank": 1, "step": 10, "at": 3.0, "loss": 2.0},
    ]


def test_figure_named_like_a_column_does_not_replace_it(history):
    reported = history(r2=line(0, rank=7.0, loss=1.0))
    assert reported.rows == [{"rank": 2, "step": 0, "at": 1.5, "loss": 1.0}]
    assert list(reported.frame().columns) == ["rank", "step", "at", "loss"]


def test_frame_has_a_row_per_report_and_nan_for_missing_figures(history):
    frame = history(r0=line(0, loss=1.0) + line(1, f1=0.5)).frame()
    assert list(frame.columns) == ["rank", "step", "at", "loss", "f1"]
    assert frame["loss"].isna().tolist() == [False, True]
    assert frame["at"][0].isoformat() == "1970-01-01T00:00:01.500000+00:00"


def test_empty_frame_has_the_columns(tmp_path):
    frame = History({0: tmp_path / "none"}).frame()
    assert list(frame.columns) == ["rank", "step", "at"]
    assert len(frame) == 0
