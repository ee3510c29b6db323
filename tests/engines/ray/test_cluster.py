"""%%xla_spawn --on ray in a real kernel, on a real cluster of three nodes."""

from __future__ import annotations

import ast
import os
import signal

import pytest

from tests.support import staying
from tests.support.ray_nodes import eventually, of_ours

pytestmark = [pytest.mark.ray, pytest.mark.slow]  # for the shortest ones see test_two_hosts.py

SPAWN = "%%xla_spawn --on ray --hosts 3 -n 2 --view text"


def spawn(body, line=""):
    return f"{SPAWN} {line}\n{body}"


# ---------------------------------------------------------------- ranks


def test_data_parallel_training_across_hosts_equals_training_in_one_process(on_ray):
    on_ray.ok(
        spawn(
            "import torch, torch_xla, torch_xla.core.xla_model as xm\n"
            "from torch import nn\n"
            "def trained(device, share, step):\n"
            "    torch.manual_seed(1)\n"
            "    x, y = (t[share].to(device) for t in (torch.randn(24, 5), torch.randn(24, 1)))\n"
            "    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)\n"
            "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "    for _ in range(5):\n"
            "        optimizer.zero_grad()\n"
            "        nn.functional.mse_loss(model(x), y).backward()\n"
            "        step(optimizer)\n"
            "    return [value.cpu() for value in model.state_dict().values()]\n"
            "def train(rank):\n"
            "    ours = trained(torch_xla.device(), slice(rank, None, 6), xm.optimizer_step)\n"
            "    alone = trained('cpu', slice(None), lambda optimizer: optimizer.step())\n"
            "    begun = trained('cpu', slice(None), lambda optimizer: None)\n"
            "    return [max((a - b).abs().max().item() for a, b in zip(ours, other))\n"
            "            for other in (alone, begun)]",
            "-o trained_",
        )
    )
    assert on_ray.value("max(trained_[r][0] for r in range(6)) < 1e-5") == "True"
    assert on_ray.value("min(trained_[r][1] for r in range(6)) > 1e-2") == "True"


@pytest.mark.leaves("processes")  # those of the worker, which live as long as it does
def test_launch_inside_a_task_runs_on_its_worker(on_ray):
    on_ray.ok(
        "import ray\nscale = 3\n"
        "@ray.remote(num_cpus=0)\n"
        "def task(n):\n"
        "    import xla_nb\n"
        "    xla_nb.install()\n"
        "    import torch_xla.distributed.xla_multiprocessing as xmp\n"
        "    return xmp.spawn(lambda index: index * scale, nprocs=n)\n"
        "found = ray.get(task.remote(2))"
    )
    assert on_ray.value("found") == "{0: 0, 1: 3}"


def test_notebook_definitions_reach_hosts_without_a_module(on_ray):
    on_ray.ok(
        "class Scale:\n"
        "    def __init__(self, by): self.by = by\n"
        "    def __call__(self, x): return x * self.by\n"
        "def twice(times):\n"
        "    def inner(value): return times(times(value))\n"
        "    return inner\n"
        "triple = Scale(3)"
    )
    on_ray.ok(
        spawn(
            "def f(rank):\n"
            "    def add(x): return x + rank\n"
            "    return twice(add)(1), twice(triple)(rank), Scale(2)",
            "-o sent",
        )
    )
    assert on_ray.value("[sent[r][:2] for r in (0, 5)]") == "[(1, 0), (11, 45)]"
    assert on_ray.value("type(sent[4][2]) is Scale") == "True"


def test_big_value_is_copied_once_per_host(on_ray):
    on_ray.ok("import numpy\nbig = numpy.arange(4_000_000)")
    on_ray.ok(
        spawn(
            "def f(rank):\n"
            "    import os\n"
            "    parcel = os.environ['XLA_NB_PARCEL']\n"
            "    return int(big[rank]), parcel, os.path.getsize(parcel) > big.nbytes",
            "-o shared",
        )
    )
    assert on_ray.value("[shared[r][0] for r in range(6)]") == "[0, 1, 2, 3, 4, 5]"
    assert on_ray.value("len({shared[r][1] for r in range(6)})") == "3"
    assert on_ray.value("all(shared[r][2] for r in range(6))") == "True"


def test_big_results_arrive_complete(on_ray):
    on_ray.ok(
        spawn(
            "import numpy\ndef f(rank): return numpy.arange(2_000_000) + rank",
            "--view none -o all_",
        )
    )
    whole = "all((all_[r] == __import__('numpy').arange(2_000_000) + r).all() for r in range(6))"
    assert on_ray.value(whole) == "True"


def test_reported_values_are_in_the_runs_history(on_ray):
    on_ray.ok(
        spawn(
            "import xla_nb\n"
            "def f(rank):\n"
            "    for step in range(3): xla_nb.report(loss=rank + step)",
            "-o reported",
        )
    )
    assert on_ray.value("reported.history['loss'][5]") == "[5.0, 6.0, 7.0]"
    assert on_ray.value("reported.sample(4).at > 0") == "True"


def test_displays_of_ranks_on_all_hosts_are_shown(on_ray):
    shown = on_ray.ok(spawn("def f(rank): display(f'from {rank}')", "-o showing"))
    displayed = "{r: [d.data['text/plain'] for d in showing.displays[r]] for r in range(6)}"
    assert on_ray.value(f"{displayed} == {{r: [repr(f'from {{r}}')] for r in range(6)}}") == "True"
    texts = [m["content"]["data"]["text/plain"] for m in shown.messages if "data" in m["content"]]
    assert {f"'from {rank}'" for rank in range(6)} <= set(texts)


def test_input_on_a_cluster_raises_eof_error(on_ray):
    shown = on_ray.run(spawn("def f(rank): return input('name? ')"))
    assert "EOFError: A run in the background (--bg) or on a cluster" in shown.error


def test_next_launch_reuses_warm_hosts(on_ray):
    before = of_ours("xla_nb-server").items()
    on_ray.ok(spawn("def f(rank): return rank"))
    assert before
    assert before <= of_ours("xla_nb-server").items()


@pytest.mark.leaves("processes")  # hosts of their own, for the next launch with slices
def test_slices_reach_the_ranks(on_ray):
    on_ray.ok(
        spawn(
            "import os\n"
            "def f(rank):\n"
            "    return {k: v for k, v in os.environ.items() if k.startswith('MEGASCALE_')}",
            "--slices 3 -o sliced",
        )
    )
    ids = "[sliced[r]['MEGASCALE_SLICE_ID'] for r in range(6)]"
    assert on_ray.value(ids) == "['0', '0', '1', '1', '2', '2']"
    assert on_ray.value("{sliced[r]['MEGASCALE_NUM_SLICES'] for r in range(6)}") == "{'3'}"
    assert (
        on_ray.value("len({sliced[r]['MEGASCALE_COORDINATOR_ADDRESS'] for r in range(6)})") == "1"
    )


def test_ranks_have_variables_set_in_the_notebook_but_not_rays(on_ray):
    # Not by importing os: later cells that use the name would include this cell's imports.
    on_ray.ok("__import__('os').environ['XLA_NB_TEST_SET'] = 'here'")
    on_ray.ok(
        spawn(
            "import os\n"
            "def f(rank): return os.environ['XLA_NB_TEST_SET'], os.environ['ASKED'], "
            "[name for name in os.environ if name.startswith('RAY_')]",
            "--env ASKED=too -o environ",
        )
    )
    assert on_ray.value("environ[5]") == "('here', 'too', [])"


# ---------------------------------------------------------------- output


def test_long_log_arrives_complete(on_ray):
    on_ray.ok(
        spawn(
            "import sys\n"
            "block = ''.join(f'{n:09}\\n' for n in range(100_000))\n"
            "def f(rank):\n"
            "    for _ in range(80 if rank == 3 else 1): sys.stdout.write(block)",
            "--view none -o long",
        )
    )
    assert (
        on_ray.value("len(long.output(3)), long.output(3)[-11:]") == r"(80000000, '\n000099999\n')"
    )
    assert on_ray.value("long.output(2) == ''.join(f'{n:09}\\n' for n in range(100_000))") == "True"


def test_output_of_an_import_is_kept_for_each_host(on_ray, tmp_path):
    (tmp_path / "ray_loads.py").write_text("print('loading')")
    on_ray.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport ray_loads")
    on_ray.ok(spawn("def f(rank): return ray_loads.__name__", "-o loaded"))
    lines = on_ray.value("sorted(open(loaded.record.log(None)).read().splitlines())")
    assert lines.count("'loading'") == 3


# ---------------------------------------------------------------- errors


def test_killed_rank_is_reported_with_its_signal(on_ray):
    shown = on_ray.run(
        spawn(
            "import os, signal, time\n"
            "def f(rank):\n"
            "    if rank == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    time.sleep(60)",
            "--grace 0.1",
        )
    )
    assert "Rank 5 was killed by SIGKILL" in shown.error


def test_failed_import_is_reported_with_its_line(on_ray):
    shown = on_ray.run(spawn("import no_such_module\nrank"))
    assert "No module named 'no_such_module'" in shown.error
    assert f"Cell In[{shown.number}], line 2" in shown.error


def test_too_many_hosts_are_rejected_at_once(on_ray):
    shown = on_ray.run("%%xla_spawn --on ray --hosts 4 -n 1\ndef f(rank): pass")
    assert shown.ename == "LaunchError"
    assert "Need 4 hosts with a free CPU, but " in shown.error
    assert shown.error.count("of 2 CPU free") == 3
    assert "xla_nb itself holds " in shown.error
    assert "--wait 5m" in shown.error


def test_waiting_for_hosts_is_shown(on_ray):
    shown = on_ray.run("%%xla_spawn --on ray --hosts 4 -n 1 --wait 1s\ndef f(rank): pass")
    told = "waiting for the cluster, up to 1 s: Need 4 hosts"
    assert any(told in str(message["content"]) for message in shown.messages)
    assert shown.ename == "LaunchError"


def test_spmd_on_simulated_hosts_is_rejected(on_ray):
    shown = on_ray.run(spawn("def f(rank): pass", "--runtime spmd"))
    assert "--runtime spmd spans hosts on TPU pods only" in shown.error


def test_ranks_know_their_host_in_a_simulated_slice(on_ray):
    on_ray.ok(
        spawn(
            "import torch_xla.runtime as xr\n"
            "from torch_xla._internal import tpu\n"
            "def f(rank):\n"
            "    first = xr.get_master_ip() == tpu.get_worker_ips()[0]\n"
            "    kind = tpu.get_tpu_env()['ACCELERATOR_TYPE']\n"
            "    return kind, tpu.worker_id(), tpu.task_id(), first\n",
            "-o told",
        )
    )
    told = [("v4-12", rank // 2, rank, True) for rank in range(6)]
    assert on_ray.value("list(told.results.values())") == str(told)


# ---------------------------------------------------------------- stopping


def test_ranks_that_survive_an_interrupt_are_reported_with_their_line(on_ray):
    line, body = "%%xla_spawn --on ray --hosts 3 -n 2 --grace 600", staying.STAYS["in finally"]
    cell = staying.interrupted_twice(on_ray, line, body, ranks=6)
    place = f"{cell}, line {staying.line_of(body, 'stays')}"
    assert f"Stopped again: sent SIGTERM to ranks 0–5 (at {place})." in staying.told(on_ray)


def test_stacks_of_all_hosts_are_shown(on_ray):
    on_ray.ok(
        spawn("import time\ndef f(rank):\n    print('begun'); time.sleep(100)", "--bg -o asleep")
    )
    on_ray.ok(
        "while sum('begun' in asleep.output(r) for r in list(asleep.state.ranks)) < 6:\n"
        "    __import__('time').sleep(0.05)"
    )
    shown = on_ray.ok("%xla_stacks asleep")
    assert "ranks 0–5 at Cell In[" in shown.stdout
    on_ray.ok("asleep.stop()\ntry: asleep.wait(60)\nexcept Exception: pass")
    assert on_ray.value("asleep.done") == "True"


# ---------------------------------------------------------------- torchax


@pytest.mark.leaves("processes")  # servers that have imported JAX, for the next launch
def test_torchax_ranks_form_one_world_and_end_in_any_order(on_ray):
    on_ray.ok(
        "%%xla_spawn --on ray --hosts 3 -n 2 --runtime torchax --view text -o world\n"
        "import jax, jax.numpy as jnp, os, time\n"
        "from jax.experimental import multihost_utils\n"
        "def f(rank):\n"
        "    got = multihost_utils.process_allgather(jnp.array([float(rank)]))\n"
        "    if rank >= 2: time.sleep(0.5)  # host 0 has the coordinator and ends first\n"
        "    return jax.process_count(), got.ravel().tolist()",
        timeout=200,
    )
    assert (
        on_ray.value("world.results == {r: (6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) for r in range(6)}")
        == "True"
    )


# ---------------------------------------------------------------- live ranks


def results(live, body, line=""):
    live.ok(f"%%xla {line} -o got_\n{body}")
    return ast.literal_eval(live.value("dict(got_.results)"))


FAILS = """
import random, torch, torch_xla.core.xla_model as xm

def total(size):
    return xm.all_reduce('sum', torch.full((size,), rank + 1.0).to(device)).cpu().sum().item()

def fails(seed):
    chance = random.Random(seed)
    when = {one: chance.randrange(4) for one in chance.sample(range(world_size), 1 + seed % 2)}
    how = chance.choice(['raises', 'skips', 'adds', 'returns'])
    for number in range(4):
        if when.get(rank) == number:
            if how == 'raises': raise ValueError(number)
            if how == 'skips': continue
            if how == 'adds': total(7)
            if how == 'returns': return
        total(100_000 if number % 2 else 3)
"""


@pytest.fixture(scope="class")
def live(on_ray):
    on_ray.ok("%xla_start -n 2 --on ray --hosts 3", timeout=300)
    yield on_ray
    on_ray.ok("state_ = __import__('xla_nb.live').live.of().run.state\n%xla_shutdown")
    # All ended by themselves, except one that a test crashed; none was stopped.
    living = "{r.phase for r in state_.ranks.values() if r.death is None}"
    assert on_ray.value(f"state_.stopping, {living}") == "('', {'finished'})"


class TestLiveRanks:
    """Two live ranks on each of three hosts."""

    def test_variables_of_a_cell_stay_on_ranks_of_all_hosts(self, live):
        live.ok("%%xla\nkept = rank * 10")
        assert results(live, "kept + world_size") == {r: r * 10 + 6 for r in range(6)}

    def test_changed_notebook_variable_is_sent_again_to_all_hosts(self, live):
        live.ok("import numpy as np\nseen = np.zeros(3)")
        live.ok("%%xla\nseen += rank")
        assert results(live, "float(seen.sum())") == {r: r * 3.0 for r in range(6)}
        live.ok("seen[0] = 5")
        assert results(live, "float(seen.sum())") == dict.fromkeys(range(6), 5.0)

    def test_cell_runs_on_ranks_of_one_or_several_hosts(self, live):
        assert results(live, "rank", "2-3") == {2: 2, 3: 3}
        assert results(live, "rank", "1,2") == {1: 1, 2: 2}

    def test_sums_are_correct_after_a_rank_of_another_host_raised(self, live):
        live.ok("%%xla\nimport torch, torch_xla.core.xla_model as xm")
        total = "xm.all_reduce('sum', torch.full(({},), rank + 1.0).to(device)).cpu().sum().item()"
        for size in (3, 100_000):
            for raising in (3, 0):
                before = f"if rank == {raising}: raise ValueError('no')\n"
                shown = live.run(f"%%xla\n{before}{total.format(size)}")
                assert f"Rank {raising} failed" in shown.error
                assert results(live, total.format(2)) == dict.fromkeys(range(6), 42.0)

    def test_stopped_cell_leaves_the_ranks_alive(self, live):
        live.ok(
            "%%xla --bg -o waits\nimport time\nbefore = rank\n"
            "print('here', flush=True)\ntime.sleep(600)"
        )
        live.ok("while not all('here' in waits.output(r) for r in range(6)): pass")
        live.ok("waits.stop()\nwaits.join_end()")
        assert results(live, "before") == {r: r for r in range(6)}

    def test_sums_over_all_hosts_are_correct_after_random_failures(self, live):
        live.ok(f"%%xla\n{FAILS}")
        right = dict.fromkeys(range(6), (63.0, 2_100_000.0))
        for seed in range(6):
            failed = live.run(f"%%xla\nfails({seed})").error  # has the stack of a rank that crashed
            assert "crashed" not in failed, failed
            assert (seed, results(live, "total(3), total(100_000)")) == (seed, right)

    def test_drift_on_another_host_is_reported_in_its_cell(self, live):
        live.ok("%%xla\nimport torch\nweights = torch.zeros(4)")
        live.ok("%xla_vars --watch weights")
        assert "weights" not in live.ok("%%xla\nweights += 1").result
        shown = live.ok("%%xla\nif rank == 3: weights[1] = 9")
        assert f"`weights` has differed between ranks since Cell In[{shown.number}]" in shown.result
        live.ok("%xla_vars --unwatch")
        told = live.ok("%xla_vars weights").result
        assert "rank 3 differs" in told

    def test_rank_of_another_host_that_crashes_in_native_code_leaves_its_stack(self, live):
        shown = live.run(
            "%%xla -o crashed\nimport ctypes\nif rank == 3: ctypes.string_at(0)", timeout=300
        )
        place = f"Cell In[{shown.number}], line 3"
        assert f"Rank 3 crashed with SIGSEGV in native code at {place}" in shown.error
        assert "string_at" in live.value("str(crashed.errors[3].traceback)")


# ---------------------------------------------------------------- losses (keep these last)


def test_lost_host_ends_the_run_and_leaves_no_process(on_ray, nodes):
    on_ray.ok(
        spawn(
            "import time\n"
            "def f(rank):\n"
            "    if rank == 0: return 'early'\n"
            "    print('begun')\n"
            "    time.sleep(100)",
            "--grace 0.5 --bg -o lost",
        )
    )
    on_ray.ok(
        "def all_are_there(ranks):\n"
        "    begun = [rank for rank in list(ranks) if 'begun' in lost.output(rank)]\n"
        "    return lost.done or len(begun) == 5 and 0 in ranks and ranks[0].phase == 'finished'\n"
        "while not all_are_there(lost.state.ranks): __import__('time').sleep(0.05)"
    )
    nodes.kill(nodes.others[0])
    shown = on_ray.run("lost.wait(100)")
    assert "was lost with rank" in shown.error
    assert "early" in on_ray.value("lost.results[0]")
    gone = "[r for r in lost.state.ranks.values() if r.lost]"
    assert on_ray.value(f"len({gone}) in (1, 2), len({{r.host for r in {gone}}})") == "(True, 1)"
    assert on_ray.value("all('begun' in lost.output(r) for r in range(1, 6))") == "True"
    nodes.has_noticed()
    eventually(lambda: not of_ours("xla_nb-rank", "xla_nb-job"))


@pytest.mark.leaves("processes")  # a new driver for the next launch
def test_killed_driver_ends_the_run_with_its_signal(on_ray):
    def end(shown):
        if "begun" in shown.stdout:
            for pid in of_ours("xla_nb-ray"):
                os.kill(pid, signal.SIGKILL)

    shown = on_ray.run(
        "%%xla_spawn --on ray --hosts 1 -n 2 --view text\n"
        "import time\n"
        "def f(rank):\n"
        "    print('begun')\n"
        "    time.sleep(100)",
        timeout=200,
        during=end,
    )
    assert "The process that connects to Ray was killed by SIGKILL" in shown.error
    eventually(lambda: not of_ours("xla_nb-rank", "xla_nb-job"))
