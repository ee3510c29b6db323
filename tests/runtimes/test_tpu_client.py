"""TPU discovery happens once, checked with really traced Pallas calls and JAX's TPU clients.

The cases without the guard (TWINS) show that torch_xla's own fails where calls overlap.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xla_nb.runtimes import tpu_client

INTERPRETED = "Only interpret mode is supported on CPU backend."
WAYS = ["alone", "in_threads", "nested", "overlapping", "beside_torch_xla"]
#: torch_xla's own variable while JAX makes its client; unpredictable for free-running threads.
WITHOUT = {"alone": "true", "nested": "true", "overlapping": None, "beside_torch_xla": None}
LATER = ["alone", "overlapping", "beside_torch_xla"]

# (the scenario, when JAX is imported); with the guard, except in TWINS
GUARDED = [
    *((way, "jax_first") for way in WAYS),
    *((way, "jax_later") for way in LATER),
]
TWINS = [(way, "jax_first") for way in WITHOUT]


@pytest.fixture(scope="module")
def results():
    """The results, by (scenario, when JAX is imported, whether with the guard)."""
    keys = [*((*key, True) for key in GUARDED), *((*key, False) for key in TWINS)]
    requests = {
        when: [{"scenario": way, "guarded": guarded} for way, then, guarded in keys if then == when]
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
