"""`%%xla` and the magics for live ranks: what the words on a line mean."""

from __future__ import annotations

import functools
import re
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from xla_nb import live, live_questions, notebook
from xla_nb.errors import UsageError, XlaNbError, in_lines
from xla_nb.lines import Parser, expanded, parsed, parser
from xla_nb.program.build import RANK_NAMES
from xla_nb.rank.introspection import Completions
from xla_nb.run import options as run_options
from xla_nb.run.drift import Watch
from xla_nb.run.group import DEFAULT, Group
from xla_nb.run.options import Options, Word
from xla_nb.run.run import Run
from xla_nb.views.variables import Variables
from xla_nb.wording import listed, ranks, several

_QUESTION = re.compile(r"\s*(\S+?)\s*(\?\??)\s*")


def parsers() -> list[Parser]:
    """Those of the magics with options."""
    named = [_restart_parser(), _shutdown_parser(), _shutdown_parser("%xla_ranks")]
    return [_start_parser(), _cell_parser(), *named, _vars_parser()]


def offered(line: str, before: str) -> Completions | None:
    """What ranks offer in a cell with this line at its top, up to the cursor."""
    group = _group_of(line)
    return None if group is None else live_questions.completions(group, before)


def explained(line: str, expression: str, source: bool) -> str | None:
    """What ranks tell of an object in a cell with this line at its top, "" if nothing; None where
    the name is the notebook's."""
    group = _group_of(line)
    if group is None or expression.partition(".")[0] not in RANK_NAMES | group.remote.keys():
        return None
    within = live_questions.TOOLTIP
    return live_questions.about(group, expression, source=source, within=within) or ""


def _group_of(line: str) -> Group | None:
    """The ranks of a %%xla line; None where it is not finished, or there are none."""
    try:
        return live.of(parsed(_cell_parser(), line.partition("%%xla")[2])["group"])
    except XlaNbError:
        return None


@functools.cache  # a cell should not wait for it
def _cell_parser() -> Parser:
    made = parser("%%xla", live.OF_CELL)
    made.add_argument("ranks", nargs="?", type=Word)
    made.add_argument("-o", "--out", type=Word)
    made.add_argument("--group", default=DEFAULT)
    return made


def _start_parser() -> Parser:
    made = parser("%xla_start", live.OF_GROUP)
    made.add_argument("--idle", type=Word)
    made.add_argument("--name", default=DEFAULT)
    return made


def _restart_parser() -> Parser:
    made = _shutdown_parser("%xla_restart")
    made.add_argument("--replay", action="store_true")
    return made


def _shutdown_parser(prog: str = "%xla_shutdown") -> Parser:
    made = parser(prog, ())
    made.add_argument("name", nargs="?", default=DEFAULT)
    return made


def _vars_parser() -> Parser:
    made = parser("%xla_vars", ())
    made.add_argument("names", nargs="*", type=Word)
    made.add_argument("--group", default=DEFAULT)
    either = made.add_mutually_exclusive_group()
    for flag in ("--compute", "--watch", "--unwatch"):
        either.add_argument(flag, action="store_true")
    return made


def _watch(group: Group, names: list[str], *, ends: bool) -> list[str]:
    """Watch these too, or no longer (none: no variable). Returns those that are watched anew."""
    before = group.watch.names
    new = [name for name in names if name not in before]
    if ends and new:
        raise UsageError(f"%xla_vars --unwatch: not watched: {listed(new)}.")
    after = [name for name in before if names and name not in names] if ends else before + new
    group.watch = Watch(after, group.watch)
    told = f"Compared after each cell: {listed(f'`{name}`' for name in after)}."
    print(*in_lines(told), sep="\n")
    return new


@magics_class
class LiveMagics(Magics):
    """The magics for live ranks."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = notebook.of(shell)

    @no_var_expand
    @cell_magic
    def xla(self, line: str, cell: str) -> Run | None:
        """Run the cell on live ranks: they keep what it binds, and the next cell finds it.

            %%xla [RANKS] [-o NAME] [--group NAME] [--timeout TIME] [--grace TIME] [--keep-going]
                  [--hang-after TIME] [--hang-stop]
                  [--stop-on-nan] [--view VIEW] [--bg]

        The first cell starts the ranks, with the defaults of %xla_config or as %xla_start did.
        `rank`, `world_size`, `device` and `lock` are there. What %%xla cells bind belongs to the
        ranks; any other name that the cell reads is the notebook's, as it is now. The value of the
        last expression is each rank's result.

        RANKS       ranks that run it: 0, 0,2 or 1-3 (default: all)
        -o NAME     also bind the Run to NAME, even if it fails
        --group     which live ranks, where there are several (%xla_start --name)

        The other options are those of %%xla_spawn. Returns a Run.
        """
        filled = expanded(self.notebook, line)
        words = parsed(_cell_parser(), filled)
        chosen, out, name = words.pop("ranks"), words.pop("out"), words.pop("group")
        if question := _QUESTION.fullmatch(cell):
            self._explain(live.of(name), question[1], question[2])
            return None
        out = None if out is None else run_options.variable("-o", out)
        members = None if chosen is None else run_options.numbers("RANKS", chosen)
        options = self._options(words)
        launched = self.notebook.cell(line, cell, "%%xla")
        is_there = live.is_there(name) or name != DEFAULT
        group = live.of(name) if is_there else None

        def started() -> Group:
            group = live.start(self._options({}))
            self._tell("Started", group)
            return group

        def begun(run: Run) -> None:
            if out:
                self.shell.user_ns[out] = run

        return live.run_cell(group or started, launched, options, members, begun)

    @line_magic
    def xla_start(self, line: str) -> None:
        """Start live ranks for %%xla: `%xla_start -n 8`, `%xla_start --runtime spmd --name big`.

        The options are those of %%xla_spawn that say what ranks there are: -n, --runtime, --on,
        --hosts, --slices, --wait, --simulate, --env, --grace; --name, where there are several; and
        --idle 30m, which ends them, and gives chips and hosts back, when no cell has come for so
        long.
        """
        words = parsed(_start_parser(), line)
        name, idle = words.pop("name"), words.pop("idle")
        seconds = None if idle is None else run_options.duration("--idle", idle)
        self._tell("Started", live.start(self._options(words), name, seconds, shown=True))

    @line_magic
    def xla_restart(self, line: str) -> None:
        """End live ranks and start as many again, which have nothing yet: `%xla_restart [NAME]`.

        --replay runs the cells that had succeeded once more, in order, with their text of then and
        what the notebook holds now; it stops at the first that fails, and says which returned
        something else.
        """
        words = parsed(_restart_parser(), line)
        self._tell("Restarted", live.restart(words["name"], replay=words["replay"], shown=True))

    @line_magic
    def xla_shutdown(self, line: str) -> None:
        """End live ranks, and with them what they hold: `%xla_shutdown [NAME]`."""
        name = parsed(_shutdown_parser(), line)["name"]
        self._tell("Ended", live.end(name))

    @line_magic
    def xla_ranks(self, line: str) -> None:
        """Show live ranks below this cell: `%xla_ranks [NAME]`.

        A row for each rank over all cells, the cells they have run, and their variables. They are
        shown in one cell at a time.
        """
        live.show(live.of(parsed(_shutdown_parser("%xla_ranks"), line)["name"]))

    @line_magic
    def xla_vars(self, line: str) -> Variables | None:
        """Show the variables of live ranks, and whether the ranks agree on them.

            %xla_vars [NAME…] [--group NAME] [--compute]
            %xla_vars --watch NAME…
            %xla_vars --unwatch [NAME…]

        Without names it shows all. Tensors that are recorded on the device and not computed yet
        are told as pending; --compute computes them first. --watch compares the named variables
        after each cell, beside those that are watched already, and says in which one ranks drifted
        apart; --unwatch ends that for these, or for all.
        """
        words = parsed(_vars_parser(), line)
        group = live.of(words["group"])
        names = [run_options.variable("%xla_vars", name) for name in words["names"]]
        if words["watch"] or words["unwatch"]:
            names = _watch(group, names, ends=words["unwatch"])
            if not names:
                return None
        found = live_questions.variables(group, names, compute=words["compute"])
        if missing := [f"`{name}`" for name in names if name not in found]:
            print(f"No rank has {listed(missing, 'or')}.")
        if not words["watch"]:
            return found
        for drift in group.watch.after("%xla_vars", list(found.values())):
            print(*in_lines(drift.sentence), sep="\n")
        return None

    def _explain(self, group: Group, expression: str, marks: str) -> None:
        """Answer `name?` as IPython does, with what rank 0 has, or the first that lives."""
        first = next(iter(group.alive), 0)
        if first not in group.alive:
            group.check(group.world)
        about = live_questions.about(group, expression, source=marks == "??")
        missing = f"Object `{expression}` not found on rank {first}."
        print(f"Rank {first} is busy." if about is None else about or missing)

    def _options(self, words: dict[str, Any]) -> Options:
        asked = {**dict.fromkeys(run_options.OPTIONS), **words}
        return run_options.options(run_options.completed(asked, self.notebook.settings), flags=True)

    @staticmethod
    def _tell(what: str, group: Group) -> None:
        devices = sum(len(rank.devices) for rank in group.run.state.ranks.values())
        of = f", a process with {several(devices, 'device')}" if devices else ""
        print(f"{what} {ranks(list(group.world))}{of}.")
