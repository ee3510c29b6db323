"""Discovery happens once: Pallas calls are really traced, and JAX's TPU clients are looked at.

Without the guard (TWINS) it goes wrong where calls overlap.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xla_nb.program.module_file import ModuleMap
from xla_nb.runtimes import tpu_client

INTERPRETED = "Only interpret mode is supported on CPU backend."
WAYS = ["alone", "in_threads", "nested", "overlapping", "beside_torch_xla"]
REMOVED = ["after_removing_the_guard", "after_removing_the_guard_on_a_tpu"]
#: Whether torch_xla's own variable is there while JAX makes its client. (Of threads that run freely
#: it cannot be told.)
WITHOUT = {"alone": "true", "nested": "true", "overlapping": None, "beside_torch_xla": None}
LATER = ["alone", "overlapping", "beside_torch_xla", REMOVED[0]]

# what is done in the rank, when JAX is imported: with the guard, but for those of TWINS
GUARDED = [
    *((way, "jax_first") for way in [*WAYS, *REMOVED, "after_removing_the_guard_without_a_tpu"]),
    *((way, "jax_later") for way in LATER),
]
TWINS = [(way, "jax_first") for way in WITHOUT]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """How it went, by (what was done, when JAX was imported, whether with the guard)."""
    program = tmp_path_factory.mktemp("discovery") / "program.py"
    ModuleMap((), {"Cell In[3]": ""}).save(program)
    keys = [*((*key, True) for key in GUARDED), *((*key, False) for key in TWINS)]
    asked = {
        when: [
            {"scenario": way, "guarded": guarded, "program": str(program)}
            for way, then, guarded in keys
            if then == when
        ]
        for when in ("jax_first", "jax_later")
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1].joinpath("support", "torch_xla_discovery.py")],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
    )
    answers = {when: iter(found) for when, found in json.loads(done.stdout).items()}
    return {key: next(answers[key[1]]) for key in keys}


def cases(*ways):
    return pytest.mark.parametrize("key", [key for key in GUARDED if key[0] in ways], ids="-".join)


# ---------------------------------------------------------------- the guard


@cases(*WAYS)
def test_jax_makes_its_client_under_the_guard(told, key):
    found = told[*key, True]
    assert found["creations"] == ["true"]
    assert found["after"] == "true"
    assert found["refusals"] == []


@pytest.mark.parametrize("way", WITHOUT)
def test_without_the_guard_torch_xlas_variable_is_gone_where_calls_overlap(told, way):
    assert told[way, "jax_first", False]["creations"] == [WITHOUT[way]]


@cases(*WAYS[:4])
def test_the_calls_are_traced_as_far_as_the_cpu_can(told, key):
    ends = told[*key, True]["ends"]
    assert ends == [INTERPRETED] * {"in_threads": 4, "overlapping": 3}.get(key[0], 1)


@cases(*WAYS)
def test_no_module_keeps_the_context_that_takes_it_back(told, key):
    assert told[*key, True]["contexts"] == []


def test_without_the_guard_two_modules_have_that_context(told):
    known = [*tpu_client._WITH_CONTEXT]
    assert sorted(told["alone", "jax_first", False]["contexts"]) == sorted(known)


# ---------------------------------------------------------------- the count


@cases(*WAYS)
def test_every_client_is_counted_and_a_platform_that_is_not_there_is_none(told, key):
    assert told[*key, True]["counts"] == {"torch_xla": 1, "jax": 1}


def test_a_client_has_the_stack_that_caused_it(told):
    first, second = told["alone", "jax_first", True]["stacks"]
    assert "clients.open()" in first
    assert 'File "Cell In[3]", line 3, in trace' in second


# ---------------------------------------------------------------- a second discovery


@cases(*REMOVED)
def test_a_second_discovery_is_refused_with_its_line(told, key):
    found = told[*key, True]
    (refusal,) = found["refusals"]
    assert found["creations"] == []
    assert "at Cell In[3], line 3" in refusal
    assert "SKIP_MEGASCALE_PJRT_CLIENT is not set" in refusal
    assert "torch_xla's (cpu, not in the notebook)" in refusal
    assert "What to do: " in refusal


def test_where_there_is_no_tpu_and_one_slice_nothing_is_refused(told):
    found = told["after_removing_the_guard_without_a_tpu", "jax_first", True]
    assert found["refusals"] == []
    assert found["counts"] == {"torch_xla": 1, "jax": 1}


def test_a_version_of_jax_that_starts_clients_elsewhere_is_said(capsys, tmp_path):
    tpu_client.Clients(tmp_path / "program.py")._watch(ModuleType("bridge"))
    said = capsys.readouterr().err
    assert "no jax._src.xla_bridge._init_backend" in said
    assert "no jax._src.xla_bridge.make_tpu_client" in said


# ---------------------------------------------------------------- a module that comes later


@pytest.fixture
def later(tmp_path, monkeypatch):
    """A package `later` with modules `one` and `broken`; the list of those that were told."""
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


def test_a_module_is_told_of_once_it_is_imported(later):
    tpu_client.when_imported("later.one", lambda module: later.append(module.value))
    importlib.import_module("later")
    assert later == []
    importlib.import_module("later.one")
    importlib.import_module("later.one")
    assert later == [1]


def test_a_module_that_is_there_is_told_of_at_once(later):
    importlib.import_module("later.one")
    tpu_client.when_imported("later.one", lambda module: later.append(module.value))
    assert later == [1]


def test_a_module_that_cannot_be_imported_fails_as_ever(later):
    tpu_client.when_imported("later.broken", later.append)
    tpu_client.when_imported("later.missing", later.append)
    with pytest.raises(RuntimeError, match="no"):
        importlib.import_module("later.broken")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("later.missing")
    assert later == []


# ---------------------------------------------------------------- in a run

TRACE = """
    import time, torch
    from torch_xla.experimental.custom_kernel import flash_attention
    q = torch.randn(1, 2, 128, 8, device="xla")
    try:
        flash_attention(q, q, q)
    except ValueError as end:
        return str(end)
"""


@pytest.mark.parametrize("runtime", ["xla", "spmd"])
def test_a_ranks_card_has_the_count(notebook, runtime):
    shown = notebook.ok(
        f"%%xla_spawn -n 2 --runtime {runtime} --view none -o counted\ndef f(index):{TRACE}"
    )
    assert shown.status == "ok"
    assert notebook.value("counted.results[0]") == repr(INTERPRETED)
    notebook.ok("from xla_nb.views.observer import observe")
    cards = notebook.value("[card.clients for card in observe(counted).cards]")
    assert cards == str([{"torch_xla": 1, "jax": 1}] * 2)


def test_a_rank_that_takes_the_guard_away_fails_with_its_line(notebook):
    shown = notebook.run(
        "%%xla_spawn -n 2 --env MEGASCALE_NUM_SLICES=2 --view text\n"
        "import os\n"
        "def f(index):\n"
        f"    os.environ.pop('{tpu_client.GUARD}'){TRACE}"
    )
    assert "SecondDiscovery: JAX is about to start a TPU client at Cell In[" in shown.error
    assert "line 8" in shown.error
