"""The loop that follows a run to its end, handles interrupts and loses no lines."""

import io
import signal
import sys
from types import SimpleNamespace

import pytest

from tests.support.run_double import Run
from tests.support.text_view import viewing, written
from xla_nb.errors import Interrupted
from xla_nb.messages import events
from xla_nb.views.loop import follow, launching


def drawing(draw, finish=lambda: None):
    return SimpleNamespace(draw=draw, finish=finish, withdraw=lambda: None)


def test_run_is_followed_until_all_output_is_shown(tmp_path):
    run = Run(tmp_path, looks=6)
    view = viewing(run)
    run.prints(0, "one\ntwo")
    follow(run, view)
    assert written(view.out) == "[0] one\n[0] two\n"
    assert run.stopped == []


def test_failing_view_is_logged_once_and_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("xla_nb.views.loop._RETRY", 0.0)
    run, ends = Run(tmp_path, looks=6), []

    def draw():
        raise OSError(28, "No space left on device")

    def finish():
        ends.append(True)
        raise ValueError("no picture")

    follow(run, drawing(draw, finish))
    assert run.stopped == []
    assert ends == [True]
    failed, unshown = (record.getMessage() for record in caplog.records)
    assert "will be retried (OSError: [Errno 28] No space left" in failed
    assert " (ValueError: no picture). `xla_nb.open_run('" in unshown


def test_urgent_news_is_drawn_at_once_even_if_view_is_idle(tmp_path):
    run, pauses = Run(tmp_path, looks=3), iter([600.0, 0.0])

    def draw():
        run.urgent.set()
        return next(pauses)

    follow(run, drawing(draw))
    assert next(pauses, None) is None


def test_interrupted_run_is_followed_until_it_has_stopped(tmp_path):
    run = Run(tmp_path, looks=6)
    view = viewing(run)
    drawn, before = [], signal.getsignal(signal.SIGINT)

    def draw():
        drawn.append(True)
        if len(drawn) < 2:
            signal.raise_signal(signal.SIGINT)
        run.prints(0, "after\n")
        return 0.0

    follow(run, drawing(draw, view.finish))
    assert set(run.stopped) == {"Stopped by an interrupt"}
    assert len(drawn) == 3
    assert written(view.out) == "[0] after\n" * 3
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_after_ranks_returned_is_raised(tmp_path):
    run = Run(tmp_path, ranks=1, looks=1)
    run.state.apply(events.RankFinished(rank=0, preview="", nbytes=0))

    def finish():
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=f"All ranks had returned; .*{run.name}"):
        follow(run, drawing(lambda: 0.0, finish))


def test_interrupt_loses_no_line(tmp_path):
    class Interrupted(io.StringIO):
        def write(self, shown):
            signal.raise_signal(signal.SIGINT)
            return super().write(shown)

    run = Run(tmp_path, looks=4)
    view = viewing(run, Interrupted())
    run.prints(0, "one\n")
    follow(run, view)
    assert written(view.out) == "[0] one\n"


@pytest.mark.parametrize("ends", [True, False])
def test_interrupt_from_kernel_shutdown_is_reported_as_shutdown(tmp_path, monkeypatch, ends):
    run = Run(tmp_path, looks=6)
    shell = SimpleNamespace(exit_now=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))

    def draw():
        if not run.state.stopping:
            run.state.apply(events.StopRequested(why="Stopped by an interrupt"))
            shell.exit_now = ends
        return 0.0

    follow(run, drawing(draw))
    told = "the kernel was shut down or restarted" if ends else "an interrupt"
    assert run.state.stopping.endswith(told)


def test_interrupt_during_launch_stops_the_launched_run(tmp_path):
    run = Run(tmp_path, looks=6)
    before = signal.getsignal(signal.SIGINT)
    with launching():
        signal.raise_signal(signal.SIGINT)
        follow(run, viewing(run))
    assert run.stopped == ["Stopped by an interrupt"]
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_during_launch_without_run_is_raised_afterwards():
    reached = []
    with pytest.raises(KeyboardInterrupt), launching():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached


def test_interrupt_ends_a_waiting_launch():
    reached = []
    with pytest.raises(KeyboardInterrupt), launching() as interrupts:
        interrupts.end_a_wait()
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
        interrupts.end_a_wait()
        reached.append(False)
    assert reached == [True]


def test_second_interrupt_ends_launch_at_once():
    reached = []
    with pytest.raises(KeyboardInterrupt), launching():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert not reached
