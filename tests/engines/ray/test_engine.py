"""The kernel's side of a cluster; the test plays the driver process."""

import json
import os
import pickle
import socket
import subprocess
import sys
import types

import pytest

from xla_nb import api
from xla_nb.engines.ray import engine as engine_module
from xla_nb.engines.ray.engine import RayEngine, address
from xla_nb.errors import LaunchError, UsageError
from xla_nb.messages import channel, events
from xla_nb.messages.orders import Request
from xla_nb.process_state.random_state import Inheritance
from xla_nb.run.options import Options
from xla_nb.runtimes.fit import Fit


class Child:
    """Replaces the driver process; `hears` is called with each request."""

    def __init__(self, module, arguments, env):
        self.module, self.arguments, self.env = module, arguments, env
        self.ours, self.theirs = channel.pair()
        self.told, self.output, self.alive, self.closed = [], "", True, False
        self.process = types.SimpleNamespace(returncode=None)
        self.lives, self._writer = os.pipe()  # readable when it has ended, as a pidfd is
        self.pidfd = self.lives
        self.hears = lambda request, fds: None

    def send(self, request, *fds):
        if not self.alive:
            raise BrokenPipeError("it has ended")
        self.told.append(json.loads(json.dumps(request)))
        self.hears(request, fds)

    def receive(self, waiting):
        while not channel.ready(self.ours, 0.01):
            waiting()
        data = self.ours.recv(1 << 16)
        return json.loads(data) if data else None

    def says(self, **answer):
        self.theirs.send(json.dumps(answer).encode())

    def ends(self, output="", status=1):
        self.output, self.alive = output, False
        self.process.returncode = status
        self.theirs.close()

    def ended_within(self, seconds):
        return not self.alive

    def last_output(self):
        return self.output

    def close(self):
        if not self.closed:
            os.close(self.lives)
            os.close(self._writer)
        self.closed = True
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def children(monkeypatch):
    """The processes started; by default each replies as if it had started a run."""
    made = []

    def start(*arguments):
        child = Child(*arguments)
        child.hears = lambda request, fds: started(child, request)
        made.append(child)
        return child

    monkeypatch.setattr(engine_module, "Child", start)
    yield made
    for child in made:
        child.close()


def started(child, request):
    if request["do"] == "launch":
        child.says(id=request["id"], done=True)


@pytest.fixture
def cluster(children):
    made = RayEngine("ray://head:10001")
    yield made
    made.close()


@pytest.fixture
def child(cluster):
    """The cluster's process, before its first launch."""
    return cluster._started()


FIT = Fit("", 2, {"SET": "1"}, ())


def request(program="", **fields):
    return Request("r1", "xla", program, "/r", "f", False, 2, {},
                   "/", (), b"", Inheritance(), **fields)  # fmt: skip


@pytest.fixture
def parcel():
    fd = os.memfd_create("parcel")
    os.write(fd, b"values")
    yield fd
    os.close(fd)


@pytest.fixture
def launch(cluster, parcel):
    socks = []

    def launch(waiting=lambda seconds, what: None):
        socks.append(cluster.start(request(), FIT, parcel, waiting))
        return socks[-1]

    yield launch
    for sock in socks:
        sock.close()


# ---------------------------------------------------------------- cluster address


@pytest.mark.parametrize(
    ("on", "environ", "expected"),
    [
        ("ray://h:10001", {}, "ray://h:10001"),
        ("ray://h:10001", {"RAY_ADDRESS": "10.0.0.1:6379"}, "ray://h:10001"),
        ("ray", {"RAY_ADDRESS": "10.0.0.1:6379"}, "10.0.0.1:6379"),
        ("ray", {"RAY_ADDRESS": "ray://h:10001"}, "ray://h:10001"),
        ("ray", {}, ""),
        ("ray", {"RAY_ADDRESS": ""}, ""),
        ("ray", {"RAY_ADDRESS": "auto"}, ""),
        ("ray", {"RAY_ADDRESS": "local"}, ""),
    ],
)
def test_address_is_the_option_or_ray_address(monkeypatch, on, environ, expected):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert address(on, environ) == expected


@pytest.fixture
def ray(monkeypatch):
    """The notebook has called `ray.init()` on the cluster itself."""

    def context():
        return types.SimpleNamespace(gcs_address="10.0.0.1:6379")

    made = types.SimpleNamespace(is_initialized=lambda: True, get_runtime_context=context)
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delitem(sys.modules, "ray.util.client", raising=False)
    return made


def through_the_client(monkeypatch, connected):
    worker = types.SimpleNamespace(_conn_str="head:10001")
    client = types.SimpleNamespace(
        is_connected=lambda: connected,
        get_context=lambda: types.SimpleNamespace(client_worker=worker),
    )
    module = types.SimpleNamespace(ray=client)
    monkeypatch.setitem(sys.modules, "ray.util.client", module)


def test_address_of_the_notebooks_own_cluster_is_the_fallback(ray):
    assert address("ray", {}) == "10.0.0.1:6379"
    assert address("ray", {"RAY_ADDRESS": "10.9.9.9:6379"}) == "10.9.9.9:6379"


@pytest.mark.parametrize(("connected", "expected"), [(True, "ray://head:10001"),
                                                     (False, "10.0.0.1:6379")])  # fmt: skip
def test_connection_through_rays_client_gives_its_address(ray, monkeypatch, connected, expected):
    through_the_client(monkeypatch, connected)
    assert address("ray", {}) == expected


def test_unconnected_ray_gives_no_address(ray):
    ray.is_initialized = lambda: False
    assert address("ray", {}) == ""


def test_folder_named_ray_gives_no_address(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    assert address("ray", {}) == ""


def test_ray_that_fails_to_answer_gives_no_address(ray):
    ray.get_runtime_context = None
    assert address("ray", {}) == ""


# ---------------------------------------------------------------- fitting


def test_changed_has_the_variables_set_since_the_process_started():
    code = (
        "import json, os\n"
        "from xla_nb.engines.ray.engine import changed\n"
        "os.environ.update(SAME='1', OTHER='2', NEW='3\\udcff'); del os.environ['GONE']\n"
        "print(json.dumps({k: v for k, v in changed().items() if len(k) < 6}))"
    )
    env = {**os.environ, "SAME": "1", "OTHER": "1", "GONE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    variables = json.loads(done.stdout)
    assert {name: variables.get(name) for name in ("SAME", "OTHER", "NEW", "GONE")} == {
        "SAME": None,
        "OTHER": "2",
        "NEW": "3\udcff",
        "GONE": None,
    }


def test_fit_only_passes_on_the_notebooks_variables(cluster, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    fit = cluster.fit("xla", 3, {"YOURS": "1"})
    assert (fit.device, fit.ranks, fit.imports, fit.notices) == ("", 3, (), ())
    assert fit.env["MINE"] == "1"
    assert "YOURS" not in fit.env  # the order has it as `user_env`


# ---------------------------------------------------------------- launching


def test_driver_gets_the_address_and_the_notebooks_environment(launch, children, monkeypatch):
    monkeypatch.setenv("MINE", "1")
    launch()
    (child,) = children
    assert child.module == "xla_nb.engines.ray.driver"
    assert child.arguments == ["ray://head:10001"]
    assert child.env["MINE"] == "1"


def test_launch_returns_its_events(launch, child):
    kept = []

    def hears(request, fds):
        kept.append(socket.socket(fileno=os.dup(fds[0])))
        started(child, request)

    child.hears = hears
    feed = launch()
    with kept[0]:
        channel.Sender(kept[0]).send(events.HostsPlaced(names=("a", "b")))
    placed, end = feed.wait(60)
    assert (placed.names, end) == (("a", "b"), None)
    assert child.told == [{"do": "launch", "id": 1}]


def test_one_process_serves_several_launches(launch, children):
    launch()
    launch()
    assert [request["id"] for request in children[0].told] == [1, 2]
    assert len(children) == 1


def test_ended_process_is_replaced(launch, children):
    launch()
    children[0].ends()
    launch()
    assert children[0].closed
    assert [len(child.told) for child in children] == [1, 1]


def test_launch_reports_its_progress(launch, child):
    progress = []

    def waiting(seconds, what):
        assert seconds >= 0
        if not progress or progress[-1] != what:
            progress.append(what)
            steps[len(progress) - 1]()

    steps = [
        lambda: child.says(id=1, waiting="connecting …"),
        lambda: child.says(id=1, waiting="importing …"),
        lambda: child.says(id=1, done=True),
    ]
    child.hears = lambda request, fds: None
    launch(waiting=waiting)
    assert progress == [
        "starting the process that connects to Ray …",
        "connecting …",
        "importing …",
    ]


def test_rejected_launch_raises_with_the_reason(launch, child):
    child.hears = lambda request, fds: child.says(id=1, refused="no nodes")
    with pytest.raises(LaunchError, match="no nodes"):
        launch()


def test_spent_process_is_closed_and_the_next_launch_starts_another(launch, child, children):
    child.hears = lambda request, fds: child.says(id=1, refused="no route", spent=True)
    with pytest.raises(LaunchError, match="no route"):
        launch()
    assert children[0].closed
    launch()
    assert len(children) == 2


def test_output_of_a_process_that_ends_during_a_launch_is_quoted(launch, child):
    child.hears = lambda request, fds: child.ends("MemoryError")
    with pytest.raises(LaunchError, match="connects to Ray exited with status 1: MemoryError"):
        launch()


def test_process_killed_during_a_launch_is_reported_with_its_signal(launch, child):
    child.hears = lambda request, fds: child.ends(status=-9)
    with pytest.raises(LaunchError, match="connects to Ray was killed by SIGKILL"):
        launch()


def test_process_that_ended_before_the_request_is_reported(launch, child):
    def hears(request, fds):
        child.ends("gcs_rpc_client.h: lost")
        raise BrokenPipeError

    child.hears = hears
    with pytest.raises(LaunchError, match="Check that the cluster's head is running"):
        launch()


def interrupt(seconds, what):
    raise KeyboardInterrupt


def test_interrupted_launch_is_abandoned(launch, child):
    child.hears = lambda request, fds: None
    with pytest.raises(KeyboardInterrupt):
        launch(waiting=interrupt)
    assert child.told[1:] == [{"do": "abandon", "id": 1}]


def test_late_replies_to_an_abandoned_launch_are_ignored(launch, child):
    child.hears = lambda request, fds: None
    with pytest.raises(KeyboardInterrupt):
        launch(waiting=interrupt)
    child.says(id=1, waiting="importing …")
    child.says(id=1, refused="nothing free")
    child.hears = lambda request, fds: started(child, request)
    launch()


def test_launch_sends_the_order_and_the_program_files(cluster, child, parcel, tmp_path):
    (tmp_path / "cell.py").write_bytes(b"x = 1")
    (tmp_path / "cell.json").write_bytes(b"{}")
    files = []

    def hears(request, fds):
        _, parcel, order_file = fds
        files.append((os.pread(parcel, 100, 0), pickle.loads(os.pread(order_file, 1 << 20, 0))))
        started(child, request)

    child.hears = hears
    order = request(str(tmp_path / "cell.py"), hosts=2, slices=1, wait=90.0)
    cluster.start(order, FIT, parcel, lambda seconds, what: None).close()
    assert files == [(b"values", (order, {"SET": "1"}, {"cell.py": b"x = 1", "cell.json": b"{}"}))]


# ---------------------------------------------------------------- a run in progress


def test_signal_kill_and_ask_reach_the_process(cluster, child):
    cluster.signal("r1", {"a": (1, 2), "b": [3]}, 15)
    cluster.kill("r1")
    cluster.ask("r1")
    assert child.told == [
        {"do": "signal", "run": "r1", "pids": {"a": [1, 2], "b": [3]}, "number": 15},
        {"do": "kill", "run": "r1"},
        {"do": "ask", "run": "r1"},
    ]


def test_request_survives_another_thread_closing_the_process(child):
    class Ending(RayEngine):
        """Its process exists only at the first access."""

        _child = property(lambda self: looks.pop(0), lambda self, made: None)

    looks = [child, None]
    Ending("").kill("r1")
    assert child.told == [{"do": "kill", "run": "r1"}]


def test_kill_without_a_process_does_nothing(cluster, child):
    child.ends()
    cluster.kill("r1")
    cluster.close()
    cluster.kill("r1")
    assert child.told == []


def test_closing_ends_the_process(cluster, child):
    cluster.close()
    cluster.close()
    assert child.closed


def test_run_has_no_cause_of_end_while_the_process_is_alive(launch):
    assert launch().why_ended() == ""


def test_cause_of_end_of_the_process_is_that_of_its_runs(launch, child):
    feed = launch()
    child.ends("MemoryError")
    assert ": MemoryError." in feed.why_ended()


def test_hosts_that_cannot_form_the_slices_are_rejected_at_once():
    with pytest.raises(UsageError, match="2 hosts cannot be divided into 3 slices of equal size"):
        api.engine_for(Options(on="ray", hosts=2, slices=3))
