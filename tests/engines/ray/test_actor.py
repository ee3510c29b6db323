"""What Ray adds to a worker, and a rank is not to have."""

from pathlib import Path

import pytest

from xla_nb.engines.ray import actor


def test_rays_own_variables_are_not_for_ranks():
    worker = {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PYTHONBREAKPOINT": "ray.x", "LANG": "C"}
    assert actor.environ(worker) == {"LANG": "C"}


@pytest.mark.parametrize(("there", "left"), [("", {}), ("0,1", {"CUDA_VISIBLE_DEVICES": "0,1"})])
def test_cards_that_ray_hides_are_there_for_ranks(there, left):
    assert actor.environ({"CUDA_VISIBLE_DEVICES": there}) == left


def test_what_ray_puts_into_a_workers_path_is_not_for_ranks():
    worker = ["/site/ray/_private/workers", "/site/ray_of_mine", "/site"]
    assert actor.path(worker, Path("/site/ray")) == ["/site/ray_of_mine", "/site"]
