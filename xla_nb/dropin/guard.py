"""Keeps the notebook's own process from opening a TPU: no rank could have its chips after that.

torch_xla is asked in C++, at the functions by which Python gets there: `OPENERS`. What gets there
without Python, `x.to("xla")`, is looked for in the cell before it runs. On a simulated host, whose
ranks have devices of their own, opening it is only noted.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from xla_nb import notebook
from xla_nb.dropin import answers
from xla_nb.errors import UsageError
from xla_nb.importing import when_imported
from xla_nb.run.options import GUARD

#: Functions of torch_xla._XLAC that make the client of this process, or open its devices.
OPENERS = (
    "_init_computation_client",
    "_xla_get_all_device_attributes",
    "_xla_get_all_devices",
    "_xla_get_all_runtime_devices",
    "_xla_get_default_device",
    "_xla_get_default_device_ordinal",
    "_xla_get_device_attributes",
    "_xla_get_devices",
    "_xla_get_num_processes",
    "_xla_get_process_index",
    "_xla_get_replication_devices_count",
    "_xla_get_runtime_devices",
    "_xla_memory_info",
    "_xla_metrics_report",
    "_xla_num_devices",
    "_xla_num_global_devices",
    "_xla_num_runtime_devices",
    "_xla_real_devices",
    "_xla_tensors_from_aten",
    "_xla_wait_device_ops",
)
ALLOWED = "# xla: allow"
#: Magics that execute their text in the notebook, without a cell of its own as `%%capture` has.
_TIMING = "time", "timeit", "prun"
_MOVES = "to", "set_default_device"
_NAMED = "device", "map_location"
_STANDARD = sys.stdlib_module_names - {"__main__"}


class Guard:
    """That of one shell and process."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._pid = shell, os.getpid()
        self._originals: dict[str, Callable[..., Any]] = {}
        self._is_on = self._has_noted = False

    def turn_on(self) -> None:
        self._is_on = True
        when_imported("torch_xla", self._wrap)
        if self.before_cell not in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.register("pre_run_cell", self.before_cell)

    def turn_off(self) -> None:
        self._is_on = False
        for name, original in self._originals.items():
            setattr(sys.modules["torch_xla"]._XLAC, name, original)
        self._originals.clear()
        if self.before_cell in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.unregister("pre_run_cell", self.before_cell)

    def before_cell(self, info: Any = None) -> None:
        """Reject a cell that moves something to the device itself."""
        text = getattr(info, "raw_cell", None) or ""
        if not any(word in text for word in (".to(", *_NAMED)):
            return
        if not self._watches() or not _is_tpu():
            return
        with contextlib.suppress(SyntaxError):  # IPython says so itself
            tree = ast.parse(self._shell.transform_cell(text))
            for line in _moves(tree, self._shell.user_ns):
                where = f"its line {line}"
                shown = text.splitlines()[line - 1] if line <= text.count("\n") + 1 else ""
                notebook.of(self._shell).reject(_sentence(where, shown), "UsageError")
                return

    def _wrap(self, torch_xla: ModuleType) -> None:
        if not self._is_on or self._originals:
            return
        for name in OPENERS:
            original = getattr(torch_xla._XLAC, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(torch_xla._XLAC, name, functools.partial(self._opening, original))

    def _opening(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Called in place of one of OPENERS."""
        if self._watches():
            frame = self._cell_frame()
            if _is_tpu():
                raise UsageError(_sentence(*self._place(frame)))
            if frame is not None and not self._has_noted:
                self._has_noted = True
                print(_note(*self._place(frame)))
        return original(*args, **kwargs)

    def _watches(self) -> bool:
        """Whether the device is still to be opened, and nobody has allowed it."""
        if os.getpid() != self._pid or not notebook.of(self._shell).own.get(GUARD, True):
            return False
        torch_xla = sys.modules.get("torch_xla")
        if torch_xla and torch_xla._XLAC._xla_runtime_is_initialized():
            return False
        return ALLOWED not in self._shell.history_manager.input_hist_raw[-1]

    def _cell_frame(self) -> FrameType | None:
        """The innermost frame of the notebook's own code."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_globals is not self._shell.user_ns:
            frame = frame.f_back
        return frame

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """Where that is, and the line."""
        if frame is None:
            return "A thread of the notebook", ""
        file = frame.f_code.co_filename
        label = notebook.of(self._shell).label(file)
        return f"{label}, line {frame.f_lineno},", linecache.getline(file, frame.f_lineno)


@functools.cache
def of(shell: Any) -> Guard:
    """The one Guard of a shell."""
    return Guard(shell)


def _is_tpu() -> bool:
    """Whether the next launch would use the chips of this machine."""
    try:
        return answers.wish() is None
    except UsageError:
        return False


# ---------------------------------------------------------------- where it is opened


def _moves(tree: ast.Module, values: dict[str, Any]) -> Iterator[int]:
    """The lines that a cell executes itself, and that name the device in a call: `x.to("xla")`,
    `torch.ones(2, device=device)`, or in `with torch.device("xla")`. A name has the value that the
    cell's own lines above give it; one that they bind to something else is not known."""
    values = dict(values)
    for statement in tree.body:
        for node in _executed(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                values.pop(node.id, None)
            elif isinstance(node, ast.withitem) and _is_device(node.context_expr, values):
                yield node.context_expr.lineno
            elif isinstance(node, ast.Call):
                if _is_move(node, values):
                    yield node.lineno
                for inner, above in _timed(node):
                    yield from (above + line for line in _moves(inner, values))
        if isinstance(statement, ast.Assign) and _is_device(statement.value, values):
            names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
            values.update(dict.fromkeys(names, "xla"))


def _is_move(call: ast.Call, values: dict[str, Any]) -> bool:
    """What the standard library gets (`dict`, `functools.partial`), it only carries."""
    function = call.func
    if isinstance(function, ast.Name):
        known = values.get(function.id, getattr(builtins, function.id, None))
    else:
        owner = values.get(getattr(getattr(function, "value", None), "id", ""))
        known = getattr(owner, getattr(function, "attr", ""), None) if _is_module(owner) else None
    if str(getattr(known, "__module__", None)).partition(".")[0] in _STANDARD:
        return False
    moved = isinstance(function, ast.Attribute) and function.attr in _MOVES
    named = [word.value for word in call.keywords if word.arg in _NAMED]
    return any(_is_device(each, values) for each in named + (call.args if moved else []))


def _is_module(value: object) -> bool:
    return isinstance(value, ModuleType)


def _timed(call: ast.Call) -> Iterator[tuple[ast.Module, int]]:
    """The code of `%%time`, `%time` and their like, which IPython executes in place; how many lines
    are above it."""
    name = getattr(call.func, "attr", "")
    if name in ("run_cell_magic", "run_line_magic"):
        texts = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
        if texts and texts[0] in _TIMING:
            with contextlib.suppress(SyntaxError):  # options, or none of Python's
                above = call.lineno - (name == "run_line_magic")
                yield ast.parse(texts[-1]), above


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of functions, which may be for ranks, and of `if False:`."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield node
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and getattr(node.test, "value", True) in (False, 0):
            children = iter(node.orelse)
        for child in children:
            yield from _executed(child)


def _is_device(node: ast.AST, values: dict[str, Any]) -> bool:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.device":
        return any(_is_device(each, values) for each in node.args[:1])
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Name):
        value = values.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # CFG.device
        value = inspect.getattr_static(values.get(node.value.id), node.attr, None)
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.device):
        return bool(value.type == "xla")
    return isinstance(value, str) and value.partition(":")[0] == "xla"


# ---------------------------------------------------------------- what is said


def _sentence(where: str, line: str) -> str:
    return (
        f"{where} is about to open the TPU in the notebook's own process: no rank could have its "
        f"chips until the kernel is restarted.{_shown(line)}\nMove it into the function that ranks "
        f"run. To use the TPU in the notebook itself, write `{ALLOWED}` in the cell, or "
        "`%xla_config guard=off`."
    )


def _note(where: str, line: str) -> str:
    return (
        f"{where} opens the device in the notebook's own process.{_shown(line)}\nOn a TPU it would "
        "be stopped, as no rank could have the chips after it: move it into the function that "
        "ranks run."
    )


def _shown(line: str) -> str:
    return f"\n  {line.strip()}" if line.strip() else ""
