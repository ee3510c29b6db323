"""The variables of a TPU that notebooks of Colab and Kaggle find on their machines."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
from typing import Any

from xla_nb import linux
from xla_nb.topology import chips

#: What Colab and Kaggle have set beside their TPUs. Programs look whether they are there, take them
#: away, or print them; ranks do without.
_VARIABLES = {
    "COLAB_TPU_ADDR": "127.0.0.1:8470",  # programs parse both as addresses
    "TPU_NAME": "grpc://127.0.0.1:8470",
    "TPU_PROCESS_ADDRESSES": "local",
    "CLOUD_TPU_TASK_ID": "0",
}
_DEVICE = "PJRT_DEVICE"


class Variables:
    """Those of one shell; `told` has what has been said."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._told: set[str] = set()

    def turn_on(self) -> None:
        if self.before_cell not in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.register("pre_run_cell", self.before_cell)

    def turn_off(self) -> None:
        if self.before_cell in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.unregister("pre_run_cell", self.before_cell)

    def before_cell(self, info: Any = None) -> None:
        """Set the variables that the cell asks for, and take back a device that is not there."""
        self.choose_device()
        text = getattr(info, "raw_cell", None) or ""
        if not any(name in text for name in _VARIABLES):
            return
        with contextlib.suppress(SyntaxError):  # IPython says so itself
            for name in _asked(self._shell.transform_cell(text)):
                if name not in os.environ:
                    os.environ[name] = _VARIABLES[name]
                    self._tell(
                        f"{name}={_VARIABLES[name]} is set, which this cell asks for: TPU machines "
                        "of Colab or Kaggle have it. Ranks do without."
                    )

    def choose_device(self) -> None:
        """Programs that were written for a machine with a TPU ask for it: PJRT_DEVICE=TPU."""
        if os.environ.get(_DEVICE) == "TPU" and not chips.count_chips():
            if linux.first_environ().get(_DEVICE) == "TPU":
                return  # the machine's own: a launch is refused
            os.environ[_DEVICE] = "CPU"
            self._tell(
                "PJRT_DEVICE=TPU is taken back: this machine has no TPU chips. Launches simulate a "
                "TPU host."
            )

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            print(text)


@functools.cache
def of(shell: Any) -> Variables:
    """The one Variables of a shell."""
    return Variables(shell)


def _asked(source: str) -> list[str]:
    """The variables that code names, other than to set them."""
    nodes = list(ast.walk(ast.parse(source)))
    given = {
        id(node.slice)
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    texts = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in given
    ]
    named = set(texts)
    for body in texts:  # of `%%time` and the like
        if "\n" in body and body != source:
            with contextlib.suppress(SyntaxError):
                named.update(_asked(body))
    return [name for name in _VARIABLES if name in named]
