"""TPU discovery happens once, checked with really traced Pallas calls and JAX's TPU clients.

The cases without the guard (TWINS) show that torch_xla's own fails where calls overlap.
"""

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
#: torch_xla's own variable while JAX makes its client; unpredictable for free-running threads.
WITHOUT = {"alone": "true", "nested": "true", "overlapping": None, "beside_torch_xla": None}
LATER = ["alone", "overlapping", "beside_torch_xla", REMOVED[0]]

# (the scenario, when JAX is imported); with the guard, except in TWINS
GUARDED = [
    *((way, "jax_first") for way in [*WAYS, *REMOVED, "after_removing_the_guard_without_a_tpu"]),
    *((way, "jax_later") for way in LATER),
]
TWINS = [(way, "jax_first") for way in WITHOUT]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results, by (scenario, when JAX is imported, whether with the guard)."""
    program = tmp_path_factory.mktemp("discovery") / "program.py"
    ModuleMap((), {"Cell In[3]": ""}).save(program)
    keys = [*((*key, True) for key in GUARDED), *((*key, False) for key in TWINS)]
    requests = {
        when: [
            {"scenario": way, "guarded": guarded, "program": str(program)}
            for way, then, guarded in keys
            if then == when
        ]
        for when in ("jax_first", "jax_later")
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1].joinpath("support", "torch_xla_discovery.py")],
        input=json.dumps(requests),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
    )
    answers = {when: iter(results) for when, results in json.loads(done.stdout).items()}
    return {key: next(answers[key[1]]) for key in keys}


def cases(*ways):
    return pytest.mark.parametrize("key", [key for key in GUARDED if key[0] in ways], ids="-".join)


# ---------------------------------------------------------------- the guard


@cases(*WAYS)
def test_jax_makes_its_client_under_the_guard(results, key):
    result = results[*key, True]
    assert result["creations"] == ["true"]
    assert result["after"] == "true"
    assert result["refusals"] == []


@pytest.mark.parametrize("way", WITHOUT)
def test_without_the_guard_torch_xlas_variable_is_gone_where_calls_overlap(results, way):
    assert results[way, "jax_first", False]["creations"] == [WITHOUT[way]]


@cases(*WAYS[:4])
def test_the_calls_are_traced_as_far_as_the_cpu_can(results, key):
    ends = results[*key, True]["ends"]
    assert ends == [INTERPRETED] * {"in_threads": 4, "overlapping": 3}.get(key[0], 1)


@cases(*WAYS)
def test_no_module_keeps_the_context_that_removes_the_guard(results, key):
    assert results[*key, True]["contexts"] == []


def test_without_the_guard_two_modules_have_that_context(results):
    modules = sorted(tpu_client._WITH_CONTEXT)
    assert sorted(results["alone", "jax_first", False]["contexts"]) == modules


# ---------------------------------------------------------------- the count


@cases(*WAYS)
def test_every_client_is_counted_and_a_missing_platform_is_not(results, key):
    assert results[*key, True]["counts"] == {"torch_xla": 1, "jax": 1}


def test_a_client_has_the_stack_that_started_it(results):
    first, second = results["alone", "jax_first", True]["stacks"]
    assert "clients.open()" in first
    assert 'File "Cell In[3]", line 3, in trace' in second


# ---------------------------------------------------------------- a second discovery


@cases(*REMOVED)
def test_a_second_discovery_is_refused_with_its_line(results, key):
    result = results[*key, True]
    (refusal,) = result["refusals"]
    assert result["creations"] == []
    assert "at Cell In[3], line 3" in refusal
    assert "SKIP_MEGASCALE_PJRT_CLIENT is not set" in refusal
    assert "torch_xla's (cpu, not in the notebook)" in refusal
    assert "Do not change SKIP_MEGASCALE_PJRT_CLIENT or clear os.environ" in refusal


def test_nothing_is_refused_without_a_tpu_on_one_slice(results):
    result = results["after_removing_the_guard_without_a_tpu", "jax_first", True]
    assert result["refusals"] == []
    assert result["counts"] == {"torch_xla": 1, "jax": 1}


def test_a_jax_that_starts_clients_elsewhere_is_reported(capsys, tmp_path):
    tpu_client.Clients(tmp_path / "program.py")._watch(ModuleType("bridge"))
    notice = capsys.readouterr().err
    assert "no jax._src.xla_bridge._init_backend" in notice
    assert "no jax._src.xla_bridge.make_tpu_client" in notice


# ---------------------------------------------------------------- in a run

TRACE = """
    import torch
    from torch_xla.core.xla_builder import call_jax
    return float(call_jax(lambda value: value + 1, (torch.ones(1, device="xla"),)))
"""


@pytest.mark.parametrize("runtime", ["xla", "spmd"])
def test_a_ranks_card_has_the_number_of_clients(notebook, runtime):
    shown = notebook.ok(
        f"%%xla_spawn -n 2 --runtime {runtime} --view none -o counted\ndef f(index):{TRACE}"
    )
    assert shown.status == "ok"
    assert notebook.value("counted.results[0]") == "2.0"
    notebook.ok("from xla_nb.views.observer import observe")
    cards = notebook.value("[card.sample.clients for card in observe(counted).cards]")
    assert cards == str([{"torch_xla": 1, "jax": 1}] * 2)


def test_a_rank_that_removes_the_guard_fails_with_its_line(notebook):
    shown = notebook.run(
        "%%xla_spawn -n 2 --env MEGASCALE_NUM_SLICES=2 --view text\n"
        "import os\n"
        "def f(index):\n"
        f"    os.environ.pop('{tpu_client.GUARD}'){TRACE}"
    )
    assert "SecondDiscovery: JAX is about to start a TPU client at Cell In[" in shown.error
    assert "line 8" in shown.result
