"""How a rank describes its variables."""

import collections
import dataclasses
import enum
import json
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from pluggy import PluginManager
from torch import nn

from tests.support.fork_job import environment
from xla_nb.errors import LaunchError
from xla_nb.messages.checked_json import made
from xla_nb.rank import variables
from xla_nb.rank.variables import Variable, describe, names_of
from xla_nb.runtimes import torchax


def description(value):
    (variable,) = describe({"it": value}, ["it"])
    return variable


def test_only_user_variables_are_listed():
    ours = {"rank": 0, "lock": object()}
    assert names_of({**ours, "os": os, "_": 1, "__name__": "m", "b": 2, "a": 1}) == ["a", "b"]


def test_unlisted_variables_are_described_when_named():
    assert [one.name for one in describe({"_x": 1, "os": os}, ["_x", "os", "gone"])] == ["_x", "os"]


def test_description_survives_json():
    namespace = {"model": nn.Linear(2, 2), "x": 1, "t": torch.tensor([float("nan"), float("inf")])}
    told = describe(namespace, list(namespace))
    again = json.loads(json.dumps([dataclasses.asdict(one) for one in told], allow_nan=False))
    assert [made(Variable, fields) for fields in again] == told


def test_tensor_description_has_shape_dtype_device_and_bytes():
    told = description(torch.zeros(4, 3, dtype=torch.bfloat16))
    (leaf,) = told.leaves
    assert (told.type, leaf.shape, leaf.dtype, leaf.device) == ("Tensor", (4, 3), "bfloat16", "cpu")
    assert leaf.nbytes == told.nbytes == 24
    assert told.text == "Tensor (4, 3) bfloat16"


def test_single_number_is_shown_by_value():
    for value in (torch.tensor(2.5), np.float32(2.5), 2.5):
        assert description(value).leaves[0].value == "2.5"


def test_shared_tensors_are_counted_once():
    weight = torch.zeros(10)
    assert description([weight, weight, torch.zeros(2)]).nbytes == 48


def test_describing_runs_no_property_and_limits_repr_time(monkeypatch):
    monkeypatch.setattr("xla_nb.rank.preview._SECONDS", 0.05)
    over = threading.Event()

    class Slow:
        @property
        def boom(self):
            raise AssertionError("the property was run")

        def __getattr__(self, name):
            raise AssertionError("its __getattr__ was run")

        def __repr__(self):
            over.wait()
            return "slow"

    told = description(Slow())
    over.set()
    assert told.text == "<Slow: its repr() took longer than 0.05 s>"
    assert [leaf.state for leaf in told.leaves] == ["known"]


def test_slow_variable_is_marked_late_and_others_are_described(monkeypatch):
    grown = ["a"]
    for _ in range(45):
        grown = [grown, grown]
    monkeypatch.setattr(variables, "MOST", 1 << 40)
    monkeypatch.setattr(variables, "_EACH", 0.2)
    slow, quick = describe({"slow": grown, "quick": 1}, ["slow", "quick"])
    assert slow.leaves[-1].state == "late"
    assert slow.leaves[-1].why == "inspecting it takes too long"
    assert quick.leaves[0].state == "known"


def test_computing_on_request_does_not_use_up_the_time_to_read(monkeypatch):
    monkeypatch.setattr(variables, "_ALL", 0.2)
    monkeypatch.setattr(variables, "_compute", lambda value: time.sleep(0.3))
    (told,) = describe({"x": torch.ones(2)}, ["x"], compute=True)
    assert told.leaves[0].state == "known"


def test_unreadable_variable_does_not_prevent_describing_others(monkeypatch):
    def fails(value):
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(variables, "_read", fails)
    lost, kept = describe({"lost": torch.ones(1), "kept": "a"}, ["lost", "kept"])
    assert lost.leaves[0].why == "reading it raised RuntimeError: the device is lost"
    assert kept.leaves[0].state == "known"


def test_variables_past_the_total_time_limit_are_late(monkeypatch):
    monkeypatch.setattr(variables, "_ALL", 0)
    told = describe({f"x{n}": torch.ones(2) for n in range(3)}, ["x0", "x1", "x2"])
    assert [leaf.state for one in told for leaf in one.leaves] == ["late"] * 3


def test_description_of_a_thousand_names_is_small():
    namespace = {f"x{number}": torch.zeros(number) for number in range(1000)}
    told = describe(namespace, names_of(namespace))
    assert len(told) == 1000
    assert len(json.dumps([dataclasses.asdict(one) for one in told])) < 400_000


def test_only_first_parts_are_compared_and_the_limit_is_stated(monkeypatch):
    monkeypatch.setattr(variables, "MOST", 3)
    leaves = description([torch.zeros(1) for _ in range(10)]).leaves
    assert [leaf.path for leaf in leaves] == ["", "[0]", "[1]", "…"]
    assert (leaves[-1].state, leaves[-1].why) == ("opaque", "only the first 3 parts are compared")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.eye(2).to_sparse(),
        lambda: np.array([object()]),
        lambda: np.zeros(2, np.longdouble),
        lambda: np.zeros(2, "i4,f8"),
    ],
)
def test_incomparable_values_are_opaque_with_a_reason(make):
    (leaf,) = description(make()).leaves
    assert leaf.state == "opaque"
    assert leaf.why


def test_tensor_subclass_with_custom_dispatch_is_not_compared():
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, call, kinds, args=(), kwargs=None):
            raise AssertionError("the user's code was run")

    (leaf,) = description(torch.Tensor._make_subclass(Wrapper, torch.zeros(2))).leaves
    assert leaf.why == f"values of type {Wrapper.__qualname__} cannot be compared"


# ---------------------------------------------------------------- leaves


def paths(value):
    return [leaf.path for leaf in description(value).leaves if leaf.norm is not None]


def leaf_values(value):
    return [(leaf.path, leaf.kind, leaf.digest, leaf.state) for leaf in description(value).leaves]


def test_tensors_arrays_and_numbers_are_one_leaf():
    for value in (torch.ones(2), np.ones(2), np.float32(1), 1, 2.5, [1, 2.5], (1, 2)):
        assert paths(value) == [""]


def test_model_has_a_leaf_per_parameter_and_buffer():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert [path for path in paths(model) if "weight" in path or "running" in path] == [
        ".0.weight",
        ".1.weight",
        ".1.running_mean",
        ".1.running_var",
    ]
    assert leaf_values(nn.Linear(1, 1)) != leaf_values(nn.Linear(1, 1).eval())


def test_optimizer_has_leaves_per_group_and_parameter_number():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert {".param_groups[0]['lr']", ".state[1]['exp_avg']"} <= set(paths(optimizer))


def test_dict_items_are_sorted_by_key():
    one, other = (
        {"b": torch.ones(1), "a": torch.zeros(1)},
        {"a": torch.zeros(1), "b": torch.ones(1)},
    )
    assert paths(one) == paths(other) == ["['a']", "['b']"]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    lr: float
    color: Color


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        ("a", "a", "b"),
        ({0, 8, "a"}, {8, 0, "a"}, {0, "a"}),  # sets with different insertion order
        ({"a": {1: "x"}}, {"a": {1: "x"}}, {"a": {1: "y"}}),
        (dict.fromkeys(range(200), "a"), dict.fromkeys(range(200), "a"), dict.fromkeys(range(200))),
        (["a", None], ["a", None], ["a", False]),
        ([["ab"]], [["ab"]], [["a", "b"]]),
        (float("nan"), float("nan"), 1.0),
        (("a", float("nan")), ("a", float("nan")), ("a", 0.0)),
        (torch.float32, torch.float32, torch.float64),
        (10**30, 10**30, 10**30 + 1),
        (bytearray(b"a"), bytearray(b"a"), bytearray(b"b")),
        (collections.OrderedDict(a="x"), collections.OrderedDict(a="x"), {"a": "x"}),
        (Settings(0.1, Color.RED), Settings(0.1, Color.RED), Settings(0.1, Color.BLUE)),
        (Settings(0.1, Color.RED), Settings(0.1, Color.RED), Settings(0.2, Color.RED)),
        (len, len, max),
    ],
)
def test_equal_values_have_equal_leaves(one, equal, other):
    assert leaf_values(one) == leaf_values(equal)
    assert leaf_values(one) != leaf_values(other)


def test_objects_with_hidden_state_are_not_compared():
    class Counter(collections.deque):
        pass

    values = (i for i in "ab"), threading.Lock(), Counter("ab"), {1, torch.ones(1)}, {object(): 1}
    for value in (*values, torch.Generator()):
        (leaf,) = description(value).leaves
        assert (leaf.state, "cannot be compared" in leaf.why) == ("opaque", True)


def test_objects_of_installed_packages_are_compared_only_if_subclassed():
    class Own(PluginManager):
        pass

    (leaf,) = description(PluginManager("it")).leaves
    assert leaf.why == "values of type PluginManager cannot be compared"
    assert len(description(Own("it")).leaves) > 1


def test_only_pure_python_classes_have_attributes_only():
    class Plain:
        pass

    class Sized(torch.Generator):
        __slots__ = ()

    class Slotted:
        __slots__ = ("only",)

    assert variables._has_attributes_only(Plain)
    assert not variables._has_attributes_only(torch.Generator)
    assert not variables._has_attributes_only(Sized)
    assert not variables._has_attributes_only(Slotted)


def test_self_referencing_values_terminate():
    row = [torch.ones(1)]
    row.append(row)
    assert paths(row) == ["[0]"]
    twice = ["a"]
    twice += [twice, twice]
    assert description(twice).leaves[0].state == "known"


# ---------------------------------------------------------------- elements


def digest(array):
    (leaf,) = description(array).leaves
    return leaf.digest, leaf.nans, leaf.norm


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "bool", "complex64"])
def test_tensor_and_array_with_equal_elements_have_equal_digests(dtype):
    tensor = torch.arange(-3, 9).reshape(3, 4).to(getattr(torch, dtype))
    assert digest(tensor) == digest(tensor.numpy())


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_digest_does_not_depend_on_memory_layout(make):
    rows = make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert digest(rows.T) == digest(make([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]))
    assert digest(rows[:, ::2]) == digest(make([[1.0, 3.0], [4.0, 6.0]]))


def test_reading_a_large_tensor_in_pieces_gives_the_same_digest(monkeypatch):
    tensor = torch.rand(7, 11, 13, 5).transpose(0, 2)
    whole = digest(tensor)
    monkeypatch.setattr(variables, "_PIECE", 50)
    assert digest(tensor)[:2] == whole[:2]
    assert digest(tensor)[2] == pytest.approx(whole[2])


def test_bfloat16_and_float8_are_read_exactly():
    half = torch.rand(100).to(torch.bfloat16)
    assert digest(half) == digest(half.float())
    assert digest(half.to(torch.float8_e4m3fn))[2] > 0


@pytest.mark.filterwarnings("error")
def test_nans_are_equal_counted_and_excluded_from_the_norm():
    bits = torch.tensor([0x7FC00000, 0x7FA00001, 0x40400000, 0x40800000], dtype=torch.int32)
    one, other = bits.view(torch.float32), torch.tensor([math.nan, math.nan, 3.0, 4.0])
    assert digest(one) == digest(other)
    assert digest(one)[1:] == (2, 5.0)
    assert digest(torch.tensor([math.inf, 3.0, 4.0]))[2] == 5.0


def test_digest_ignores_sign_of_zero_and_byte_order():
    assert digest(torch.tensor([-0.0])) == digest(torch.tensor([0.0]))
    assert digest(np.arange(3, dtype=">i4")) == digest(np.arange(3, dtype="<i4"))


def test_reading_a_gigabyte_stops_at_the_time_limit(monkeypatch):
    monkeypatch.setattr(variables, "_EACH", 0.05)
    gigabyte = torch.zeros(1, dtype=torch.int8).expand(1 << 30)  # without allocating it
    assert description(gigabyte).leaves[0].state == "late"


# ---------------------------------------------------------------- with torch_xla

SCRIPT = """
import json
import torch, torch_xla
from torch_xla.debug import metrics
from xla_nb.rank.variables import describe

class Holder:
    def __init__(self, tensor):
        self.tensor = tensor
    def __repr__(self):
        return f"Holder({self.tensor!r}, {self.tensor.shape[0]})"

class Summed(Holder):
    def __repr__(self):
        return f"Summed({self.tensor.sum().item()})"

def counted():
    counters = {name: metrics.counter_value(name) for name in metrics.counter_names()}
    data = {name: metrics.metric_data(name)[0] for name in metrics.metric_names()}
    return counters | data

def step():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 3, device="xla")).sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync(wait=True)
    return loss

model = torch.nn.Linear(3, 2).to("xla")
optimizer = torch.optim.AdamW(model.parameters())
step()
loss = step()
base = torch.ones(4, 3, device="xla")
view, table = base[0], base.t()
data = torch.nn.Parameter(torch.ones(2, device="xla"))

def recorded():
    base.add_(1)
    data.data.add_(1)
    torch_xla.sync(wait=True)
    return base * 2

for _ in range(2):
    pending = recorded()
    step()
pending = recorded()
names = dict(
    model=model, optimizer=optimizer, loss=loss, base=base, pending=pending,
    rows=[pending, loss], holder=Holder(pending), summed=Summed(pending),
    moved=torch.ones(2).to("xla"),
)
before = counted()
told = describe(names, list(names))
after = counted()
weight = model.weight.detach().cpu()
step()
later = counted()
recorded()
written = {"view": view, "table": table, "data": data}
outdated = describe(written, list(written))
print(json.dumps({
    "changed": sorted(name for name in after if after[name] != before.get(name)),
    "states": {one.name: [leaf.state for leaf in one.leaves if leaf.device.startswith("xla")]
               for one in told + outdated},
    "texts": {one.name: one.text for one in told},
    "same": describe({"w": weight}, ["w"])[0].leaves[0].digest
            == next(leaf.digest for leaf in told[0].leaves if leaf.path == ".weight"),
    "computed": {one.name: [leaf.value or leaf.norm for leaf in one.leaves]
                 for one in describe(names | written, ["pending", "view", "data"], compute=True)},
    "compilations": later["UncachedCompile"] - before["UncachedCompile"],
}))
"""


@pytest.fixture(scope="module")
def lazily():
    return run(SCRIPT, PJRT_DEVICE="CPU")


def run(script, **variables):
    """Run a script in a separate process and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


#: Counters of torch_xla that change when a computed value is read.
READING = {"DeviceLockWait", "UnwrapXlaData", "InboundData", "TransferFromDeviceTime"}


def test_describing_records_compiles_and_executes_nothing(lazily):
    assert set(lazily["changed"]) <= READING


def test_compiled_step_is_not_recompiled_after_describing(lazily):
    assert lazily["compilations"] == 0


def test_computed_values_are_read(lazily):
    for name in ("model", "optimizer", "loss", "base", "moved"):
        assert set(lazily["states"][name]) == {"known"}, name
    assert lazily["same"]


def test_recorded_but_uncomputed_values_are_pending(lazily):
    assert lazily["states"]["pending"] == ["pending"]
    assert lazily["states"]["rows"] == ["pending", "known"]


@pytest.mark.parametrize("name", ["view", "table"])
def test_tensor_written_through_an_alias_is_pending(lazily, name):
    assert lazily["states"][name] == ["pending"]


def test_user_repr_cannot_trigger_computation(lazily):
    assert lazily["texts"]["holder"] == "Holder(Tensor (4, 3) float32, 4)"
    assert lazily["texts"]["summed"].startswith("<Summed instance>")  # its repr() raised
    assert lazily["texts"]["rows"].startswith("[Tensor (4, 3) float32, Tensor ()")


def test_pending_values_are_computed_on_request(lazily):
    assert lazily["computed"] == {
        "pending": [pytest.approx((12 * 8**2) ** 0.5)],
        "view": [pytest.approx((3 * 5**2) ** 0.5)],
        "data": [pytest.approx((2 * 5**2) ** 0.5)],
    }


SHARDED = """
import json
import numpy as np, torch, torch_xla
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
from torch_xla.debug import metrics
from xla_nb.rank.variables import describe
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("x",))
whole, parts = torch.ones(4).to("xla"), torch.ones(4).to("xla")
xs.mark_sharding(parts, mesh, ("x",))
torch_xla.sync(wait=True)
before = metrics.metric_data("CompileTime")
told = describe({"whole": whole, "parts": parts}, ["whole", "parts"])
print(json.dumps({
    "states": [one.leaves[0].state for one in told],
    "why": told[1].leaves[0].why,
    "quiet": metrics.metric_data("CompileTime") == before,
    "computed": describe({"parts": parts}, ["parts"], compute=True)[0].leaves[0].norm,
}))
"""


@pytest.mark.slow
def test_sharded_tensor_is_gathered_only_on_request():
    told = run(SHARDED, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    assert told["states"] == ["known", "opaque"]
    assert told["why"] == "it is sharded; reading it would run a computation"
    assert told["quiet"]
    assert told["computed"] == 2.0


# ---------------------------------------------------------------- with JAX

JAX = """
import json
import jax, jax.numpy as jnp, torch, torchax
from xla_nb.rank.variables import describe

with torchax.default_env():
    model = torch.nn.Linear(2, 1).to("jax")
    half = torch.ones(3, device="jax", dtype=torch.bfloat16)
gone = jnp.ones(2)
gone.delete()
names = {"model": model, "half": half, "array": jnp.arange(3.0), "gone": gone}
told = {one.name: one for one in describe(names, list(names))}
half = told["half"].leaves[0]
as_array = describe({"x": jnp.ones(3)}, ["x"])[0].leaves[0].digest
print(json.dumps({
    "states": {name: [leaf.state for leaf in one.leaves] for name, one in told.items()},
    "half": [half.dtype, half.device, half.digest == as_array],
    "gone": told["gone"].leaves[0].why,
}))
"""


@pytest.fixture(scope="module")
def on_jax():
    try:
        torchax.check_versions()
    except LaunchError as missing:
        pytest.skip(str(missing))
    return run(JAX, JAX_PLATFORMS="cpu")


@pytest.mark.slow
def test_jax_arrays_and_torchax_tensors_are_read(on_jax):
    assert on_jax["half"] == ["bfloat16", "jax:0", True]
    assert {*on_jax["states"]["model"], *on_jax["states"]["array"]} == {"known"}


@pytest.mark.slow
def test_deleted_jax_array_is_opaque_with_a_reason(on_jax):
    assert on_jax["states"]["gone"] == ["opaque"]
    assert "reading it raised RuntimeError: Array has been deleted" in on_jax["gone"]
