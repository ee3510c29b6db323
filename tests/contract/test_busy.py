"""The kernel stays "busy" while a cell runs, even if it answers other requests."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Notebook

pytestmark = pytest.mark.skipif(
    int(version("ipykernel").partition(".")[0]) < 7,
    reason="no subshells: it answers nothing while a cell runs",
)
#: Code that runs until a file exists.
UNTIL = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)\n"


_VIEW = "application/vnd.jupyter.widget-view+json"


class FrontEnd:
    """A page with the panel, which sends messages to its own subshell."""

    def __init__(self, notebook: Notebook) -> None:
        self._client = notebook.client
        self._panel = ""
        self._subshell = self._control("create_subshell_request", {})["subshell_id"]

    def close(self) -> None:
        self._control("delete_subshell_request", {"subshell_id": self._subshell})

    def _control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        self._client.control_channel.send(self._client.session.msg(kind, content))
        return dict(self._client.get_control_msg(timeout=60)["content"])

    def execute(self, code: str) -> str:
        return str(self._client.execute(code))

    def ended(self, cell: str) -> None:
        while self._client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != cell:
            pass

    def tell(self) -> str:
        """Send a page's regular message; returns the message's id."""
        here = {"type": "here", "page": "a", "run": ""}
        content = {"comm_id": self._panel, "data": {"method": "custom", "content": here}}
        message = self._client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = self._subshell
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def states(self) -> Iterator[tuple[str, str]]:
        """The kernel's states with the id of the parent message; once also "panel"."""
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            about, content = message["parent_header"].get("msg_id", ""), message["content"]
            if message["msg_type"] == "status":
                yield content["execution_state"], about
            elif message["msg_type"] == "comm_open" and "_esm" in content["data"]["state"]:
                self._panel = content["comm_id"]
            elif self._panel and _VIEW in content.get("data", {}):
                yield "panel", about  # no page knows the panel before it is displayed


@pytest.fixture
def page(notebook: Notebook) -> Iterator[FrontEnd]:
    front_end = FrontEnd(notebook)
    yield front_end
    front_end.close()


def test_kernel_stays_busy_during_a_run_while_its_panel_sends_messages(
    page: FrontEnd, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    cell = page.execute("%%xla_spawn -n 2 --view panel\n" + UNTIL.format(path=str(end)))
    said, asked = [], ""
    for state, about in page.states():
        said.append((state, about))
        if state == "panel":
            asked = page.tell()
        if (state, about) == ("idle", asked):
            end.touch()
        if (state, about) == ("idle", cell):
            break
    page.ended(cell)
    after = said[said.index(("idle", asked)) + 1 :]
    assert after == [("busy", cell), ("idle", cell)]


def test_kernel_is_idle_during_a_background_run(
    page: FrontEnd, notebook: Notebook, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    launch = "%%xla_spawn -n 2 --view panel --bg -o in_background\n"
    cell = page.execute(launch + UNTIL.format(path=str(end)))
    said, asked = [], ""
    for state, about in page.states():
        said.append((state, about))
        if (state, about) == ("idle", cell):
            asked = page.tell()
        if (state, about) == ("idle", asked):
            break
    page.ended(cell)
    assert said[said.index(("idle", cell)) + 1 :] == [("busy", asked), ("idle", asked)]
    plain = page.execute(UNTIL.format(path=str(end)))  # an ordinary cell during the run
    for state, about in page.states():
        said.append((state, about))
        if (state, about) == ("busy", plain) and said.count((state, about)) == 1:
            asked = page.tell()
        if (state, about) == ("idle", asked):
            end.touch()
        if (state, about) == ("idle", plain):
            break
    page.ended(plain)
    assert said[said.index(("idle", asked)) + 1 :] == [("busy", plain), ("idle", plain)]
    notebook.ok("in_background.wait()")
