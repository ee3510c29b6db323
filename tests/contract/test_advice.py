"""Refusals name the fix, and the fix works."""

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.installed import need
from tests.support.kernel import Notebook, Shown
from tests.support.warm import Warm

# ---------------------------------------------------------------- values on the notebook's device

SEEN = """
import torch, torch_xla, torch_xla.distributed.xla_multiprocessing as xmp
device = torch_xla.device()
def launch(fn, *args): return xmp.spawn(fn, args=args, nprocs=2)
"""


@pytest.fixture(scope="module")
def opened(warm_kernels: Warm) -> Iterator[Notebook]:
    """A notebook that has opened the device; not the session's, whose other launches must not see
    an open device."""
    notebook = Notebook(warm=warm_kernels)
    notebook.ok("%load_ext xla_nb\n%xla_config view=text\n" + SEEN, timeout=300)
    # A process that keeps running, as in the session's kernel.
    notebook.ok("from multiprocessing import resource_tracker; resource_tracker.ensure_running()")
    yield notebook
    notebook.close()


def refused(shown: Shown) -> str:
    assert shown.ename == "ShippingError", shown.error
    return shown.error


def test_wrapped_model_on_the_device_must_be_moved_to_the_cpu(opened: Notebook) -> None:
    opened.ok("wrapped = xmp.MpModelWrapper(torch.nn.Linear(2, 1)); wrapped.to(device)")
    opened.ok("def train(rank): return wrapped.to(torch_xla.device()).weight.shape")
    told = refused(opened.run("launch(train)"))
    assert "Cannot send `wrapped` (torch_xla" in told
    assert 'Call `wrapped.to("cpu")` before the launch, and use `.to(device)` inside' in told
    opened.ok('wrapped.to("cpu"); launch(train)', timeout=300)


@pytest.mark.parametrize("code", ["net", "held.model", "net_args"])
def test_model_on_the_device_must_be_moved_to_the_cpu(opened: Notebook, code: str) -> None:
    opened.ok("import types; net = torch.nn.Linear(2, 1).to(device)")
    opened.ok("held = types.SimpleNamespace(model=net)")
    launched = (
        "launch(lambda rank, m: 1, net)" if code == "net_args" else f"launch(lambda r: {code})"
    )
    told = refused(opened.run(launched))
    assert f'Call `{code.removesuffix("_args")}.to("cpu")` before the launch' in told
    assert "x.cpu()" not in told


def test_tensor_is_named_as_in_the_code(opened: Notebook) -> None:
    opened.ok("batch = torch.ones(2).to(device); state = {'weight': [batch]}")
    assert "Send `batch.cpu()`, and use" in refused(opened.run("launch(lambda r: batch)"))
    assert "Send `state['weight'][0].cpu()`" in refused(opened.run("launch(lambda r: state)"))
    opened.ok("def made(x): return lambda r: x\nfrom functools import partial")
    assert "Send `x.cpu()`, and" in refused(opened.run("launch(made(batch))"))


def test_optimizer_of_device_tensors_must_be_recreated(opened: Notebook) -> None:
    opened.ok("torch.set_grad_enabled(True)\nfit = torch.nn.Linear(2, 1).to(device)")
    opened.ok("opt = torch.optim.Adam(fit.parameters(), lr=0.25)")
    opened.ok("fit(torch.ones(1, 2).to(device)).sum().backward(); opt.step()")
    opened.ok("schedule = torch.optim.lr_scheduler.StepLR(opt, 1)")
    told = refused(opened.run("launch(lambda r: opt)"))
    assert "to ranks: it is or contains an XLA tensor. Create it inside the function from" in told
    assert 'after `.to("cpu")` that has loaded `opt.state_dict()`. Nothing was run' in told
    told = refused(opened.run("launch(lambda r: schedule)"))
    assert "`schedule.optimizer` is or contains an XLA tensor. Create it inside" in told
    opened.ok('fit.to("cpu"); again = torch.optim.Adam(fit.parameters())')
    opened.ok("again.load_state_dict(opt.state_dict())")
    opened.ok("def state(rank): return len(again.state), again.param_groups[0]['lr']")
    opened.ok("run = launch(state)", timeout=300)
    assert opened.value("run[1]") == "(2, 0.25)"


# ---------------------------------------------------------------- methods

TRAINER = """
import threading, functools, xla_nb
class AdTrainer:
    def __init__(self, log=None): self.log, self._hidden = log, None
    def fit(self, rank): return rank
ad_file = open("/dev/null")
ad_trainer = AdTrainer(ad_file)
"""


@pytest.mark.parametrize(
    ("launched", "told"),
    [
        (
            "ad_trainer.fit",
            "`ad_trainer.fit` (__main__.AdTrainer, defined in Cell In[{}], line 6) to ranks: "
            "`ad_trainer.log` is or contains an open file",
        ),
        (
            "AdTrainer(threading.Lock()).fit",
            "`AdTrainer.fit` (__main__.AdTrainer) to ranks: `self.log`: cannot pickle '_thread.",
        ),
        (
            "functools.partial(AdTrainer.fit, ad_trainer)",
            "the function (functools.partial) to ranks: `partial.args[0].log` is or contains",
        ),
        ("ad_file.write", "`ad_file.write` (_io.TextIOWrapper, defined in Cell In[{}], line 5)"),
    ],
)
def test_refused_method_is_named_with_its_object_and_attribute(
    notebook: Notebook, launched: str, told: str
) -> None:
    number = notebook.ok(TRAINER).number
    shown = notebook.run(f"xla_nb.spawn({launched}, n=1)")
    assert f"Cannot send {told.format(number)}" in refused(shown)
    notebook.ok("ad_file.close()")


def test_name_that_a_run_has_taken_is_not_said_to_be_defined_by_a_former_cell(
    notebook: Notebook,
) -> None:
    notebook.ok("def ad_run(n): return n")
    notebook.ok("%%xla_spawn -n 1 -o ad_run\ndef train(rank): return rank")
    told = refused(notebook.run("%%xla_spawn -n 1\ndef train(rank): return ad_run(3)"))
    assert "Cannot send `ad_run` (xla_nb.views.picture.ShownRun) to ranks" in told


def test_variable_holding_a_method_is_described(notebook: Notebook) -> None:
    number = notebook.ok(TRAINER + "ad_bound = ad_trainer.fit").number
    told = refused(notebook.run("xla_nb.spawn(lambda rank: ad_bound, n=1)"))
    assert f"`ad_bound` (the method `AdTrainer.fit`, defined in Cell In[{number}], line 7)" in told
    assert "`ad_bound.__self__.log` is or contains an open file" in told
    notebook.ok("ad_file.close()")


# ---------------------------------------------------------------- Ray

ACTOR = """
import ray, xla_nb
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
@ray.remote
class Storage:
    def __init__(self): self.content = {}
    def put(self, key, value): self.content[key] = value; return len(self.content)
storage = Storage.remote()
def made(store): return lambda rank: ray.get(store.put.remote(rank, rank))
"""
NAMED = """
storage = Storage.options(name="storage", namespace="play").remote()
def play(rank):
    import ray
    ray.init("auto", namespace="play", log_to_driver=False, logging_level="ERROR")
    return ray.get(ray.get_actor("storage").put.remote(rank, rank)) > 0
"""


@pytest.mark.ray
@pytest.mark.slow
def test_ray_actor_handle_is_refused_and_ranks_get_the_actor_by_name() -> None:
    need("ray")
    with tempfile.TemporaryDirectory(prefix="xla-nb-") as folder:
        notebook = Notebook(RAY_TMPDIR=folder, RAY_raylet_start_wait_time_s="200")
        try:
            notebook.ok("%load_ext xla_nb\n%xla_config view=text\n" + ACTOR, timeout=300)
            handle = "is or contains a Ray actor handle. Ranks connect to Ray themselves"
            told = refused(notebook.run("xla_nb.spawn(made(storage), n=2)"))
            assert f"`<lambda> → store` {handle}" in told
            told = refused(notebook.run("xla_nb.spawn(lambda r, s: 1, args=(storage,), n=2)"))
            assert "Cannot send `storage` (ray.actor.ActorHandle, defined in Cell In[" in told
            told = refused(notebook.run("put = storage.put\nxla_nb.spawn(lambda r: put, n=2)"))
            assert "Cannot send `put` (ray.actor.ActorMethod" in told
            told = refused(notebook.run("ref = ray.put(3)\nxla_nb.spawn(lambda r: ref, n=2)"))
            assert "a Ray object reference. Send the object that `ray.get`" in told
            notebook.ok(NAMED + "run = xla_nb.spawn(play, n=2)", timeout=300)
            assert notebook.value("dict(run.results)") == "{0: True, 1: True}"
            notebook.ok("ray.shutdown()")
        finally:
            notebook.close()


# ---------------------------------------------------------------- misspelled options


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "%%xla_spawn --timout 5\n1",
            "%%xla_spawn: Unknown option --timout. Did you mean --timeout?",
        ),
        ("%%xla --timout 5\n1", "%%xla: Unknown option --timout. Did you mean --timeout?"),
        ("%%xla_spawn --n 4\n1", "%%xla_spawn: Unknown option --n. Did you mean -n?"),
        ("%xla_start --nme big", "%xla_start: Unknown option --nme. Did you mean --name?"),
        ("%xla_restart --relpay", "%xla_restart: Unknown option --relpay. Did you mean --replay?"),
        ("%xla_vars --compte", "%xla_vars: Unknown option --compte. Did you mean --compute?"),
        ("%xla_start --simulat v4-8", "Unknown option --simulat. Did you mean --simulate?"),
        ("%%xla_spawn --xyz\n1", "Unknown option --xyz. `%%xla_spawn?` lists the options."),
        ("%%xla_spawn f --evn=A=SECRET\n1", "Unknown option --evn=…. Did you mean --env?"),
        ("%xla_config timout=5", "Unknown setting 'timout'. Did you mean timeout? Choose n, "),
        ("xla_nb.ranks(timout=5)", "Unknown option timout. Did you mean timeout? Choose n, "),
        ("xla_nb.spawn(print, timout=5)", "Unknown option timout. Did you mean timeout? Choose "),
        (
            "%%xla -n 4\n1",
            "%%xla: Unknown option -n. It is an option of %xla_start: `%xla_start -n 4`.",
        ),
        ("%%xla --runtime spmd --bg\n1", "option of %xla_start: `%xla_start --runtime spmd`."),
        ("%%xla --env=A=SECRET\n1", "option of %xla_start: `%xla_start --env`."),
        ("%%xla --env A=SECRET\n1", "option of %xla_start: `%xla_start --env`."),
        ("%%xla --args (1,)\n1", "It is an option of %%xla_spawn: `%%xla_spawn --args (1,)`."),
        ("%%xla_spawn --group big\n1", "It is an option of %%xla: `%%xla --group big`."),
        ("%xla_start --bg -n2", "It is an option of %%xla: `%%xla --bg`."),
        ("%xla_shutdown -n2", "It is an option of %xla_start: `%xla_start -n`."),
        ("%xla_ranks --watch", "It is an option of %xla_vars: `%xla_vars --watch`."),
        ('%%xla_spawn --args "(0.1)"\n1', 'Write --args "(0.1,)".'),
        ('%%xla_spawn --args "(1) + (2)"\n1', 'Write --args "((1) + (2),)".'),
        ("%%xla_spawn --args '(\"a\")'\n1", "Write --args '(\"a\",)'."),
    ],
)
def test_misspelled_option_gets_a_suggestion(notebook: Notebook, line: str, told: str) -> None:
    shown = notebook.run(line)
    assert told in shown.error
    assert shown.ename == "UsageError"
    assert "SECRET" not in shown.error
