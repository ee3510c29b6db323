"""JupyterLab and Notebook 7 as users run them: a real server and notebooks in Chromium pages.

The rule: drive the page with the front end's own commands, which act at once and reliably, and
check what a user sees. Use clicks only for the features under test.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import nbformat
import psutil
from nbformat import NotebookNode
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Playwright

PATIENCE = 180.0  # seconds, for a busy machine; no test waits this long normally
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
KERNELSPEC = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}

SERVER = [
    *["setpriv", "--pdeathsig", "TERM"],  # it ends with the tests in any case
    *[sys.executable, "-m", "jupyterlab"],
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port=0",  # a free port, which the server writes to its info file
    "--ServerApp.terminals_enabled=False",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.cache_files=True",  # pages load the files of JupyterLab only once
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LanguageServerManager.autodetect=False",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/sessionDialogs": {"skipKernelRestartDialog": True},
    "docmanager-extension/plugin": {"autosave": False},  # files change only when a test saves them
}


NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def browser(playwright: Playwright, home: Path, *flags: str) -> BrowserContext:
    """A browser with a profile, which caches JupyterLab's compiled scripts like a user's."""
    context = playwright.chromium.launch_persistent_context(
        home / "profile",
        executable_path=next(filter(None, map(shutil.which, NAMES))),
        args=[*FLAGS, *flags],
        env={**os.environ, "HOME": str(home)},
        viewport={"width": 1280, "height": 900},
    )
    context.set_default_timeout(PATIENCE * 1000)
    return context


#: Otherwise each page makes the server start Node.js to check if JupyterLab can be rebuilt.
PAGES = {"buildCheck": False, "buildAvailable": False}


class Lab:
    """A Jupyter server with its own home directory, and a browser."""

    def __init__(self, context: BrowserContext, home: Path) -> None:
        self.root = home / "notebooks"
        self.log = home / "server.log"
        self._settings = home / "settings" / "@jupyterlab"
        self._temporary = tempfile.mkdtemp(prefix="xla-nb-")  # short, as sockets go there
        self._token = secrets.token_hex(16)
        self._written = 0
        self.root.mkdir()
        for name, values in SETTINGS.items():
            path = self._settings / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        pages = home / "config" / "labconfig" / "page_config.json"
        pages.parent.mkdir(parents=True)
        pages.write_text(json.dumps(PAGES))
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                SERVER,
                env=self._environment(home),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.url = self._address(home / "runtime" / f"jpserver-{self.server.pid}.json")
        except BaseException:
            self._end()
            raise
        self.context = context

    def _environment(self, home: Path) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "JPY"))}
        return inherited | {
            "HOME": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_TOKEN": self._token,
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            # Otherwise each rank lists the machine's fonts, because this home has no cached list.
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR") or f"{Path.home()}/.cache/matplotlib",
            "TMPDIR": self._temporary,
            "XLA_NB_HOME": str(home / "xla_nb"),
        }

    def _address(self, info: Path) -> str:
        """Wait for the server and return its URL."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.server.poll() is None:
            try:
                return str(json.loads(info.read_text())["url"])
            except (FileNotFoundError, json.JSONDecodeError):  # missing or incomplete
                time.sleep(0.02)
        raise RuntimeError(f"the Jupyter server did not start:\n{self.log.read_text()}")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Call the server's REST API."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            headers={"Authorization": f"token {self._token}"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return json.loads(response.read() or "null")

    def write(
        self, content: Sequence[str] | NotebookNode, name: str = "", trusted: bool = False
    ) -> str:
        """Write a notebook with these cells to the server's folder, signed if `trusted`."""
        self._written += 1
        name = name or f"notebook-{self._written}.ipynb"
        notebook = content if isinstance(content, NotebookNode) else of_cells(content)
        # The signature covers the content: a copy of a signed notebook must differ.
        notebook.metadata["written"] = self._written
        for cell in notebook.cells:
            cell.metadata["trusted"] = trusted
        if trusted:
            self.request("PUT", f"api/contents/{name}", {"type": "notebook", "content": notebook})
        else:
            nbformat.write(notebook, self.root / name)
        return name

    def read(self, name: str) -> NotebookNode:
        """The content of a saved notebook."""
        return nbformat.read(self.root / name, as_version=4)

    def open(
        self,
        what: str | Sequence[str] | NotebookNode,
        *,
        front_end: Literal["lab", "notebook"] = "lab",
        kernel: bool = True,
    ) -> LabNotebook:
        """Open a notebook, given by name or content, in a new page."""
        name = what if isinstance(what, str) else self.write(what)
        (self._settings / "apputils-extension" / "themes.jupyterlab-settings").unlink(True)
        notebook = LabNotebook(self, name, self.context.new_page())
        try:
            notebook.open(front_end, kernel)
        except BaseException:
            notebook.shutdown()
            raise
        return notebook

    def address(self, path: str) -> str:
        return f"{self.url}{path}?reset&token={self._token}"

    def kernels(self, name: str) -> list[str]:
        """The ids of a notebook's kernels."""
        sessions = self.request("GET", "api/sessions")
        return [session["kernel"]["id"] for session in sessions if session["path"] == name]

    def interrupt(self) -> None:
        """Interrupt busy kernels."""
        for kernel in self.request("GET", "api/kernels"):
            if kernel["execution_state"] == "busy":
                self.request("POST", f"api/kernels/{kernel['id']}/interrupt")

    def shut_down(self, kernel: str) -> None:
        """End a kernel and wait until it and all its child processes are gone."""
        family = [
            process
            for child in psutil.Process(self.server.pid).children()
            if any(kernel in argument for argument in child.cmdline())
            for process in [child, *child.children(recursive=True)]
        ]
        self.request("DELETE", f"api/kernels/{kernel}")
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive, alive

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        """Terminate the server, which ends its kernels. Kill processes that remain."""
        family = psutil.Process(self.server.pid).children(recursive=True)
        self.server.terminate()
        try:
            self.server.wait(30)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        for process in psutil.wait_procs(family, timeout=5)[1]:
            process.kill()
        shutil.rmtree(self._temporary, ignore_errors=True)


class LabNotebook:
    """One notebook in one page. Cells are identified by their index in the file."""

    def __init__(self, lab: Lab, name: str, page: Page) -> None:
        self.lab, self.name, self.page = lab, name, page
        self.errors: list[str] = []  # errors that the page's scripts raised or logged
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._console)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    # ------------------------------------------------------------ the page

    def open(self, front_end: Literal["lab", "notebook"] = "lab", kernel: bool = True) -> None:
        # Its own workspace: JupyterLab changes the workspace of a page if another page uses it.
        workspace = f"lab/workspaces/{uuid.uuid4().hex}"
        if front_end == "notebook":
            self.page.goto(self.lab.address(f"notebooks/{quote(self.name)}"))
        elif kernel:
            self.page.goto(self.lab.address(f"{workspace}/tree/{quote(self.name)}"))
        else:
            self.page.goto(self.lab.address(workspace))
        self._restored()
        if not kernel:
            assert front_end == "lab", "Notebook 7 has no way to open a notebook without a kernel"
            self._show()
        self._ready(kernel)

    def turn_to(self, name: str) -> None:
        """Replace the notebook in this page by another one, without a kernel."""
        self.js("panel.dispose()")
        self.name = name
        self.page.set_viewport_size({"width": 1280, "height": 900})
        self._show()
        self._ready(kernel=False)

    def _show(self) -> None:
        self.command(
            "docmanager:open",
            path=self.name,
            factory="Notebook",
            kernelPreference={"shouldStart": False, "shouldReuse": False},
        )

    def reload(self) -> None:
        """Reload the page, like F5. The kernel and a running cell continue."""
        self.page.reload()
        self._restored()
        self._ready(kernel=True)

    def _restored(self) -> None:
        self.page.wait_for_function("window.jupyterapp?.restored.then(() => true)")

    def _ready(self, kernel: bool) -> None:
        self.page.wait_for_function(f"name => {PANEL}(name)?.context.isReady", arg=self.name)
        self.js("panel.revealed.then(() => null)")
        if kernel:
            self.js("panel.sessionContext.ready.then(() => null)")
        self._uncovered()

    def _uncovered(self) -> None:
        """Wait until the splash screen, which would catch clicks, is gone."""
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def js(self, expression: str, argument: Any = None) -> Any:
        """Evaluate in the page with `app`, the notebook's `panel` and the `argument`.

        A promise is awaited with a timeout, which Playwright's evaluate() lacks.
        """
        return self.page.evaluate(
            f"""([name, argument, patience]) => {{
                const app = window.jupyterapp, panel = {PANEL}(name);
                const late = new Error("the page is not done in time");
                return Promise.race([{expression}, new Promise((_, fail) =>
                    setTimeout(() => fail(late), patience * 1000))]);
            }}""",
            [self.name, argument, PATIENCE],
        )

    def command(self, name: str, **arguments: Any) -> None:
        """Run a front-end command to its end."""
        self.js("app.commands.execute(...argument).then(() => null)", [name, arguments])

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=name)
        self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(state="attached")
        self._uncovered()

    def screenshot(self, path: Path | str) -> None:
        self.page.screenshot(path=path)

    def save(self) -> None:
        self.command("docmanager:save")

    def close(self) -> None:
        """Close the page; the kernel stays alive."""
        self.page.close()

    def shutdown(self) -> None:
        """Close the page and end the notebook's kernel."""
        self.close()
        for kernel in self.lab.kernels(self.name):
            self.lab.shut_down(kernel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    # ------------------------------------------------------------ cells

    def add(self, source: str) -> int:
        """Add a cell at the end and return its index."""
        return int(
            self.js(
                "(model => model.insertCell(model.cells.length, {cell_type: 'code',"
                " source: argument, metadata: {trusted: true}}) && model.cells.length - 1"
                ")(panel.content.model.sharedModel)",
                source,
            )
        )

    def clear(self) -> None:
        """Delete all cells, also in the file, and forget the errors of the page."""
        self.js("panel.content.model.sharedModel.deleteCellRange(0, panel.content.widgets.length)")
        self.save()
        self.errors.clear()

    def run(self, cell: int) -> None:
        """Start a cell without waiting for it. Its prompt is empty before it becomes [*]."""
        self.js(
            "(panel.content.activeCellIndex = argument,"
            " panel.content.activeCell.model.executionCount = null,"
            " app.shell.activateById(panel.id),"
            " void app.commands.execute('notebook:run-cell'))",
            cell,
        )

    def done(self, cell: int, timeout: float = PATIENCE) -> None:
        """Wait until a cell has ended."""
        self.prompt(cell).filter(has_text=re.compile(r"\[\d+\]:")).wait_for(timeout=timeout * 1000)

    def execute(self, source: str, timeout: float = PATIENCE) -> int:
        """Add a cell, run it to its end and return its index."""
        cell = self.add(source)
        self.run(cell)
        self.done(cell, timeout)
        return cell

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def prompt(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-InputArea-prompt")

    def output(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-Cell-outputArea")

    def text(self, cell: int) -> str:
        """The output of a cell, without prompts."""
        return "\n".join(self.output(cell).locator(".jp-OutputArea-output").all_inner_texts())

    def wait_for(self, text: str | re.Pattern[str], cell: int, timeout: float = PATIENCE) -> None:
        """Wait until the output of a cell contains a text."""
        self.output(cell).filter(has_text=text).wait_for(timeout=timeout * 1000)

    def trusted(self, cell: int) -> bool:
        return bool(self.js("panel.content.widgets[argument].model.trusted", cell))

    # ------------------------------------------------------------ kernel

    def interrupt(self) -> None:
        """Interrupt the kernel, like ■."""
        self.command("notebook:interrupt-kernel")

    def idle(self) -> None:
        """Wait until the kernel is idle, because a failing cell drops the cells queued after it.

        Waits for a reply on its main shell, which works before the first panel too.
        """
        self.js("panel.sessionContext.session.kernel.requestKernelInfo().then(() => null)")

    def restart(self) -> None:
        self.command("notebook:restart-kernel")


PANEL = (
    "(name => [...window.jupyterapp.shell.widgets('main')]"
    ".find(widget => widget.context?.path === name))"
)


def of_cells(sources: Sequence[str]) -> NotebookNode:
    # Without a kernelspec, a modal dialog asks for one.
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})
