"""Calling functions when a module is imported."""

import importlib
import sys

import pytest

from xla_nb.patching import when_imported


@pytest.fixture
def later(tmp_path, monkeypatch):
    """Create a package `later` with modules `one` and `broken`; yield a list to record calls."""
    package = tmp_path / "later"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("value = 1\n")
    (package / "broken.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield []
    for name in [name for name in sys.modules if name.partition(".")[0] == "later"]:
        del sys.modules[name]


def test_the_function_is_called_once_when_its_module_is_imported(later):
    when_imported("later.one", lambda module: later.append(module.value))
    importlib.import_module("later")
    assert later == []
    importlib.import_module("later.one")
    importlib.import_module("later.one")
    assert later == [1]


def test_the_function_is_called_at_once_if_the_module_is_already_imported(later):
    importlib.import_module("later.one")
    when_imported("later.one", lambda module: later.append(module.value))
    assert later == [1]


def test_a_failing_import_raises_its_own_error(later):
    when_imported("later.broken", later.append)
    when_imported("later.missing", later.append)
    with pytest.raises(RuntimeError, match="no"):
        importlib.import_module("later.broken")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("later.missing")
    assert later == []


def test_the_module_keeps_its_own_loader(later):
    when_imported("later.one", later.append)
    module = importlib.import_module("later.one")
    assert "value = 1" in module.__spec__.loader.get_source("later.one")


def test_several_functions_can_wait_for_one_module(later):
    for number in (1, 2):
        when_imported("later.one", lambda module, number=number: later.append(number))
    importlib.import_module("later.one")
    assert later == [1, 2]
