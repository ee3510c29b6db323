"""Which modules IPython's %autoreload has read again, by what it notes."""

from types import SimpleNamespace

import pytest

from xla_nb.autoreloaded import Autoreloaded


@pytest.fixture
def reloader():
    return SimpleNamespace(modules_mtimes={"mine": 1.0, "other": 1.0}, failed={})


@pytest.fixture
def seen(reloader):
    registry = {"AutoreloadMagics": SimpleNamespace(_reloader=reloader)}
    return Autoreloaded(SimpleNamespace(magics_manager=SimpleNamespace(registry=registry)))


def test_a_module_is_told_once_each_time_that_it_has_been_read_again(seen, reloader):
    assert list(seen.look()) == []
    reloader.modules_mtimes["mine"] = 2.0
    assert [list(seen.look()) for _ in range(2)] == [["mine"], []]


def test_one_that_it_could_not_read_again_is_not_told_before_it_can(seen, reloader):
    list(seen.look())
    reloader.modules_mtimes["mine"] = reloader.failed["mine.py"] = 2.0
    assert list(seen.look()) == []
    reloader.failed.clear()
    reloader.modules_mtimes["mine"] = 3.0
    assert list(seen.look()) == ["mine"]


def test_one_that_it_has_only_just_met_is_not_told(seen, reloader):
    list(seen.look())
    reloader.modules_mtimes["fresh"] = 2.0
    assert list(seen.look()) == []


def test_without_autoreload_there_is_none():
    shell = SimpleNamespace(magics_manager=SimpleNamespace(registry={}))
    assert list(Autoreloaded(shell).look()) == []
