"""Live ranks on the hosts of a Ray cluster."""

import pytest

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def live(on_ray):
    """A kernel with two live ranks on each of two hosts."""
    on_ray.ok("%xla_start -n 2 --on ray --hosts 2", timeout=300)
    yield on_ray
    on_ray.ok("state_ = __import__('xla_nb.live').live.of().run.state\n%xla_shutdown")
    # They have ended by themselves, but for one that a test has crashed, and were not stopped.
    living = "{r.phase for r in state_.ranks.values() if r.death is None}"
    assert on_ray.value(f"state_.stopping, {living}") == "('', {'finished'})"


def results(live, body, line=""):
    live.ok(f"%%xla {line} -o got_\n{body}")
    return live.value("dict(got_.results)")


def test_ranks_of_all_hosts_keep_what_a_cell_binds(live):
    live.ok("%%xla\nkept = rank * 10")
    assert results(live, "kept + world_size") == "{0: 4, 1: 14, 2: 24, 3: 34}"


def test_what_the_notebook_changed_is_new_on_all_hosts(live):
    live.ok("import numpy as np\nseen = np.zeros(3)")
    live.ok("%%xla\nseen += rank")
    assert results(live, "float(seen.sum())") == "{0: 0.0, 1: 3.0, 2: 6.0, 3: 9.0}"
    live.ok("seen[0] = 5")
    assert results(live, "float(seen.sum())") == "{0: 5.0, 1: 5.0, 2: 5.0, 3: 5.0}"


def test_a_cell_may_run_on_ranks_of_one_host_or_of_several(live):
    assert results(live, "rank", "2-3") == "{2: 2, 3: 3}"
    assert results(live, "rank", "1,2") == "{1: 1, 2: 2}"


def test_after_a_rank_of_another_host_has_raised_sums_are_right(live):
    live.ok("%%xla\nimport torch, torch_xla.core.xla_model as xm")
    total = "xm.all_reduce('sum', torch.full(({},), rank + 1.0).to(device)).cpu().sum().item()"
    for size in (3, 100_000):
        for raising in (3, 0):
            before = f"if rank == {raising}: raise ValueError('no')\n"
            shown = live.run(f"%%xla\n{before}{total.format(size)}")
            assert f"Rank {raising} failed" in shown.error
            assert results(live, total.format(2)) == "{0: 20.0, 1: 20.0, 2: 20.0, 3: 20.0}"


def test_a_stopped_cell_leaves_the_ranks_alive(live):
    live.ok(
        "%%xla --bg -o waits\nimport time\nbefore = rank\n"
        "print('here', flush=True)\ntime.sleep(600)"
    )
    live.ok("while not all('here' in waits.output(r) for r in range(4)): pass")
    live.ok("waits.stop()\nwaits.join_end()")
    assert results(live, "before") == "{0: 0, 1: 1, 2: 2, 3: 3}"


def test_a_watched_variable_is_told_in_the_cell_in_which_a_rank_of_another_host_drifts_apart(live):
    live.ok("%%xla\nimport torch\nweights = torch.zeros(2)")
    live.ok("%xla_vars --watch weights")
    assert "weights" not in live.ok("%%xla\nweights += 1").result
    shown = live.ok("%%xla\nif rank == 3: weights[0] = 9")
    drift = f"`weights` differs between ranks since Cell In[{shown.number}]: rank 3"
    assert drift in shown.result
    assert "rank 3 differs" in live.ok("%xla_vars weights").result
    live.ok("%xla_vars --unwatch")


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


def test_after_each_of_many_random_failures_sums_over_all_hosts_are_right(live):
    live.ok(f"%%xla\n{FAILS}")
    right = repr(dict.fromkeys(range(4), (30.0, 1_000_000.0)))
    for seed in range(16):
        failed = live.run(
            f"%%xla\nfails({seed})"
        ).error  # the stack of a rank that crashed is there
        assert "crashed" not in failed, failed
        assert (seed, results(live, "total(3), total(100_000)")) == (seed, right)


def test_ranks_that_drift_apart_on_another_host_are_told_in_the_cell_where_they_did(live):
    live.ok("%%xla\nimport torch\nweights = torch.zeros(4)")
    live.ok("%xla_vars --watch weights")
    assert "weights" not in live.ok("%%xla\nweights += 1").result
    shown = live.ok("%%xla\nif rank == 3: weights[1] = 9")
    assert f"`weights` differs between ranks since Cell In[{shown.number}]" in shown.result
    live.ok("%xla_vars --unwatch")
    told = live.ok("%xla_vars weights").result
    assert "1 of 4 elements" in told
    assert "rank 3" in told


def test_a_rank_of_another_host_that_crashes_in_native_code_leaves_its_stack(live):
    shown = live.run(
        "%%xla -o crashed\nimport ctypes\nif rank == 3: ctypes.string_at(0)", timeout=300
    )
    place = f"Cell In[{shown.number}], line 3"
    assert f"Rank 3 crashed with SIGSEGV in native code at {place}" in shown.error
    assert "string_at" in live.value("str(crashed.errors[3].traceback)")
