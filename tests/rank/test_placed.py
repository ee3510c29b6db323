"""Where a rank stands in the meshes of its namespace."""

from types import SimpleNamespace

import numpy as np
import pytest

from xla_nb.rank.placed import position


@pytest.fixture
def jax(monkeypatch):
    """A JAX with this process as number 1; gives its Mesh."""

    class Mesh:
        def __init__(self, processes, names):
            flat = [SimpleNamespace(process_index=one) for one in np.ravel(processes)]
            self.devices = np.array(flat, object).reshape(np.shape(processes))
            self.axis_names = names

    module = SimpleNamespace(sharding=SimpleNamespace(Mesh=Mesh), process_index=lambda: 1)
    monkeypatch.setitem(__import__("sys").modules, "jax", module)
    return Mesh


def test_a_process_is_at_the_index_that_all_its_devices_have(jax):
    mesh = jax([[0, 0], [1, 1]], ("data", "model"))
    assert position({"mesh": mesh}) == {"data": 1}


def test_of_several_meshes_with_an_axis_the_one_bound_last_counts(jax):
    first, last = jax([0, 1], ("x",)), jax([1, 0], ("x",))
    assert position({"first": first, "last": last}) == {"x": 0}


def test_a_mesh_without_this_process_has_no_place_for_it(jax):
    assert position({"mesh": jax([0, 2], ("x",))}) == {}


def test_without_a_mesh_there_is_no_position():
    assert position({"x": 1, "y": object()}) == {}
