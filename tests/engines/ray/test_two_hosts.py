"""The steps of every launch on a cluster, on two nodes. test_cluster.py has the other tests, on
three nodes: they take a minute and a half."""

from __future__ import annotations

import pytest

from tests.support.ray_nodes import eventually, of_ours

pytestmark = pytest.mark.ray

HOSTS = 2
SPAWN = "%%xla_spawn --on ray --hosts 2 -n 2 --view text"


def test_ranks_are_numbered_across_hosts_and_reduce_across_them(on_ray):
    shown = on_ray.ok(
        f"{SPAWN} -o far\n"
        "import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr\n"
        "def f(rank):\n"
        "    print(f'rank {rank}')\n"
        "    total = xm.all_reduce('sum', torch.ones(1).to('xla') * rank).item()\n"
        "    return rank, xr.global_ordinal(), xr.local_ordinal(), xr.world_size(), total"
    )
    assert on_ray.value("far.results == {r: (r, r, r % 2, 4, 6.0) for r in range(4)}") == "True"
    printed = sorted(line for line in shown.lines if line.startswith("["))
    assert printed == [f"[{r}] rank {r}" for r in range(4)]
    hosts = "[far.state.ranks[r].host for r in range(4)]"
    assert on_ray.value(f"len(set({hosts}))") == "2"
    assert on_ray.value(f"all({hosts}[r] == {hosts}[r + 1] for r in (0, 2))") == "True"


def test_error_on_one_host_is_reported_with_its_line(on_ray):
    shown = on_ray.run(
        f"{SPAWN}\n"
        "import torch_xla.core.xla_model as xm\n"
        "def f(rank):\n"
        "    if rank == 2:\n"
        "        raise ValueError('boom')\n"
        "    xm.rendezvous('never')"
    )
    assert shown.ename == "RunFailed"
    place = f"Cell In[{shown.number}], line 5"
    assert (
        f"Rank 2 failed at {place}: ValueError: boom; 3 others failed because of it" in shown.error
    )


def test_interrupt_stops_the_ranks_of_all_hosts(on_ray):
    begun = []

    def interrupt(shown):
        if shown.printed.count("begun") >= 4 and not begun:
            begun.append(True)
            on_ray.interrupt()

    shown = on_ray.run(
        f"{SPAWN}\nimport time\ndef f(rank):\n    print('begun'); time.sleep(100)",
        during=interrupt,
    )
    assert "Stopped by an interrupt" in shown.error
    assert f"ranks 0–3: stopped at Cell In[{shown.number}], line 4" in shown.result
    eventually(lambda: not of_ours("xla_nb-rank", "xla_nb-job"))
