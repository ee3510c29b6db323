"""A JAX world of real processes: it forms, and the end of a rank never aborts the others."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support.worlds.worlds import Run, Worlds
from xla_nb.errors import LaunchError
from xla_nb.runtimes import jax_world

STACKS = ("SIGABRT", "Check failure", "Terminating process", "external/xla", "Aborted")


def assert_no_aborts(run: Run) -> None:
    """No rank was aborted, and no output is a C++ log."""
    assert -signal.SIGABRT not in [ended.status for ended in run.ranks]
    assert not [word for word in STACKS if word in run.output()], run.output()


def test_forking_process_has_no_active_threads_and_no_devices(worlds: Worlds) -> None:
    assert worlds.clean == {"threads": 2, "backend": False}  # the second is OpenBLAS's, idle


def test_world_forms(worlds: Worlds) -> None:
    run = worlds.run("forms")
    for rank, value in enumerate(run.values()):
        assert value == {
            "process": (rank, 4),
            "devices": (1, 4),
            "platform": "cpu",
            "initialized": True,
            "sum": 10.0,
        }
    assert run.output() == ""
    assert max(run.joined()) < 20


def test_rank_can_return_early(worlds: Worlds) -> None:
    run = worlds.run("returns_early")
    assert run.values() == [0.0, 1.0, 2.0, 3.0]
    assert_no_aborts(run)


@pytest.mark.slow
def test_rank_finishes_its_pending_steps_before_it_leaves(worlds: Worlds) -> None:
    run = worlds.run("returns_with_a_step_begun")
    assert run.values()[1:] == [2800.0 * 2800 * 2000] * 3


def test_other_ranks_raise_in_their_collective_when_one_raises(worlds: Worlds) -> None:
    run = worlds.run("one_raises")
    assert (run.ended(1).how, run.ended(1).value) == ("RuntimeError", "on purpose")
    assert [run.ended(rank).how for rank in (0, 2, 3)] == ["RankGone"] * 3
    assert_no_aborts(run)


@pytest.mark.slow
def test_other_ranks_raise_when_one_is_killed_in_a_collective(worlds: Worlds) -> None:
    run = worlds.run("one_is_killed")
    assert run.ended(1).status == -signal.SIGKILL
    others = [run.ended(rank) for rank in (0, 2, 3)]
    assert [(other.how, other.status) for other in others] == [("RankGone", 0)] * 3
    assert_no_aborts(run)


@pytest.mark.slow
def test_other_ranks_do_not_need_rank_0(worlds: Worlds) -> None:
    run = worlds.run("first_is_killed_outside")
    assert run.ended(0).status == -signal.SIGKILL
    assert [run.ended(rank).value for rank in (1, 2, 3)] == [1, 2, 3]
    assert_no_aborts(run)


@pytest.mark.slow
def test_rank_can_fork_workers(worlds: Worlds) -> None:
    assert worlds.run("loads_data").values() == [[24.0, 88.0]] * 4


@pytest.mark.slow
def test_proxies_are_not_used_for_this_machine(worlds: Worlds) -> None:
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    assert worlds.run("forms", env=nowhere).values()[0]["sum"] == 10.0


def test_single_rank_forms_a_world(worlds: Worlds) -> None:
    assert worlds.run("forms", ranks=1).values()[0]["devices"] == (1, 1)


def test_rank_can_have_several_devices(worlds: Worlds) -> None:
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    for value in worlds.run("forms", ranks=2, env=env).values():
        assert value["devices"] == (2, 4)
        assert value["sum"] == 3.0


def test_coordinator_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax._src.lib", None)
    with pytest.raises(LaunchError, match=r"did not start on 127\.0\.0\.1:\d+: \w+Error"):
        jax_world.Coordinator(2)


@pytest.mark.parametrize(
    ("text", "consequence"),
    [
        ("Gloo all-reduce failed: [..pair.cc:534] Connection closed by peer [127.0.0.1]:1", True),
        ("Gloo AllGather failed: Read error [..]: Connection reset by peer", True),
        ("Connection reset by peer", False),
        ("Gloo all-reduce failed: shapes differ", False),
    ],
)
def test_only_lost_gloo_connections_are_consequences(text: str, consequence: bool) -> None:
    error = ValueError(text)
    assert (jax_world.consequence(error) is not None) is consequence
