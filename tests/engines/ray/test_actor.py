"""A rank does not inherit what Ray adds to its workers."""

from pathlib import Path

import pytest

from xla_nb.engines.ray import actor


def test_ray_variables_are_removed():
    worker = {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PYTHONBREAKPOINT": "ray.x", "LANG": "C"}
    assert actor.environ(worker) == {"LANG": "C"}


@pytest.mark.parametrize(("value", "rest"), [("", {}), ("0,1", {"CUDA_VISIBLE_DEVICES": "0,1"})])
def test_gpus_that_ray_hides_are_visible_to_ranks(value, rest):
    assert actor.environ({"CUDA_VISIBLE_DEVICES": value}) == rest


def test_rays_folders_are_removed_from_the_path():
    worker = ["/site/ray/_private/workers", "/site/ray_of_mine", "/site"]
    assert actor.path(worker, Path("/site/ray")) == ["/site/ray_of_mine", "/site"]
