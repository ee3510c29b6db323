"""`%%xla` in a real kernel: ranks that stay alive between cells."""

import os
import re

import pytest

from tests.support.shown import words


@pytest.fixture(scope="module")
def live(kernel):
    """A kernel with two live ranks, which are shut down after the module."""
    kernel.ok("%xla_start -n 2")
    yield kernel
    kernel.ok("%xla_shutdown")


def results(live, body, line=""):
    """Run a `%%xla` cell with this body; return the repr of its results."""
    live.ok(f"%%xla {line} -o got_\n{body}")
    return live.value("dict(got_.results)")


# ---------------------------------------------------------------- state across cells


def test_names_bound_by_a_cell_are_available_in_the_next(live):
    live.ok("%%xla\nkept = rank + 1")
    assert results(live, "kept * 10") == "{0: 10, 1: 20}"


def test_a_cell_without_a_result_returns_none_and_writes_no_result_file(live):
    live.ok("%%xla -o nothing\nquiet = rank")
    assert live.value("dict(nothing.results)") == "{0: None, 1: None}"
    assert live.value("list(nothing.record.path.glob('*.result'))") == "[]"
    live.ok("import xla_nb\nagain = xla_nb.open_run(nothing.name)")
    assert live.value("dict(again.results)") == "{0: None, 1: None}"


def test_the_ranks_run_collects_output_and_figures_of_all_cells(live):
    live.ok("%%xla -o first_of_two\nimport xla_nb\nprint('one', rank); xla_nb.report(of_two=rank)")
    live.ok("%%xla\nprint('two', rank); xla_nb.report(of_two=rank + 10)")
    live.ok("whole_run = xla_nb.open_run(first_of_two.record.path.parent.parent)")
    assert live.value("whole_run.history['of_two']") == "{0: [0.0, 10.0], 1: [1.0, 11.0]}"
    assert live.value("whole_run.output(1).split('one')[-1]") == repr(" 1\ntwo 1\n")


def test_reading_a_result_whose_file_is_missing_raises(live):
    live.ok("%%xla -o lost_file\nclass Shy:\n    def __repr__(self): return 'None'\nShy()")
    live.ok("lost_file.record.result(1).unlink()")
    assert "Rank 1's result is gone" in live.run("lost_file[1]").error


def test_augmented_assignment_binds_a_notebook_number_on_each_rank(live):
    live.ok("added_to = 5")
    live.ok("%%xla\nadded_to += rank")
    assert results(live, "added_to") == "{0: 5, 1: 6}"


def test_samples_of_the_ranks_run_add_up_data_waits_of_all_cells(live):
    """The panel of the ranks draws its lanes from these samples."""
    live.ok(
        "%%xla\nimport time, torch, xla_nb\n"
        "def wait(batch): time.sleep(0.4)\n"
        "def slow(): return torch.utils.data.DataLoader([1] * 4, collate_fn=wait)\n"
        "for _ in xla_nb.progress(slow()): pass"
    )
    live.ok("%%xla\nfor _ in xla_nb.progress(slow()): pass")
    newest = "__import__('xla_nb.live').live.of().run.sample(0)"
    live.ok(
        "import time\nend = time.time() + 20\n"
        f"while {newest}.items < 8 and time.time() < end: time.sleep(0.1)\nseen_ = {newest}"
    )
    assert live.value("seen_.items") == "8"
    assert 3.0 < float(live.value("seen_.data_waited")) < 4.5


def test_ranks_keep_their_processes_between_cells(live):
    pids = results(live, "import os\nos.getpid()")
    assert results(live, "os.getpid()") == pids


def test_a_cell_reads_names_it_has_not_bound_from_the_notebook(live):
    live.ok("of_notebook = 5")
    assert results(live, "of_notebook + rank") == "{0: 5, 1: 6}"
    live.ok("of_notebook = 50")
    assert results(live, "of_notebook + rank") == "{0: 50, 1: 51}"


def test_ranks_use_the_edited_version_of_a_notebook_function(live):
    live.ok("def inner(): return 'old'\ndef outer(): return inner()")
    assert results(live, "outer()") == "{0: 'old', 1: 'old'}"
    live.ok("def inner(): return 'new'")
    assert results(live, "outer()") == "{0: 'new', 1: 'new'}"


def test_ranks_keep_changes_to_a_value_until_it_changes_in_the_notebook(live):
    live.ok("seen = []")
    live.ok("%%xla\nseen.append(rank)")
    assert results(live, "seen.append(rank) or seen") == "{0: [0, 0], 1: [1, 1]}"
    live.ok("seen.append('new')")
    assert results(live, "seen") == "{0: ['new'], 1: ['new']}"


def test_instances_on_ranks_follow_changes_to_the_notebooks_class(live):
    live.ok("class Held:\n    def says(self): return 'held'\nheld_one = Held()")
    live.ok("%%xla\nmine = Held()")
    assert (
        results(live, "isinstance(mine, Held) and isinstance(held_one, Held)", "0") == "{0: True}"
    )
    live.ok("Held.says = lambda self: 'patched'")
    assert results(live, "mine.says()") == "{0: 'patched', 1: 'patched'}"


def test_results_sent_back_to_ranks_keep_the_class_that_ranks_defined(live):
    live.ok("%%xla -o of_ranks\nclass Theirs:\n    class Part: size = 1\nTheirs(), Theirs.Part()")
    live.ok("whole, part = of_ranks[0]")
    told = results(
        live, "type(whole) is Theirs, type(part) is Theirs.Part, isinstance(whole, Theirs)"
    )
    assert told == "{0: (True, True, True), 1: (True, True, True)}"
    live.ok("%%xla_spawn -n 1 -o fresh\ndef f(rank): return type(whole).__name__, part.size")
    assert live.value("fresh[0]") == "('Theirs', 1)"


def test_a_singleton_made_by_a_decorator_keeps_following_the_notebook(live, tmp_path):
    (tmp_path / "onlymod.py").write_text(
        "import functools\ndef single(cls):\n    made = {}\n    @functools.wraps(cls)\n"
        "    def get(): return made.setdefault(cls, made.get(cls) or cls())\n    return get\n"
        "@single\nclass Options: lr = 0.1\n"
    )
    live.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import onlymod")
    for lr in 5, 6:
        live.ok(f"onlymod.Options().lr = {lr}")
        assert results(live, "onlymod.Options().lr") == f"{{0: {lr}, 1: {lr}}}"
    live.ok(
        "import importlib; importlib.reload(onlymod).Options().lr = 7; only = onlymod.Options()"
    )
    told = results(live, "onlymod.Options().lr, only is onlymod.Options()")
    assert told == "{0: (7, True), 1: (7, True)}"


def test_values_sent_for_a_cell_on_some_ranks_reach_all_ranks(live):
    live.ok("brought = {'a': 1}")
    live.ok("%%xla 0\nbrought['b'] = 2")
    assert results(live, "brought") == "{0: {'a': 1, 'b': 2}, 1: {'a': 1}}"


def test_a_busy_rank_receives_values_sent_to_others_once_it_is_free(live):
    live.ok("%%xla 1 --bg -o busy_\nimport time\ntime.sleep(600)")
    live.ok("late = [1]")
    for _ in range(3):
        live.ok("%%xla 0\nlate.append(2)")
    live.ok("busy_.stop()\nbusy_.join_end()")
    assert results(live, "late") == "{0: [1, 2, 2, 2], 1: [1]}"


def test_values_sent_to_other_ranks_do_not_replace_names_bound_by_a_busy_rank(live, tmp_path):
    live.ok(f"ours, done = 'notebook', {str(tmp_path / 'done')!r}")
    waits = "while not os.path.exists(done): time.sleep(0.01)"
    live.ok(f"%%xla 0 --bg -o slow_\nimport os, time\n{waits}\nours = 'rank 0'")
    assert results(live, "ours", "1") == "{1: 'notebook'}"
    live.ok("open(done, 'w').close()\nslow_.wait()")
    assert results(live, "ours", "0") == "{0: 'rank 0'}"


def test_a_value_that_ranks_cannot_unpickle_fails_the_cell_and_is_re_sent(live):
    live.ok(
        "class Odd:\n"
        "    broken = True\n"
        "    def __setstate__(self, state):\n"
        "        if state['broken']: raise ValueError('cannot be made again')\n"
        "        self.__dict__ = state\n"
        "odd = Odd()\nodd.broken = True"
    )
    assert "Cannot open `odd`" in live.run("%%xla\nodd").error
    live.ok("odd.broken = False")
    assert results(live, "odd.broken") == "{0: False, 1: False}"


def test_a_cell_can_bind_any_number_of_names_of_any_form(live):
    live.ok(
        "%%xla\nmany = {f'some_longer_name_{n}': n for n in range(20_000)}\n"
        "globals().update(many, **{chr(0xD800): 1, 'not_a name_': 2, 'long' * 100_000: 3})"
    )
    assert results(live, "some_longer_name_19999") == "{0: 19999, 1: 19999}"
    live.ok(
        "%%xla\n"
        "for name in [*many, chr(0xD800), 'not_a name_', 'long' * 100_000]: del globals()[name]"
    )
    assert "some_longer_name_5' is not defined" in live.run("%%xla\nsome_longer_name_5").error


def test_a_name_bound_in_the_notebook_and_on_ranks_belongs_to_the_ranks(live):
    live.ok("both = 'notebook'")
    live.ok("%%xla\nboth = 'ranks'")
    assert "`both` is the ranks'" in str(live.ok("%%xla\nboth").data)
    assert "`both` is the ranks'" not in str(live.ok("%%xla\nboth").data)
    live.ok("def says(): return both")
    assert results(live, "both, says()") == "{0: ('ranks', 'ranks'), 1: ('ranks', 'ranks')}"
    assert live.value("both") == "'notebook'"


def test_a_name_bound_on_both_sides_is_reported_in_the_first_cell_even_after_a_pull(live):
    live.ok("pulled = 'notebook'")
    live.ok("%%xla\npulled = 'ranks'")
    assert live.ok("xla_nb.ranks()['pulled']").stdout == ""
    assert "`pulled` is the ranks'" in str(live.ok("%%xla\npulled").data)


def test_push_reports_values_re_sent_with_its_arguments(live):
    live.ok("sent_with = [1]")
    live.ok("%%xla\nsent_with.append(rank)")
    told = live.ok("xla_nb.ranks().push(with_it=sent_with)").stdout
    assert "replaced the ranks' `sent_with` with the notebook's: shared with the arguments" in told


def test_names_imported_from_an_own_module_refer_to_the_ranks_objects(live, tmp_path):
    (tmp_path / "with_state.py").write_text(
        "import torch\nnet, seen = torch.nn.Linear(1, 1), []\n"
        "def look():\n    seen.append(1)\n    net.weight.data.fill_(7)\n"
    )
    live.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport with_state")
    live.ok("%%xla\nwith_state.look()")
    live.ok("from with_state import net as own_net, seen as own_seen")
    both = "{{0: {0}, 1: {0}}}".format
    assert results(live, "own_net.weight.item(), len(own_seen)") == both((7.0, 1))
    live.ok("held = {'net': with_state.net, 'seen': own_seen}")
    assert results(live, "held['net'] is own_net, own_net.weight.item()") == both((True, 7.0))
    live.ok("own_seen.append(0)")
    assert results(live, "held['seen'] is own_seen is with_state.seen, own_seen") == both(
        (True, [0])
    )


def test_objects_that_share_data_with_a_replaced_value_are_reported_once(live):
    live.ok("import torch\nnet = torch.nn.Linear(1, 1)\nsettings = {'lr': 0.1}")
    live.ok(
        "%%xla\nof_net = torch.optim.SGD(net.parameters(), settings['lr'])\n"
        "class OfNet: held = net\ndef by_default(of=net): return of"
    )
    live.ok("net.eval()")
    told = str(live.ok("%%xla\nnet, of_net").data)
    assert "replaced the ranks' `net` with the notebook's: `net` changed there" in told
    for name in ("of_net", "OfNet", "by_default"):
        assert f"`{name}` shares data with the old `net`" in told
    assert "with the former" not in str(live.ok("%%xla\nnet, of_net").data)


def test_objects_are_reported_with_the_replaced_value_they_share_data_with(live):
    live.ok("import numpy as np\nbig_, few_ = np.zeros(100), [0]")
    live.ok("%%xla\nof_big_, of_few_ = big_, few_")
    live.ok("big_[0] = 1; few_.append(1)")
    told = str(live.ok("%%xla\nbig_[0], few_").data)
    assert "`of_big_` shares data with the old `big_`, which" in told
    assert "`of_few_` shares data with the old `few_`, which" in told


def test_values_that_the_notebook_wraps_or_keeps_are_not_reported_as_replaced(live):
    live.ok("import torch\nwrapped, first = torch.nn.Linear(1, 1), [1]")
    live.ok("%%xla\nof_wrapped = [wrapped.weight, first]")
    live.ok("wrapped = torch.nn.Sequential(wrapped); kept_first, first = first, [2]")
    shown = live.ok(
        "%%xla -o got_\nof_wrapped[0] is wrapped[0].weight, of_wrapped[1] is kept_first"
    )
    assert live.value("dict(got_.results)") == "{0: (True, True), 1: (True, True)}"
    assert "shares data with the old" not in str(shown.data)


def test_objects_sharing_only_process_state_with_a_replaced_value_are_not_reported(live):
    live.ok("class Loads:\n    def __init__(self): self.data = []\nloads = Loads()")
    live.ok(
        "%%xla 0\nimport multiprocessing, threading, warnings\nwarnings.warn('here')\n"
        "beside, of_loads, apart = Loads(), loads.data, {'a': 1}\n"
        "for one in loads, beside:  # as a DataLoader with persistent workers\n"
        "    one.thread = threading.Thread(target=print)\n"
        "    one.key = multiprocessing.current_process().authkey\n"
        "del one"
    )
    live.ok("loads.data.append(3)")
    told = live.ok("%%xla 0\nloads, of_loads").data["text/plain"]
    assert "`of_loads` shares data with the old `loads`" in told
    assert told.count("shares data with the old") == 1


def test_a_logger_configured_after_the_ranks_started_works_on_ranks(live):
    live.ok(
        "import logging, sys\nset_up = logging.getLogger('set_up')\nset_up.setLevel('INFO')\n"
        "set_up.propagate = False\nset_up.addHandler(logging.StreamHandler(sys.stdout))"
    )
    for _ in range(2):
        assert "heard once" in str(live.ok("%%xla 0\nset_up.info('heard once')").data)
        assert results(live, "len(set_up.handlers)", "0") == "{0: 1}"


def test_later_changes_to_logging_handlers_reach_the_ranks(live, tmp_path):
    live.ok(
        "import logging, sys\nlater = logging.getLogger('later')\nlater.propagate = False\n"
        "to_out = logging.StreamHandler(sys.stdout)\nlater.addHandler(to_out)"
    )
    said = "%%xla 0\nlater.warning('{}')"
    assert "\none\n" in live.ok(said.format("one")).stdout.replace("[0] ", "\n")
    live.ok("to_out.setFormatter(logging.Formatter('as %(message)s'))")
    assert "as two" in str(live.ok(said.format("two")).data)
    live.ok("to_out.setLevel('ERROR')")
    assert "three" not in live.ok(said.format("three")).stdout
    live.ok(f"later.handlers[:] = [logging.FileHandler('{tmp_path}/later.log')]")
    live.ok(said.format("four"))
    assert (tmp_path / "later.log").read_text() == "four\n"
    assert results(live, "len(later.handlers)", "0") == "{0: 1}"


def test_a_tqdm_bar_is_sent_to_ranks_and_a_widget_bar_is_refused_by_name(live):
    pytest.importorskip("ipywidgets")
    live.ok("import tqdm, tqdm.notebook\nbar_here = tqdm.tqdm(total=3)")
    live.ok("def up():\n    bar_here.update(1)\n    return bar_here.n")
    assert results(live, "up()") == "{0: 1, 1: 1}"
    live.ok("bar_here.close()\nbar_here = [tqdm.notebook.tqdm(total=3)]")
    told = live.run("%%xla\nbar_here[0]").error
    assert "Cannot send `bar_here` (builtins.list, defined in Cell In[" in told
    assert "`bar_here[0]` is or contains a notebook widget. Create it inside" in told
    live.ok("bar_here[0].close()\ndel bar_here, up")


def test_values_wrapped_by_torch_itself_are_not_reported(live):
    live.ok(
        "import torch\nby_adam_ = [torch.nn.Parameter(torch.ones(1))]\n"
        "by_adam = torch.optim.Adam(by_adam_)\n"
        "rates = torch.optim.lr_scheduler.ExponentialLR(by_adam, 0.9)"
    )
    shown = live.ok("%%xla\nrates.last_epoch, by_adam.param_groups[0]['lr']")
    assert "was wrapped" not in str(shown.data)


def test_a_module_imported_in_the_notebook_and_on_one_rank_is_available_on_all(live):
    live.ok("import fractions as on_both")
    live.ok("%%xla 1\nimport fractions as on_both")
    assert results(live, "on_both.Fraction(1, 2).denominator") == "{0: 2, 1: 2}"


def test_a_name_that_both_sides_import_alike_is_not_reported(live):
    live.ok(
        "import colorsys as once, string as twice\nfrom textwrap import dedent, indent as other"
    )
    live.ok("%%xla\nimport colorsys as once, textwrap as twice")
    live.ok("%%xla\nfrom textwrap import dedent, fill as other")
    told = str(live.ok("%%xla\nonce, twice, dedent, other").data)
    assert "`once` is the ranks'" not in told
    assert "`dedent` is the ranks'" not in told
    assert "`twice` is the ranks'" in told
    assert "`other` is the ranks'" in told


def test_a_name_bound_on_some_ranks_is_undefined_on_the_others(live):
    live.ok("lonely = 'notebook'")
    live.ok("%%xla\nlonely")
    live.ok("%%xla 0\nlonely = 'rank 0'")
    error = live.run("%%xla\nlonely").error
    assert "Rank 1 failed" in error
    assert "NameError: name 'lonely' is not defined" in error
    live.ok("%%xla 0\ndel lonely")
    assert results(live, "lonely") == "{0: 'notebook', 1: 'notebook'}"


def test_a_name_that_ranks_delete_refers_to_the_notebook_again(live):
    live.ok("again = 'notebook'")
    live.ok("%%xla\nagain = 'ranks'")
    live.ok("%%xla\ndel again")
    assert results(live, "again") == "{0: 'notebook', 1: 'notebook'}"


def test_a_name_rebound_to_its_current_value_belongs_to_the_ranks(live):
    live.ok("flag, step, net = True, 3, [0]")
    live.ok("%%xla\nflag, step, net")
    live.ok("%%xla\nflag = True\nfor step in range(4): pass\nnet = net")
    live.ok("flag, step, net = False, 70, ['new']")
    told = live.ok("%%xla -o got_\nflag, step, net").data["text/plain"]
    assert live.value("got_.results[1]") == "(True, 3, [0])"
    assert told.count("is the ranks'") == 3


def test_a_skipped_or_in_place_assignment_leaves_a_name_to_the_notebook(live):
    live.ok("chosen, counted = 1, [1]")
    live.ok("%%xla\nif chosen is None: chosen = 1\ncounted += [2]")
    live.ok("chosen, counted = 2, [3]")
    assert results(live, "chosen, counted") == "{0: (2, [3]), 1: (2, [3])}"


def test_a_name_pushed_with_its_current_value_belongs_to_the_ranks(live):
    live.ok("pushed = True")
    live.ok("%%xla\npushed")
    live.ok("xla_nb.ranks().push(pushed=True)\npushed = False")
    assert results(live, "pushed") == "{0: True, 1: True}"


def test_a_notebook_name_that_ranks_delete_is_available_in_the_next_cell(live):
    live.ok("brief = [1]")
    live.ok("%%xla\nbrief.append(2)\ndel brief")
    assert results(live, "brief") == "{0: [1], 1: [1]}"


def test_output_lines_are_prefixed_with_rank_numbers(live):
    assert sorted(live.ok("%%xla\nprint('I am', rank)").lines) == ["[0] I am 0", "[1] I am 1"]


def test_a_cell_can_run_on_some_ranks(live):
    assert results(live, "rank", "1") == "{1: 1}"
    assert results(live, "rank", "0-1") == "{0: 0, 1: 1}"
    assert "There is no rank 7, only ranks 0, 1" in live.run("%%xla 0,7\nrank").error


def test_a_cell_can_run_a_coroutine_but_not_await_at_top_level(live):
    assert results(live, "import asyncio\nasyncio.run(asyncio.sleep(0, rank))") == "{0: 0, 1: 1}"
    refused = live.run("%%xla\nawait asyncio.sleep(0, rank)").error
    assert "line 2: 'await' outside function. Correct the line. Nothing was run." in refused


def test_changing_directory_in_a_cell_affects_only_the_ranks(live):
    live.ok("%%xla\nimport os\n%cd /")
    assert results(live, "os.getcwd()") == "{0: '/', 1: '/'}"
    assert live.value("__import__('os').getcwd() == '/'") == "False"


def test_shell_commands_expand_notebook_variables(live):
    live.ok("folder, part = 'data', 3\ndef says():\n    !echo {folder}/{part}")
    home = os.environ["HOME"]
    shown = live.ok("%%xla\n!echo {folder}-$part\n!echo $HOME").lines
    assert sorted(shown) == sorted(f"[{rank}] {one}" for rank in (0, 1) for one in ("data-3", home))
    assert live.ok("%%xla\nsays()").lines == ["[0] data/3", "[1] data/3"]
    live.ok("part = 4")
    assert results(live, "shown = !echo {part}\nshown") == "{0: ['4'], 1: ['4']}"


def test_a_cell_leaves_the_notebooks_random_generators_unchanged(live):
    live.ok("import random, numpy, torch\nbefore = random.getstate()")
    live.ok("numpys, torchs = numpy.random.get_state()[1].copy(), torch.get_rng_state()")
    live.ok("%%xla\nimport random, torch\nrandom.random(), torch.rand(1)")
    same = "(numpys == numpy.random.get_state()[1]).all() and torchs.equal(torch.get_rng_state())"
    assert live.value(f"bool(before == random.getstate() and {same})") == "True"


def test_a_cell_can_run_below_the_time_magic(live):
    shown = live.ok("%%time\n%%xla\nprint('timed')")
    assert "[0] timed" in shown.lines
    assert "Wall time" in shown.stdout


def test_a_cell_reports_only_its_own_compilations(live):
    step = "%%xla\nimport torch, torch_xla\n(torch.ones(7).to(device) * 3 - 1).cpu()"
    assert "compiles 1" in words(live.ok(step).page)
    assert "compiles" not in words(live.ok(step).page)


@pytest.fixture
def module(live, tmp_path):
    """Write a user module into a folder that was just added to the notebook's sys.path."""
    live.ok(f"import importlib, os, sys\nsys.path.insert(0, {str(tmp_path)!r})")

    def write(name, text, written):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        os.utime(path, (written, written))

    yield write
    live.ok(f"sys.path.remove({str(tmp_path)!r})")


def test_replacing_a_value_in_an_own_module_on_ranks_is_reported(live, module):
    module("state_of", "TABLE, NUMBER = {}, 3\n", 1e9)
    live.ok("import state_of")
    live.ok("%%xla\nstate_of.TABLE['rank'] = state_of.NUMBER")
    live.ok("state_of.TABLE['here'] = state_of.NUMBER = 1")
    told = str(live.ok("%%xla -o got_\nstate_of.TABLE, state_of.NUMBER").data)
    assert (
        "replaced the ranks' `state_of.TABLE` with the notebook's: `state_of.TABLE` changed" in told
    )
    assert "NUMBER` changed" not in told
    assert live.value("got_[1]") == "({'here': 1}, 1)"


def test_a_string_counts_as_a_name_in_locals_of_a_cell_but_not_of_a_function(live):
    live.ok("asked_for, not_asked_for = 4, open('/dev/null')")
    assert results(live, "locals()['asked_for']", "0") == "{0: 4}"
    live.ok("def own():\n    asked_for = 5\n    return 'not_asked_for' in locals()")
    assert results(live, "own()", "0") == "{0: False}"
    live.ok("not_asked_for.close()")


def test_ranks_find_modules_in_folders_added_to_the_notebooks_path(live, module):
    module("found_late", "VALUE = 3\n", 1e9)
    live.ok("import found_late")
    assert results(live, "found_late.VALUE") == "{0: 3, 1: 3}"


SETS = """
import os, sys, numpy, torch
numpy.random.seed(0); torch.manual_seed(0); torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False); sys.argv[:] = ["file"]
os.environ["SET_BY"] = os.environ["ADDED_BY"] = "file"
def f(): return 3
"""


def test_importing_a_notebook_module_keeps_the_ranks_seeds_and_settings(live, module):
    module("setting", SETS, 1e9)
    live.ok("import torch; from setting import f as of_setting; torch.set_grad_enabled(True)")
    live.ok(
        "%%xla\nimport os, torch, numpy\ntorch.manual_seed(5 + rank); numpy.random.seed(5)\n"
        "os.environ['SET_BY'] = 'mine'"
    )
    drawn = "of_setting(), round(torch.rand(1).item(), 4), round(numpy.random.rand(), 4)"
    assert results(live, drawn) == "{0: (3, 0.8303, 0.222), 1: (3, 0.5722, 0.222)}"
    kept = "torch.ones(1).dtype is torch.float32, torch.is_grad_enabled(), os.environ.get('SET_BY')"
    told = "{0: (True, True, 'mine'), 1: (True, True, 'mine')}"
    assert results(live, f"import os\n{kept}") == told
    assert results(live, "os.environ['ADDED_BY']") == "{0: 'file', 1: 'file'}"
    live.ok("torch.set_default_dtype(torch.float32)")
    live.ok("for name in ('SET_BY', 'ADDED_BY'): del os.environ[name]")


def test_a_module_that_cannot_be_imported_by_name_is_re_sent_after_changes(live, module):
    module("nobodys", "LR = 1\ndef lr(): return LR\n", 1e9)
    live.ok(
        "import importlib.util as util\n"
        "spec = util.spec_from_file_location('nobodys_own', sys.path[0] + '/nobodys.py')\n"
        "own_config = util.module_from_spec(spec); spec.loader.exec_module(own_config)"
    )
    assert results(live, "own_config.LR, own_config.lr()", "0") == "{0: (1, 1)}"
    live.ok("own_config.LR = 5")
    assert results(live, "own_config.LR, own_config.lr()", "0") == "{0: (5, 5)}"


def test_ranks_use_the_new_version_of_a_module_that_the_notebook_reloads(live, module):
    text = "class Made:\n    def says(self): return {0}\ndef says(): return {0}\n"
    module("edited", text.format("'old'"), 1e9)
    live.ok("import edited\nmade = edited.Made()\ndef of_notebook(): return edited.says()")
    said = "edited.says(), of_notebook(), made.says()"
    assert results(live, said, "0") == "{0: ('old', 'old', 'old')}"
    module("edited", text.format("'new'"), 2e9)
    live.ok("importlib.reload(edited)\nmade = edited.Made()")
    assert results(live, said, "0") == "{0: ('new', 'new', 'new')}"
    live.ok("%%xla\nheld = edited.Made()")
    assert results(live, "isinstance(held, edited.Made)") == "{0: True, 1: True}"


LOSSES = "class Loss:\n    def __call__(self, x): return x * {0}\ndef scale(): return {0}\n"
TRAINER = """
from losses import Loss, scale
class Trainer:
    def __init__(self, loss=None): self.loss = loss or Loss()
    def told(self): return isinstance(self.loss, Loss), self.loss(1), scale()
"""


def test_objects_imported_from_a_module_stay_old_after_that_module_is_reloaded(live, module):
    module("losses", LOSSES.format(1), 1e9)
    module("trainer", TRAINER, 1e9)
    live.ok("import importlib, losses, trainer\ntr = trainer.Trainer()")
    module("losses", LOSSES.format(100), 2e9)
    live.ok("importlib.reload(losses)")
    asked = "tr.told(), trainer.Trainer().told(), trainer.Trainer(losses.Loss()).told()"
    right = "((True, 1, 1), (True, 1, 1), (False, 100, 1))"
    assert live.value(asked) == right
    assert results(live, asked) == f"{{0: {right}, 1: {right}}}"
    live.ok(f"%%xla_spawn -n 1 -o reloaded\ndef f(rank): return {asked}")
    assert live.value("reloaded[0]") == right


def test_side_effects_of_an_import_on_another_module_happen_once(live, module, tmp_path):
    (tmp_path / "registers").mkdir()
    module("registry", "NAMES = []\n", 1e9)
    module("registers/__init__", "", 1e9)
    module("registers/one", "import registry\nregistry.NAMES.append('one')\n", 1e9)
    live.ok("import registry")
    assert results(live, "registry.NAMES", "0") == "{0: []}"
    live.ok("import registers.one")
    for _ in range(2):
        assert results(live, "registry.NAMES", "0") == "{0: ['one']}"
    live.ok("%%xla_spawn -n 1 -o spawned_\ndef names(rank): return registry.NAMES")
    assert live.value("spawned_[0]") == "['one']"
    live.ok("del sys.modules['registers.one']")  # its folder is not found after this test


def test_after_a_failed_reload_ranks_use_the_module_as_the_notebook_has_it(live, module):
    module("fails_again", "def f(): return 1\n", 1e9)
    live.ok("import fails_again, importlib")
    assert results(live, "fails_again.f()", "0") == "{0: 1}"
    module("fails_again", "def f(): return 2\nraise ValueError('broken')\n", 2e9)
    assert "broken" in live.run("importlib.reload(fails_again)").error
    assert results(live, "rank", "0") == "{0: 0}"
    assert results(live, "fails_again.f()", "0") == f"{{0: {live.value('fails_again.f()')}}}"


def test_classes_from_before_and_after_a_reload_stay_distinct_on_ranks(live, module):
    module("reloaded", "class A:\n    def f(self): return 1\n", 1e9)
    live.ok("import importlib, reloaded\nfrom reloaded import A as Former")
    live.ok("%%xla\nof_ranks = Former()")
    module("reloaded", "class A:\n    def f(self): return 2\n", 2e9)
    live.ok("importlib.reload(reloaded)\nformer, newer = Former(), reloaded.A()")
    asked = "isinstance(former, Former), isinstance(newer, Former), former.f(), newer.f()"
    assert live.value(asked) == "(True, False, 1, 2)"
    assert results(live, asked, "0") == "{0: (True, False, 1, 2)}"
    assert results(live, "isinstance(of_ranks, Former), of_ranks.f()", "0") == "{0: (True, 1)}"


def test_ranks_repeat_the_notebooks_reloads_in_order_and_number(live, module):
    uses = "from order_base import VALUE\nimport order_base\norder_base.SEEN.append(VALUE)\n"
    base = "VALUE = {}\nSEEN = globals().get('SEEN', [])\n"
    module("order_user", "import builtins\n", 1e9)
    module("order_base", base.format(1), 1e9)
    live.ok("import order_user, importlib")
    results(live, "order_user.__name__", "0")
    live.ok("import order_base")
    results(live, "order_base.VALUE", "0")
    module("order_user", uses, 2e9)
    live.ok("importlib.reload(order_user)")
    asked = "order_user.VALUE, order_base.SEEN"
    assert results(live, asked, "0") == "{0: (1, [1])}"
    for value in (2, 3):
        module("order_base", base.format(value), (1 + value) * 1e9)
        live.ok("importlib.reload(order_base)\nimportlib.reload(order_user)")
        live.ok("importlib.reload(order_user)")
        assert results(live, asked, "0") == f"{{0: {live.value(asked)}}}"


SETTABLE = """
class Settings:
    depth = 1
LIMIT = 1
PAIR = (1, 2)
def made(): return "the file's"
FOUND = None
def told(): return LIMIT, PAIR, Settings.depth, made(), FOUND
"""


def test_module_attributes_set_and_restored_in_the_notebook_are_restored_on_ranks(live, module):
    module("settable", SETTABLE, 1e9)
    live.ok("import settable\nown = settable.made\ndef other(): return 'another'")
    asked = (
        "settable.told(), settable.new if hasattr(settable, 'new') else None, "
        "settable.Settings.flag if 'flag' in vars(settable.Settings) else None"
    )
    as_imported = '{0: ((1, (1, 2), 1, "the file\'s", None), None, None)}'
    assert results(live, asked, "0") == as_imported
    for _ in range(2):
        live.ok("settable.LIMIT, settable.PAIR, settable.Settings.depth = 5, (3, 4), 7")
        live.ok("settable.Settings.flag = 6")
        live.ok("settable.made, settable.new, settable.FOUND = other, 5, [1]")
        assert results(live, asked, "0") == "{0: ((5, (3, 4), 7, 'another', [1]), 5, 6)}"
        live.ok("settable.LIMIT, settable.PAIR, settable.Settings.depth = 1, (1, 2), 1")
        live.ok("settable.made, settable.FOUND = own, None\ndel settable.new")
        live.ok("del settable.Settings.flag")
        assert results(live, asked, "0") == as_imported


SETTINGS = "lr, epochs, FOUND = 0.1, 2, {'a': 1}\nclass Opt:\n    decay = 0.5\n"


def test_a_settings_module_matches_the_notebook_however_a_cell_reaches_it(live, module):
    module("settings_there", SETTINGS, 1e9)
    live.ok(
        "import settings_there\n"
        "class Trainer:\n    def __init__(self, config): self.config = config\n"
        "    def fit(self): return self.config.lr, self.config.Opt.decay, self.config.FOUND['a']\n"
        "trainer, given, alias = Trainer(settings_there), {'cfg': settings_there}, settings_there"
    )
    asked = (
        "trainer.fit(), given['cfg'].epochs, alias.lr, "
        "{name: value for name, value in vars(alias).items() if name == 'epochs'}"
    )
    assert results(live, asked, "0") == "{0: ((0.1, 0.5, 1), 2, 0.1, {'epochs': 2})}"
    live.ok("settings_there.lr, settings_there.epochs, settings_there.Opt.decay = 5, 7, 9")
    live.ok("settings_there.FOUND['a'] = 3")
    assert results(live, asked, "0") == "{0: ((5, 9, 3), 7, 5, {'epochs': 7})}"
    live.ok("%%xla\nsettings_there.epochs += rank + 1\nsettings_there.FOUND['a'] = rank")
    live.ok("settings_there.lr = 0.1")
    assert results(live, asked, "1") == "{1: ((0.1, 9, 1), 9, 0.1, {'epochs': 9})}"  # set by ranks


def test_the_first_cell_that_names_only_a_module_sees_the_notebooks_values(live, module):
    module("alone_there", SETTINGS, 1e9)
    live.ok("import alone_there, xla_nb\nalone_there.lr = 5\nalone_there.FOUND['a'] = 3")
    live.ok(
        "with xla_nb.ranks('alone', n=1) as others:\n"
        "    got_ = others.run(\"alone_there.lr, alone_there.FOUND['a']\").results"
    )
    assert live.value("got_") == "{0: (5, 3)}"


def test_an_imported_function_is_unaffected_by_replacing_the_modules_attribute(live, module):
    module("replaced_there", "def says(): return 'own'\n", 1e9)
    live.ok("import replaced_there\nfrom replaced_there import says as own_says")
    live.ok("def others(): return 'other'\nreplaced_there.says = others")
    assert results(live, "replaced_there.says()", "0") == "{0: 'other'}"
    asked = "replaced_there.says(), own_says()"
    assert results(live, asked, "0") == "{0: ('other', 'own')}"


def test_an_attribute_reset_by_a_reload_has_the_value_from_the_new_file(live, module):
    module("set_and_reloaded", "LIMIT = 1\n", 1e9)
    live.ok("import set_and_reloaded\nset_and_reloaded.LIMIT = 5")
    assert results(live, "set_and_reloaded.LIMIT", "0") == "{0: 5}"
    module("set_and_reloaded", "LIMIT = 2\n", 2e9)
    live.ok("importlib.reload(set_and_reloaded)")
    for _ in range(2):
        assert results(live, "set_and_reloaded.LIMIT", "0") == "{0: 2}"


def test_an_attribute_restored_in_a_cell_that_fails_is_restored_in_the_next(live, module):
    module("set_at_first", "LIMIT = 1\n", 1e9)
    live.ok("import set_at_first\nset_at_first.LIMIT = 5")
    assert results(live, "set_at_first.LIMIT", "0") == "{0: 5}"
    live.ok(
        "def refuse(): raise OSError('not on ranks')\n"
        "class Closed:\n    def __reduce__(self): return refuse, ()\n"
        "set_at_first.LIMIT, closed = 1, Closed()"
    )
    assert "not on ranks" in live.run("%%xla 0\nclosed, set_at_first.LIMIT").error
    assert results(live, "set_at_first.LIMIT", "0") == "{0: 1}"


@pytest.mark.parametrize("text", ["K = {0}\ndef f(): return {0}\n", "def f(): return {0}\n"])
def test_editing_a_file_that_ranks_have_imported_does_not_change_their_module(live, module, text):
    name = f"edited_{len(text)}"
    module(name, text.format(1), 1e9)
    live.ok(f"import {name}")
    assert results(live, f"{name}.f()", "0") == "{0: 1}"
    live.ok(f"{name}.K = 9")
    module(name, text.format(2), 2e9)
    shown = live.ok(f"%%xla 0 -o found\n{name}.f(), {name}.K")
    assert live.value("found.results") == "{0: (1, 9)}"
    assert "was changed" not in shown.stderr
    live.ok(f"import importlib\nimportlib.reload({name})")
    assert results(live, f"{name}.f()", "0") == "{0: 2}"


def test_ranks_import_a_file_edited_since_the_notebooks_import_and_report_it(live, module):
    module("edited_before", "def f(): return 1\n", 1e9)
    live.ok("import edited_before")
    live.ok("%%xla 0\nrank")  # checks the notebook's modules
    module("edited_before", "def f(): return 2\n", 2e9)
    shown = live.ok("%%xla 0 -o found\nedited_before.f()")
    assert live.value("found.results") == "{0: 2}"
    assert "has changed since the notebook" in shown.stderr
    assert not live.ok("%%xla 0\nedited_before.f()").stderr


def test_changes_in_modules_reach_values_that_ranks_made_with_them(live, module):
    text = "K = 1\ndef told(): return K\nclass Model:\n    def go(self): return 'file'\n"
    module("made_with", text, 1e9)
    live.ok("%%xla\nfrom made_with import told as told_k\nimport made_with as mw\nm = mw.Model()")
    assert results(live, "m.go(), told_k()", "0") == "{0: ('file', 1)}"
    live.ok("%%xla\nm = [m][0]")  # made from its former value
    live.ok("import made_with\nmade_with.Model.go = lambda self: 'mine'\nmade_with.K = 2")
    assert results(live, "m.go(), told_k()", "0") == "{0: ('mine', 2)}"


def test_an_object_replaced_in_a_module_is_another_one_on_ranks(live, module):
    text = "class Cfg: lr = 1\nfirst = now = Cfg()\ndef told(): return first.lr, now.lr\n"
    module("two_names", text, 1e9)
    live.ok("import two_names\ntwo_names.now = two_names.Cfg(); two_names.now.lr = 5")
    assert results(live, "two_names.told()", "0") == "{0: (1, 5)}"
    live.ok("two_names.now = two_names.Cfg(); two_names.now.lr = 7")
    assert results(live, "two_names.told()", "0") == "{0: (1, 7)}"


def test_a_name_on_both_sides_is_reported_if_only_a_function_of_the_ranks_reads_it(live):
    live.ok("%%xla\nread_by_rank = 0.1\nclass Reads:\n    def go(self): return read_by_rank")
    live.ok("%%xla\nreads = Reads()")
    live.ok("read_by_rank = 0.5")
    told = "`read_by_rank` is the ranks' own variable"
    assert told in live.ok("%%xla\nreads.go()").stderr
    assert told not in live.ok("%%xla\nreads.go()").stderr


def test_ranks_find_a_module_whose_folder_the_notebook_has_left(live, tmp_path):
    (tmp_path / "left_behind.py").write_text("T = 20\ndef f(x): return x + T\n")
    live.ok(f"import os, sys\nbefore = os.getcwd(), [*sys.path]\nos.chdir({str(tmp_path)!r})")
    try:
        live.ok("sys.path.insert(0, '')\nimport left_behind\nos.chdir('/')")
        assert results(live, "left_behind.f(rank)") == "{0: 20, 1: 21}"
        live.ok("%%xla_spawn -n 2 -o found\ndef go(rank): return left_behind.f(rank)")
        assert live.value("dict(found.results)") == "{0: 20, 1: 21}"
    finally:
        live.ok("os.chdir(before[0])\nsys.path[:] = before[1]")


def test_a_module_that_ranks_cannot_import_fails_only_cells_that_need_it(live, module):
    live.ok("import os")
    pid = live.value("os.getpid()")
    module("only_here", f"import os\nif os.getpid() != {pid}: raise OSError('no')\nT = 3\n", 1e9)
    live.ok("import only_here")
    assert "Cannot open `only_here" in live.run("%%xla\nonly_here.T").error
    assert results(live, "1 + rank") == "{0: 1, 1: 2}"


def test_steps_of_a_figure_stay_aligned_when_ranks_ran_different_cells(live):
    report = "%%xla {}\nimport xla_nb\nfor n in range({}): xla_nb.report({}=n)"
    for line, count, name in (("", 3, "alike"), ("0", 5, "alone"), ("", 3, "alike")):
        live.ok(report.format(line, count, name))
    live.ok("import xla_nb.live\nfrom xla_nb.views.observer import observe")
    live.ok("found = {one.name: one.lines for one in observe(xla_nb.live.of().run).series}")
    live.ok("steps = {rank: [x for x, _ in line] for rank, line in found['alike'].items()}")
    first = live.value("steps[0][0]")
    steps = [float(first) + n for n in range(6)]  # `alone` counts its own steps
    assert live.value("steps") == str({0: steps, 1: steps})


def test_figures_with_a_step_keep_it_while_others_are_numbered_across_cells(live):
    for begun in (0, 4):
        live.ok(
            "%%xla\nimport xla_nb\n"
            "for n in range(4): xla_nb.report(counted=n)\n"
            f"xla_nb.report(placed=n, step={begun} + n)"
        )
    live.ok("import xla_nb.live\nfrom xla_nb.views.observer import observe")
    live.ok("found = {one.name: one.lines[0] for one in observe(xla_nb.live.of().run).series}")
    live.ok("steps = {name: [x for x, _ in found[name]] for name in ('counted', 'placed')}")
    placed = live.value("[x - steps['counted'][0] for x in steps['counted']], steps['placed']")
    assert placed == str(([float(n) for n in range(8)], [3.0, 7.0]))


def test_ranks_see_the_first_change_after_autoreload_is_loaded(live, module):
    module("first_change", "def f(): return 'old'\n", 1e9)
    live.ok("import first_change")
    assert results(live, "first_change.f()", "0") == "{0: 'old'}"
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        module("first_change", "def f(): return 'new'\n", 2e9)
        assert live.value("first_change.f()") == "'new'"
        assert results(live, "first_change.f()", "0") == "{0: 'new'}"
    finally:
        live.ok("%autoreload 0")


def test_objects_that_autoreload_updates_in_place_are_updated_on_ranks(live, module):
    text = "class Made:\n    def says(self): return {0}\ndef says(): return {0}\n"
    module("autoreloaded", text.format("'old'"), 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import autoreloaded\nfrom autoreloaded import says")
        live.ok("%%xla\nimport autoreloaded\nheld, heard = autoreloaded.Made(), autoreloaded.says")
        said = "autoreloaded.says(), says(), held.says(), heard()"
        assert results(live, said, "0") == "{0: ('old', 'old', 'old', 'old')}"
        module("autoreloaded", text.format("'new'") + "def added(): return 'added'\n", 2e9)
        assert live.value("autoreloaded.says(), says()") == "('new', 'new')"
        assert results(live, f"{said}, autoreloaded.added()", "0") == (
            "{0: ('new', 'new', 'new', 'new', 'added')}"
        )
        module(
            "autoreloaded", text.format("'newest'"), 3e9
        )  # also updates objects from two versions ago
        assert live.value("autoreloaded.says(), says()") == "('newest', 'newest')"
        assert results(live, said, "0") == "{0: ('newest', 'newest', 'newest', 'newest')}"
        live.ok("%%xla\nautoreloaded.mark = rank")
        assert results(live, "autoreloaded.mark") == "{0: 0, 1: 1}"  # not reloaded again
    finally:
        live.ok("%autoreload 0")


def test_classes_that_hold_their_instances_are_updated_by_autoreload(live, module):
    text = (
        "class Conf:\n    one = None\n    def says(self): return {}\n"
        "    @classmethod\n    def get(cls):\n        cls.one = cls.one or cls()\n"
        "        return cls.one\n"
    )
    module("holds_itself", text.format("'old'"), 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import holds_itself\nholds_itself.Conf.get()")
        said = "holds_itself.Conf.get().says()"
        assert results(live, said, "0") == "{0: 'old'}"
        live.ok("%%xla\nheld = holds_itself.Conf.get(); held.mark = rank")
        module("holds_itself", text.format("'new'"), 2e9)
        assert live.value(said) == "'new'"
        asked = f"{said}, holds_itself.Conf.one is held, held.mark"
        assert results(live, asked, "0") == "{0: ('new', True, 0)}"
    finally:
        live.ok("%autoreload 0")


def test_a_function_added_by_autoreload_reads_the_notebooks_values(live, module):
    text = "LOG = []\nclass Meter:\n    extra = [1]\n    def first(self): return 1\n"
    module("meters", text, 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import meters\nmeter = meters.Meter()")
        live.ok("meter.first()")  # IPython has read the file by then, and patches it in place
        module("meters", f"{text}    def total(self): return sum(self.extra), LOG\n", 2e9)
        live.ok("meters.Meter.extra.append(2); meters.LOG.append('x')")
        assert live.value("meter.total()") == "(3, ['x'])"
        assert results(live, "meter.total()", "0") == "{0: (3, ['x'])}"
        live.ok("%%xla_spawn -n 1 -o metered\ndef f(rank): return meter.total()")
        assert live.value("metered[0]") == "(3, ['x'])"
    finally:
        live.ok("%autoreload 0")


def test_classes_first_sent_after_autoreload_are_consistent_on_ranks(live, module, tmp_path):
    (tmp_path / "parted_pkg").mkdir()
    module("parted_pkg/__init__", "from .sub import Sub\nfrom .base import Base\n", 1e9)
    module("parted_pkg/base", "class Base:\n    def d(self): return 1\n", 1e9)
    module("parted_pkg/sub", "from .base import Base\nclass Sub(Base): pass\n", 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import parted_pkg\nfrom parted_pkg import Base, Sub\npart = Sub()")
        module("parted_pkg/base", "class Base:\n    def d(self): return 22\n", 2e9)
        assert live.value("part.d()") == "22"
        asked = "part.d(), isinstance(part, Base), isinstance(Sub(), Base), parted_pkg.Base is Base"
        assert results(live, asked, "0") == "{0: (22, True, True, True)}"
    finally:
        live.ok("%autoreload 0")


def test_an_enum_added_by_autoreload_is_available_on_ranks(live, module):
    module("phases", "def phase(): return None\n", 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import phases")
        assert results(live, "phases.phase()", "0") == "{0: None}"
        text = "import enum\nclass Phase(enum.Enum):\n    A = 1\n"
        module("phases", f"{text}def phase(one=Phase.A): return one.value\n", 2e9)
        live.ok("phases.phase()")
        assert results(live, "phases.phase(), phases.Phase.A.value", "0") == "{0: (1, 1)}"
    finally:
        live.ok("%autoreload 0")


def test_module_state_set_before_the_first_cell_is_not_reported_as_replaced(live, module):
    module("count_at_first", "STATE = {'n': 0}\n", 1e9)
    live.ok("import count_at_first; count_at_first.STATE['n'] = 1")
    shown = live.ok("%%xla\nimport count_at_first\ncount_at_first.STATE")
    assert "has since" not in (shown.stdout + shown.below)


def test_changing_a_notebook_class_in_place_is_reported_each_time(live):
    """Attributes that ranks have set on it are lost."""
    live.ok(
        "class Best:\n    best, seen, kept, last = None, [], {'a': [object()]}, 0\n"
        "def best_of(x, all=[]): Best.best = max(all := [*all, x]); Best.seen.append(x)"
    )
    told = "replaced the ranks' `Best` with the notebook's: `Best` changed there"
    for unrelated in (1, 2):
        assert "changed there" not in live.ok("%%xla\nbest_of(3)").stderr
        live.ok(f"Best.unrelated{unrelated} = 0")
        assert told in live.ok("%%xla\nBest.best, Best.seen").stderr
        assert results(live, "Best.best, Best.seen") == "{0: (None, []), 1: (None, [])}"


def test_changing_a_function_in_place_is_reported_only_if_it_has_attributes(live):
    live.ok(
        "def tallied(by=1): tallied.calls += by\ndef untallied(by=1): return by\ntallied.calls = 0"
    )
    live.ok("%%xla\ntallied(), untallied()")
    live.ok("tallied.__defaults__ = untallied.__defaults__ = (2,)")
    told = live.ok("%%xla\ntallied(), untallied()").stderr
    assert "replaced the ranks' `tallied` with the notebook's: `tallied` changed there" in told
    assert "untallied" not in told
    assert results(live, "tallied.calls, untallied()") == "{0: (2, 2), 1: (2, 2)}"


def test_changing_a_class_by_autoreload_is_reported(live, module):
    text = "class Counts:\n    total, rate = 0, {0}\n    def go(self): Counts.total += 1\n"
    module("counting", text.format("0.1"), 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import counting\ncounts = counting.Counts()")
        live.ok("%%xla\ncounts.go()")
        module("counting", text.format("0.1") + "def other(): return 1\n", 2e9)
        told = live.ok("%%xla\ncounts.go(), counting.other()").stderr
        assert "replaced the ranks' `Counts` with the notebook's: `Counts` changed there" in told
    finally:
        live.ok("%autoreload 0")


def test_importing_a_package_before_its_ranks_start_is_not_reported(kernel, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "settings.py").write_text("RATE = 0\n")
    kernel.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport packed.settings")
    kernel.ok("%xla_start -n 2 --name packing")
    first = kernel.ok("%%xla --group packing\npacked.settings.RATE")
    kernel.ok("%xla_shutdown packing\nsys.path.pop(0)")
    assert "returned 0" in str(first.data)
    assert "has since imported" not in str(first.data)


def test_importing_a_module_of_the_ranks_in_the_notebook_is_reported_once(live, module):
    module("ranks_first", "steps, log, other = 0, [], 1\n", 1e9)
    live.ok("%%xla\nimport ranks_first\nranks_first.steps += 1\nranks_first.log.append(rank)")
    live.ok("import ranks_first")
    told = str(live.ok("%%xla\nranks_first.log, ranks_first.steps").data)
    by_now = "the notebook has since imported `ranks_first`: ranks now use the"
    assert by_now in told
    assert results(live, "ranks_first.log, ranks_first.steps") == "{0: ([], 0), 1: ([], 0)}"
    assert "has since" not in str(live.ok("%%xla\nranks_first.log").data)


def test_trained_state_survives_reloading_its_module(live, module):
    text = "class Net:\n    def __init__(self): self.w = [0]\ndef rate(): return {0}\n"
    module("trained_by", text.format(1), 1e9)
    live.ok("import importlib, trained_by\nby_net = trained_by.Net()\nheld_by = {'net': [by_net]}")
    live.ok("%%xla\nby_net.w[0] += 5; held_by")
    module("trained_by", text.format(2), 2e9)
    live.ok("importlib.reload(trained_by)")
    live.ok("%%xla -o got_\nby_net.w, held_by['net'][0] is by_net, trained_by.rate()")
    assert live.value("dict(got_.results)") == "{0: ([5], True, 2), 1: ([5], True, 2)}"


def test_counters_in_a_module_restart_when_the_notebook_reloads_it(live, module):
    module("counted", "steps = 0\ndef step():\n    global steps\n    steps += 1\n", 1e9)
    live.ok("import counted, importlib")
    live.ok("%%xla\ncounted.step()")
    assert results(live, "counted.steps") == "{0: 1, 1: 1}"
    live.ok("importlib.reload(counted)")
    assert results(live, "counted.steps; counted.step(); counted.steps") == "{0: 1, 1: 1}"
    assert results(live, "counted.step(); counted.steps") == "{0: 2, 1: 2}"


def test_reloading_a_module_keeps_ranks_objects_from_other_modules(live, module):
    module("kept_log", "class Log:\n    def __init__(self): self.lines = []\nlog = Log()\n", 1e9)
    module("uses_log", "from kept_log import log\ndef go(): log.lines.append(1)\n", 1e9)
    live.ok("import kept_log, uses_log, importlib")
    live.ok("%%xla\nuses_log.go()")
    live.ok("importlib.reload(uses_log)")
    shown = live.ok(
        "%%xla -o got_\nuses_log.go(); len(kept_log.log.lines), len(uses_log.log.lines)"
    )
    assert live.value("dict(got_.results)") == "{0: (2, 2), 1: (2, 2)}"
    assert "replaced" not in str(shown.data) + shown.stderr


def test_a_module_class_keeps_its_attributes_when_a_subclass_replaces_it(live, module):
    module("holder", "class Trainer:\n    every = 10\n    def fit(self): return self.every\n", 1e9)
    live.ok("import holder\nformer = holder.Trainer")
    assert results(live, "holder.Trainer().fit()") == "{0: 10, 1: 10}"
    live.ok("class Trainer(holder.Trainer):\n    def hook(self): return 'mine'")
    live.ok("holder.Trainer = Trainer")
    assert results(live, "holder.Trainer().fit(), former.every") == "{0: (10, 10), 1: (10, 10)}"


TRAINED = """
import functools
@functools.lru_cache
def rate(): return {0}
scaled = lambda x: x * {0}
class Base:
    def __init__(self): self.weight = 1
class Net(Base):
    def __init__(self): super().__init__()
    def __call__(self, x): return self.weight * x * {0}
    @functools.cached_property
    def lazy(self): return {0}
"""


def test_enum_members_on_ranks_match_the_notebook_after_autoreload(live, module):
    text = "import enum\nclass Mode(enum.Enum):\n    TRAIN = 1\n"
    module("with_mode", text, 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import with_mode\nfrom with_mode import Mode as Former")
        live.ok("mode = Former.TRAIN\nby_mode = {mode: 10}")
        live.ok("%%xla\nby_mode[mode] += 1\nof_ranks = {Former.TRAIN: 1}")
        module("with_mode", f"{text}    EVAL = 2\n", 2e9)
        asked = (
            "Former.TRAIN is mode, with_mode.Mode.TRAIN is mode, len(with_mode.Mode), "
            "isinstance(mode, with_mode.Mode), with_mode.Mode.TRAIN in by_mode"
        )
        there = live.value(asked)
        asked += ", by_mode.get(Former.TRAIN), of_ranks.get(mode)"
        assert results(live, asked, "0") == f"{{0: {there[:-1]}, 11, 1)}}"
    finally:
        live.ok("%autoreload 0")


def test_trained_state_survives_autoreload_of_its_class(live, module):
    module("trained", TRAINED.format(1), 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import trained\nfrom trained import Net\ntrained_net = Net()")
        live.ok("%%xla\ntrained_net.weight = 7\nown_net = Net()")
        module("trained", TRAINED.format(2), 2e9)
        assert live.value("trained.rate(), trained_net(1)") == "(2, 2)"
        asked = "trained_net(1), trained.rate(), trained.scaled(3), own_net.lazy"
        assert results(live, asked, "0") == "{0: (14, 2, 6, 2)}"
        kinds = "isinstance(trained_net, Net), isinstance(own_net, Net)"
        assert results(live, kinds, "0") == "{0: (True, True)}"
    finally:
        live.ok("%autoreload 0")


def test_adding_or_removing_a_decorator_takes_effect_on_ranks(live, module):
    text = (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n"
        "    def g(x): return 2 * f(x)\n    return g\n{}def k(x): return x\n"
    )
    module("decorated", text.format(""), 1e9)
    live.ok("%load_ext autoreload\n%autoreload 2")
    try:
        live.ok("import decorated")
        assert results(live, "decorated.k(1)", "0") == "{0: 1}"
        for n, decorator in enumerate(("@twice\n", "")):
            module("decorated", text.format(decorator), (2 + n) * 1e9)
            assert live.value("decorated.k(1)") == str(2 - n)
            assert results(live, "decorated.k(1)", "0") == f"{{0: {2 - n}}}"
    finally:
        live.ok("%autoreload 0")


# ---------------------------------------------------------------- failures


def test_a_cell_that_raises_leaves_the_ranks_state_intact(live):
    live.ok("%%xla\nheld = rank\ndef divide(x):\n    return x / held")
    shown = live.run("%%xla\ndivide(1)")
    assert "Rank 0 failed at Cell In[" in shown.error
    assert "ZeroDivisionError" in shown.error
    assert results(live, "held") == "{0: 0, 1: 1}"


def test_ranks_waiting_for_one_that_raised_are_released_and_later_sums_are_right(live):
    live.ok("%%xla\nimport torch, torch_xla.core.xla_model as xm")
    total = "xm.all_reduce('sum', torch.full((3,), rank + 1.0).to(device)).cpu().tolist()"
    for raising in (0, 1):
        shown = live.run(f"%%xla\nif rank == {raising}: raise ValueError('no')\n{total}")
        assert f"Rank {raising} failed" in shown.error
        assert "1 other" in shown.error
        assert results(live, total) == "{0: [3.0, 3.0, 3.0], 1: [3.0, 3.0, 3.0]}"


def test_a_collective_without_all_ranks_is_refused_and_names_the_missing_ones(live):
    shown = live.run("%%xla 0\nxm.all_reduce('sum', torch.ones(1).to(device))", timeout=60)
    assert "all_reduce" in shown.error + shown.stdout + str(shown.data)
    assert "rank 1" in shown.error + shown.stdout + str(shown.data)
    assert results(live, "xm.get_ordinal()") == "{0: 0, 1: 1}"


def test_a_stopped_cell_leaves_the_ranks_alive(live):
    live.ok(
        "%%xla --bg -o waits\nimport time\nbefore = rank\n"
        "print('here', flush=True)\ntime.sleep(600)"
    )
    live.ok("while not all('here' in waits.output(r) for r in range(2)): pass")
    live.ok("waits.stop()\nwaits.join_end()")
    assert "Stopped by run.stop()" in live.value("repr(waits)")
    assert results(live, "before") == "{0: 0, 1: 1}"


def test_stopping_a_cell_before_it_starts_leaves_the_ranks_alive(live):
    live.ok("%%xla\nheld = rank")
    for _ in range(5):
        live.ok(
            "at_once = get_ipython().run_cell_magic('xla', '--bg', 'while True: pass')\n"
            "at_once.stop()\nat_once.join_end()"
        )
    assert results(live, "held") == "{0: 0, 1: 1}"


def test_a_cell_is_refused_while_its_ranks_run_another(live):
    live.ok("%%xla 0 --bg -o busy\nimport time\ntime.sleep(600)")
    refused = live.run("%%xla\n1").error
    assert "is still running on rank 0" in refused
    assert f"%xla_stop {live.value('busy.name')}".replace("'", "") in refused
    assert results(live, "rank", "1") == "{1: 1}"
    live.ok("busy.stop()\nbusy.join_end()")
    assert results(live, "rank") == "{0: 0, 1: 1}"


def test_later_cells_name_a_dead_rank_and_the_others_can_still_be_read(kernel):
    kernel.ok("import xla_nb\nmortal = xla_nb.ranks('mortal', n=2)")
    kernel.ok("mortal.run('kept = rank * 7')")
    died = kernel.run("mortal.run('import os; os._exit(3)', ranks=0)")
    assert "exited with status 3" in died.error
    assert "is lost. You can still run cells on rank" in died.stdout
    shown = kernel.run("mortal.run('1')")
    assert "Rank 0 exited with status 3" in shown.error
    assert kernel.value("mortal.pull('kept', 1)") == "7"
    kernel.ok("mortal.close()")


def test_a_cell_names_a_rank_that_died_unnoticed(kernel):
    kernel.ok("import xla_nb.live\nunnoticed = xla_nb.ranks('unnoticed', n=2)")
    kernel.run("unnoticed.run('import os; os._exit(3)', ranks=1)")
    kernel.ok("xla_nb.live.of('unnoticed').check = lambda members: None  # as if it were alive")
    assert "Rank 1 exited with status 3" in kernel.run("unnoticed.run('1')").error
    kernel.ok("unnoticed.close()")


def test_restarted_ranks_have_no_variables_of_the_old_ones(kernel):
    kernel.ok("%xla_start -n 2 --name anew")
    kernel.ok("%%xla --group anew\ngone = 1")
    kernel.ok("%xla_restart anew")
    assert "`gone` was set on the ranks that ended" in kernel.run("%%xla --group anew\ngone").error
    kernel.ok("%xla_shutdown anew")


def test_replaying_cells_restores_the_ranks_state(kernel):
    kernel.ok("%xla_start -n 2 --name again")
    kernel.ok("%%xla --group again\nsteps = [rank]")
    kernel.run("%%xla --group again\nsteps.append('lost')\n1 / 0")
    kernel.ok("%%xla --group again 1\nsteps.append('one')")
    assert "Cell In[" in kernel.ok("%xla_restart again --replay").stdout
    kernel.ok("%%xla --group again -o played\nsteps")
    assert kernel.value("dict(played.results)") == "{0: [0], 1: [1, 'one']}"
    kernel.ok("%xla_shutdown again")


def test_a_replay_stops_at_the_first_cell_that_fails(kernel):
    kernel.ok("%xla_start -n 1 --name fails\nfails_now = False")
    kernel.ok("%%xla --group fails\nassert not fails_now\nfirst = 1")
    kernel.ok("%%xla --group fails\nafter_it = 2")
    kernel.ok("fails_now = True")
    assert "AssertionError" in kernel.run("%xla_restart fails --replay").error
    told = kernel.run("%%xla --group fails\nafter_it").error
    assert "`after_it` was set on the ranks that ended" in told
    kernel.ok("%xla_shutdown fails")


def test_a_stopped_replay_lists_the_cells_not_replayed(kernel):
    kernel.ok("%xla_start -n 1 --name halts\nhalts, ok = xla_nb.ranks('halts'), True")
    stops = kernel.ok("%%xla --group halts\nassert ok").number
    kernel.ok("%%xla --group halts\nlast = 3")
    kernel.ok("ok = False")
    stopped = kernel.run("%xla_restart halts --replay")
    told = f"Replay stopped at Cell In[{stops}]. Not replayed: Cell In[{stops + 1}]."
    assert told in stopped.stdout
    error = kernel.run("halts.push(first=2)").error
    assert "The current ones are xla_nb.ranks('halts')" in error
    kernel.ok("%xla_shutdown halts")


def test_watched_variables_stay_watched_after_a_restart(kernel):
    kernel.ok("%xla_start -n 2 --name watched")
    kernel.ok("%%xla --group watched\nseen = 1")
    kernel.ok("%xla_vars --watch seen --group watched\n%xla_restart watched")
    assert "`seen` differs" in kernel.ok("%%xla --group watched\nseen = rank").result
    kernel.ok("%xla_shutdown watched")


def test_a_replay_stops_at_values_pushed_from_code(kernel):
    kernel.ok("%xla_start -n 1 --name pushed\nimport xla_nb")
    kernel.ok("%%xla --group pushed\nlr = 1")
    kernel.ok("xla_nb.ranks('pushed').push(lr=2)")
    kernel.ok("%%xla --group pushed -o before\nlr * 10")
    error = kernel.run("%xla_restart pushed --replay").error
    assert "Replay stopped at `push of lr`" in error
    assert kernel.value("before.label").strip("'") in error
    kernel.ok("%xla_shutdown pushed")


def test_a_lock_left_locked_by_a_cell_is_released_for_the_next(live):
    shown = live.ok("%%xla\nif rank == 1: lock.acquire()")
    assert "The cell ended on rank 1 while it held `lock`" in str(shown.data) + shown.stdout
    assert results(live, "with lock:\n    held = rank\nheld") == "{0: 0, 1: 1}"


def test_ranks_end_after_the_idle_limit_and_the_next_cell_reports_it(kernel):
    kernel.ok("%xla_start -n 1 --name idler --idle 0.2s")
    kernel.ok("live_ = __import__('xla_nb.live').live.of('idler')\nlive_.run.join_end()")
    shown = kernel.run("%%xla --group idler\n1")
    assert "ended after 0.2 s without a cell (--idle)" in shown.error
    kernel.ok("%xla_restart idler\n%xla_shutdown idler")


# ---------------------------------------------------------------- questions to ranks


def test_variables_are_shown_with_the_deviating_ranks(live):
    live.ok("%%xla\nimport torch\ndrift = torch.full((4,), 1.0 + 2 * (rank > 0))\nsame = [1, 2]")
    shown = live.ok("%xla_vars drift same").result
    assert "norm 2 (rank 0), 6 (rank 1)" in shown
    assert re.search("same +list .* equal", shown)
    assert live.value("xla_nb.ranks().vars('same')['same'].verdict") == "'equal'"


def test_a_variable_missing_on_all_ranks_is_named(live):
    assert "No rank has `no_such` or `nor_this`." in live.ok("%xla_vars no_such nor_this").stdout


def test_a_watched_variable_is_reported_in_the_cell_where_ranks_diverge(live):
    live.ok("%%xla\nimport torch\nweights = torch.zeros(2)")
    live.ok("%xla_vars --watch weights")
    assert "weights" not in live.ok("%%xla\nweights += 1").result
    shown = live.ok("%%xla\nif rank == 1: weights[0] = 9")
    assert f"`weights` has differed between ranks since Cell In[{shown.number}]" in shown.result
    assert "weights" not in live.ok("%%xla\n1").result
    live.ok("%xla_vars --unwatch")


def test_listing_variables_computes_nothing_on_the_device(live):
    live.ok(
        "%%xla\nimport torch_xla.debug.metrics as met\nlazy = torch.ones(5).to(device) * 3\n"
        "def executed(): return met.metric_data('ExecuteTime')"
    )
    before = results(live, "(executed() or [0])[0]")
    assert "pending" in live.ok("%xla_vars lazy").result
    assert results(live, "(executed() or [0])[0]") == before
    assert "equal" in live.ok("%xla_vars --compute lazy").result


SLOW = """\
import time
class Slow:
    def __repr__(self):
        time.sleep(2)
        return "slow"
slow_ = Slow()
"""


def test_a_cell_waits_for_a_question_asked_by_another_thread(live):
    live.ok(f"%%xla\n{SLOW}")
    live.ok(
        "import concurrent.futures, time\nfrom xla_nb import live as live_\n"
        "pool_ = concurrent.futures.ThreadPoolExecutor()\n"
        "told_ = pool_.submit(xla_nb.ranks().vars, 'slow_')\n"
        "while not live_._groups()['ranks']._asks.locked(): time.sleep(0.01)"
    )
    assert results(live, "rank") == "{0: 0, 1: 1}"
    assert live.value("told_.result(60)['slow_'].usual.type") == "'Slow'"
    live.ok("pool_.shutdown()")


def test_questions_to_ranks_leave_no_run(live):
    before = live.value("len(__import__('xla_nb.run.recorded').run.recorded.entries())")
    live.ok("%xla_vars")
    assert live.value("len(__import__('xla_nb.run.recorded').run.recorded.entries())") == before


def completed(live, code):
    reply = live.client.complete(code, len(code), reply=True, timeout=60)
    return reply["content"]["matches"]


def test_tab_completes_names_and_attributes_of_the_ranks(live):
    live.ok("%%xla\nclass Offered:\n    attribute_of_it = 1\nonly_on_ranks = Offered()")
    tries = (completed(live, "%%xla\nonly_on") for _ in range(20))  # ranks may be busy at one try
    assert ["only_on_ranks"] in tries
    assert completed(live, "%%xla --timeout 5\nx = 1\nonly_on_ranks.attr") == ["attribute_of_it"]
    assert "only_on_ranks" not in completed(live, "only_on")


def test_tab_in_a_cell_for_busy_ranks_completes_notebook_names(live):
    live.ok("%%xla --bg -o busy_\nimport time\ntime.sleep(600)")
    live.ok("of_the_notebook = 1")
    assert "of_the_notebook" in completed(live, "%%xla\nof_the_note")
    live.ok("busy_.stop()\nbusy_.join_end()")


def test_a_question_mark_shows_the_object_of_rank_0(live):
    live.ok("%%xla\ndef documented(a, b=2):\n    'What it does.'\n    return a")
    shown = live.ok("%%xla\ndocumented?").stdout
    assert "Signature:      documented(a, b=2)" in shown
    assert "What it does." in shown
    assert "return a" in live.ok("%%xla\ndocumented??").stdout


def inspected(live, code, level=0):
    reply = live.client.inspect(code, len(code), level, reply=True, timeout=60)["content"]
    return reply["data"].get("text/plain", "")


def test_inspecting_a_name_in_a_cell_shows_the_ranks_object(live):
    live.ok("on_both = 'notebook'\nof_notebook = 'it is here'")
    live.ok("%%xla\non_both = 'ranks'\ndef told(a):\n    'What it tells.'\n    return a")
    assert "String form:    ranks" in inspected(live, "%%xla\non_both")
    assert "notebook" in inspected(live, "on_both")
    assert "it is here" in inspected(live, "%%xla\nof_notebook")
    assert "What it tells." in inspected(live, "%%xla 0\nx = told(1, ")
    assert "return a" in inspected(live, "%%xla\ntold", 1)
    assert not inspected(live, "%%xla\non_both.gone")
    live.ok("%%xla --bg -o busy_\nimport time\ntime.sleep(600)")
    assert not inspected(live, "%%xla\non_both")
    live.ok("busy_.stop()\nbusy_.join_end()")


def test_spawned_ranks_run_beside_live_ranks(live):
    live.ok("%%xla_spawn -n 3 -o fresh_\ndef f(rank): return rank")
    assert live.value("len(fresh_.results)") == "3"
    assert results(live, "rank") == "{0: 0, 1: 1}"


# ---------------------------------------------------------------- use from code


def test_ranks_used_from_code_keep_their_variables(kernel):
    kernel.ok(
        "with xla_nb.ranks('coded', n=2) as coded:\n"
        "    coded.run('x = rank + 1')\n"
        "    coded.push(y=[10])\n"
        "    called = coded.call(lambda a, b=2: (a, b), 1).results\n"
        "    seen = coded['x + y[0]'], coded.pull('y', 1), len(coded), called[1]"
    )
    assert kernel.value("seen") == "({0: 11, 1: 12}, [10], 2, (1, 2))"
    assert "There are no live ranks" in kernel.run("%xla_shutdown coded").error


def test_a_call_without_arguments_ignores_those_of_the_previous_call(live):
    live.ok("def called(a=0): return a\ncaller = xla_nb.ranks()\ncaller.call(called, 5)")
    assert live.value("dict(caller.call(called).results)") == "{0: 0, 1: 0}"


def test_statements_passed_to_run_can_be_indented_as_a_whole(live):
    indented = 'lines = xla_nb.ranks().run("""\n    if True:\n        fives = 5\n    fives\n""")'
    live.ok(f"if True:\n    {indented}")
    assert live.value("lines.results[0]") == "5"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("pull('a = 1')", "'a = 1' is neither a name nor an expression"),
        ("pull('')", "'' is neither a name nor an expression"),
        ("push(rank=1)", "push() cannot bind rank, which every cell sets."),
        ("call(5)", "call() needs a function, not 5"),
        ("run(5)", "The code for run() must be a string, not 5"),
        ("call(print, open('/dev/null'))", "Cannot send `args[0]`"),
    ],
)
def test_invalid_calls_of_ranks_methods_are_refused(live, code, why):
    assert why in live.run(f"xla_nb.ranks().{code}").error


def test_a_name_for_an_object_that_differs_on_ranks_can_be_rebound(live):
    live.ok("import sys\nspeak = sys.stdout.write")
    assert results(live, "speak('x\\n')") == "{0: 2, 1: 2}"
    live.ok("spoken, speak = speak, [1, 2, 3]")
    assert results(live, "len(speak)") == "{0: 3, 1: 3}"


def test_a_cell_for_an_unknown_group_starts_no_ranks(live):
    assert (
        "There are no live ranks named 'typo', only `ranks`."
        in live.run("%%xla --group typo\n1").error
    )


def test_two_groups_of_live_ranks_run_side_by_side(live):
    live.ok("%xla_start -n 3 --name side")
    live.ok("%%xla --group side -o three\nrank")
    assert live.value("len(three.results)") == "3"
    assert results(live, "world_size") == "{0: 2, 1: 2}"
    live.ok("%xla_shutdown side")


@pytest.mark.parametrize("above", ["", "%%time\n"])
def test_a_traceback_shows_the_cells_line_even_below_another_magic(live, above):
    live.run(f"{above}%%xla 0 -o failed_\n1 / 0")
    assert "\n    1 / 0\n" in live.value("print(failed_.errors[0].traceback)")


def test_stopping_all_runs_leaves_live_ranks_alone(kernel):
    kernel.ok("%xla_start -n 1 --name lasting")
    kernel.ok("%%xla --group lasting\nkept_by_it = 5")
    assert "No runs are in progress." in kernel.ok("%xla_stop").stdout
    assert kernel.ok("%%xla --group lasting -o lasted\nkept_by_it").status == "ok"
    kernel.ok("%xla_shutdown lasting")


@pytest.mark.parametrize(
    ("magic", "says"),
    [
        ("%xla_shutdown parting", "There are no live ranks named 'parting'"),
        ("%xla_restart parting", "Start new ones: %xla_start --name parting."),
    ],
)
def test_an_interrupted_end_of_live_ranks_is_an_end(kernel, magic, says):
    kernel.ok("%xla_start -n 1 --name parting\nimport unittest.mock as doubles, xla_nb.run.group")
    kernel.ok("%%xla --group parting\nonly_there = 5")
    interrupted = (
        "with doubles.patch.object(xla_nb.run.group.Group, '_finish', "
        f"side_effect=KeyboardInterrupt):\n    {magic}"
    )
    assert "Interrupted: Interrupted; the live ranks have ended" in kernel.run(interrupted).error
    about = kernel.value("xla_nb.run.recorded.entries()[0].headline")
    assert "SIGKILL" not in about, about
    assert says in kernel.run("%%xla --group parting\nonly_there").error
    alive = "[run for run in xla_nb.api.living() if run.label == 'live ranks `parting`']"
    assert kernel.value(alive) == "[]"
    kernel.run("%xla_shutdown parting")


def test_a_second_interrupt_while_live_ranks_start_ends_them_all(kernel):
    kernel.ok("import xla_nb.live, unittest.mock as doubles, xla_nb.run.group as of_group")
    twice = (
        "again = {'side_effect': KeyboardInterrupt}\n"
        "with doubles.patch.object(of_group.Group, 'wait_until_ready', **again), "
        "doubles.patch.object(of_group.Group, '_finish', **again):\n"
        "    xla_nb.ranks('hasty', n=1)"
    )
    assert (
        "Interrupted before all ranks had started; the ranks were ended." in kernel.run(twice).error
    )
    kernel.ok(
        "import time\nfor run in [one for one in xla_nb.api.living() if one.state.group]:\n"
        "    if run.state.group.name == 'hasty': assert run.join_end(60)"
    )
