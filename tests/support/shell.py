"""An IPython shell whose %%xla_spawn starts no ranks: it loads and keeps a module as a job does."""

import multiprocessing
import os
import threading
import traceback
from types import SimpleNamespace

from ipykernel.compiler import XCachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from xla_nb.notebook import Notebook
from xla_nb.program import module_file
from xla_nb.program.build import build
from xla_nb.rank import loader
from xla_nb.rank.keeper import Keeper
from xla_nb.record.files import Record
from xla_nb.run.state import RunState


class Ended:
    """A run that has ended: its module was loaded and kept, in a process of its own, by what a job
    does it with."""

    def __init__(self, program, label, folder):
        self.record = Record(folder)
        self.label = label
        self.done = True
        self.changed = threading.Condition()
        self.state = RunState()
        self.changes = ""
        self.state.started = 1.0
        if program.keeps:
            folder.mkdir()
            path = folder / f"{program.name}.py"
            module_file.write(program, path)
            parcel = program.parcel.to_memfd()
            context = multiprocessing.get_context("fork")
            job = context.Process(target=self._job, args=(program, path, parcel))
            job.start()
            job.join()
            os.close(parcel)
            self.state.kept = job.exitcode == 0
            self.state.started = 1.0 if self.state.kept else None
            self.changes = (folder / "changes").read_text() if self.state.kept else ""

    def _job(self, program, path, parcel_fd):
        request = SimpleNamespace(
            record=self.record.path,
            keeps=program.keeps,
            as_source=program.as_source,
            binds=program.binds,
        )
        os.environ[loader.PARCEL] = loader.parcel_path(parcel_fd)
        parcel = loader.parcel(os.environ[loader.PARCEL])
        keeper = Keeper(request, parcel)
        try:
            namespace = vars(loader.load(path, before_last=keeper.before_cell))
            keeper.keep(namespace)
            changes = keeper.changes(namespace, loader.another_parcel())
            self.record.path.joinpath("changes").write_text(" ".join(changes))
        except Exception:
            traceback.print_exc()
            os._exit(1)


class Shell:
    """An IPython whose %%xla_spawn starts no ranks; `scopes` and `programs` are those launched."""

    def __init__(self, folder):
        self._folder = folder
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell(config=config)
        self.shell.compile = XCachingCompiler()  # a kernel's
        self.notebook = Notebook(self.shell)
        self.scopes = []
        self.programs = []
        self.runs = []
        self.shell.register_magic_function(self._launch, "cell", "xla_spawn")
        self.shell.events.register("pre_run_cell", self.notebook.before_cell)

    def _launch(self, line, cell):
        launched = self.notebook.cell(line, cell)
        name = f"xla_nb_cell_{len(self.scopes)}"

        def made(scope):
            self.scopes.append(scope)
            return build(launched, scope, entry=None, args=(), name=name)

        program = self.notebook.program(made)
        self.programs.append(program)
        run = Ended(program, launched.label, self._folder / name)
        self.runs.append(run)
        self.notebook.begun(launched, program, run)

    def run(self, text):
        """Run a cell that must succeed; gives its value."""
        done = self.shell.run_cell(text, store_history=True)
        done.raise_error()
        return done.result

    def launch(self, text):
        """Launch a cell; gives it as the notebook knows it."""
        self.run(f"%%xla_spawn -n 2\n{text}")
        return self.notebook.launched[self.notebook.number][-1]

    def has(self, name):
        return name in self.shell.user_ns

    @property
    def scope(self):
        return self.notebook.scope()
