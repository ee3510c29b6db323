"""Fitting a launch to the machine that will run its ranks."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.runtimes import xla
from xla_nb.runtimes.fit import fit_to_machine
from xla_nb.topology.chips import SIMULATED


@pytest.fixture
def machine_has(monkeypatch):
    """machine_has(chips, accelerator_type) pretends that the machine has these chips."""

    def machine_has(chips, kind=None):
        monkeypatch.setattr("xla_nb.runtimes.fit.count_chips", lambda: chips)
        monkeypatch.setattr("xla_nb.runtimes.fit.accelerator_type", lambda environ: kind)

    machine_has(0)
    return machine_has


def test_ranks_are_simulated_without_a_tpu(machine_has):
    fit = fit_to_machine("xla", None, {}, {})
    assert (fit.device, fit.ranks, fit.imports) == ("CPU", SIMULATED, xla.IMPORTS)
    assert fit.env["PJRT_DEVICE"] == "CPU"


def test_existing_tpu_is_used(machine_has):
    machine_has(8, "v5litepod-8")
    fit = fit_to_machine("xla", None, {}, {})
    assert (fit.device, fit.ranks, fit.env["PJRT_DEVICE"]) == ("TPU", None, "TPU")


def test_options_override_the_environment(machine_has):
    machine_has(8, "v5litepod-8")
    fit = fit_to_machine("xla", None, {"PJRT_DEVICE": "CPU"}, {"PJRT_DEVICE": "TPU"})
    assert (fit.device, fit.env["PJRT_DEVICE"]) == ("CPU", "CPU")


def test_options_are_added_to_the_environment(machine_has):
    fit = fit_to_machine("xla", 2, {"MINE": "option", "NEW": "1"}, {"MINE": "before", "OLD": "1"})
    assert {name: fit.env[name] for name in ("MINE", "NEW", "OLD")} == {
        "MINE": "option",
        "NEW": "1",
        "OLD": "1",
    }


def test_position_of_the_host_in_the_run_is_set(machine_has):
    sets = {"TPU_WORKER_ID": "1", "MEGASCALE_SLICE_ID": "0"}
    fit = fit_to_machine("xla", 2, {}, {"TPU_WORKER_ID": "7"}, hosts=2, sets=sets)
    assert {name: fit.env[name] for name in sets} == sets


def test_options_override_the_position_of_the_host(machine_has):
    fit = fit_to_machine("xla", 2, {"TPU_WORKER_ID": "3"}, {}, sets={"TPU_WORKER_ID": "1"})
    assert fit.env["TPU_WORKER_ID"] == "3"


def test_removed_variable_is_reported(machine_has):
    fit = fit_to_machine("xla", 2, {}, {"XLA_USE_SPMD": "1"})
    assert "XLA_USE_SPMD" not in fit.env
    (notice,) = fit.notices
    assert notice.startswith("removed XLA_USE_SPMD=1")


def test_runtime_can_reject_several_hosts(machine_has):
    assert fit_to_machine("spmd", 4, {}, {}).device == "CPU"
    with pytest.raises(UsageError, match="spmd spans hosts on TPU pods only"):
        fit_to_machine("spmd", 4, {}, {}, hosts=2)
