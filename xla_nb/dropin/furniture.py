"""What notebooks of Colab and Kaggle find on their machines: the variables of a TPU, `cv2_imshow`,
another torch_xla, which their first cell installs, and scripts that launch by themselves."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from xla_nb import linux, notebook
from xla_nb.dropin import answers
from xla_nb.errors import UsageError
from xla_nb.run.options import SETUP_CELLS
from xla_nb.topology import chips
from xla_nb.wording import listed

#: What Colab and Kaggle have set beside their TPUs. Programs look whether they are there, take them
#: away, or print them; ranks do without.
_VARIABLES = {
    "COLAB_TPU_ADDR": "127.0.0.1:8470",  # programs parse both as addresses
    "TPU_NAME": "grpc://127.0.0.1:8470",
    "TPU_PROCESS_ADDRESSES": "local",
    "CLOUD_TPU_TASK_ID": "0",
}
_DEVICE = "PJRT_DEVICE"
_PATCHES = "google.colab.patches"
#: A script of torch_xla's repository that the notebooks of 2020 to 2022 fetch and run.
_SETUP_SCRIPT = re.compile(r"\s*(?:\S*/)?python\S*\s+\S*env-setup\.py\b")
_PIP = re.compile(
    r"\s*(?:sudo\s+)?(?:\S*python\S*\s+-m\s+|uv\s+)?(?:\S*/)?pip[\d.]*\s+(?:-\S+\s+)*"
    r"(install|uninstall)\b"
)
#: What makes `pip install` replace what is there, whatever its version.
_ANEW = {"-U", "--upgrade", "-I", "--ignore-installed", "--force-reinstall", "--pre"}
_PACKAGES = "torch", "torch_xla"
_STARTS = re.compile(
    r"\s*(?:\w+=\S*\s+)*(?:(?:do|then|nohup|time|exec)\s+)?"
    r"(?:\S*/)?(?:python[\d.]*|torchrun|accelerate\s+launch)\s"
)
#: Cells that a shell executes, and no line of which IPython's `system` sees.
_SHELL_CELL = re.compile(
    r"\s*%%(?:bash|sh|!|sx|system|script\s+(?:\S*/)?(?:bash|sh|zsh))(?:[ \t].*)?\n"
)
_LAUNCH = re.compile(r"\b(?:xmp|xla_multiprocessing)\.spawn\(|\btorch_xla\.launch\(")
_WHEEL = re.compile(r"(?:^|/)(torch(?:_xla)?)-(\d[^-+]*|nightly)[^/]*\.whl$")


#: What IPython's shell calls for `!command`, and for `x = !command`.
_RUNNING = "system", "getoutput"
_INSTALLS = (
    "This {} is to {}; launches need torch_xla 2.8 or 2.9 and the torch of the same version, and "
    "see a change after a restart of the kernel."
)


class Furniture:
    """That of one shell; `told` has what has been said."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._told: set[str] = set()

    def turn_on(self) -> None:
        if self.before_cell not in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.register("pre_run_cell", self.before_cell)
            for name in _RUNNING:
                there = getattr(self._shell, name)
                setattr(self._shell, name, functools.partial(self._system, there))
        if not _is_colab():
            sys.modules.setdefault(_PATCHES, _patches())

    def turn_off(self) -> None:
        if self.before_cell in self._shell.events.callbacks["pre_run_cell"]:
            self._shell.events.unregister("pre_run_cell", self.before_cell)
            for name in _RUNNING:
                delattr(self._shell, name)
        if getattr(sys.modules.get(_PATCHES), "cv2_imshow", None) is cv2_imshow:
            del sys.modules[_PATCHES]

    def before_cell(self, info: Any = None) -> None:
        """Set the variables that the cell asks for, and take back a device that is not there."""
        self.choose_device()
        text = getattr(info, "raw_cell", None) or ""
        self._look_at_shell_cell(text)
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
            if linux.started_with(_DEVICE) == "TPU":
                return  # the machine's own: a launch is refused
            os.environ[_DEVICE] = "CPU"
            self._tell(
                "PJRT_DEVICE=TPU is taken back: this machine has no TPU chips. Launches simulate a "
                "TPU host."
            )

    def _system(self, system: Any, command: str, **options: Any) -> Any:
        """What `!command`, `x = !command` and `%pip` call."""
        caller = sys._getframe(1)
        expanded = self._shell.var_expand(command, depth=1)
        self._tell_of_scripts(expanded)
        replaced = list(_replaced(expanded))
        if replaced and notebook.of(self._shell).own.get(SETUP_CELLS, "run") == "skip":
            print(f"Skipped, since it would {listed(replaced)}: {command}")
            return None
        if replaced:
            told = _INSTALLS.format("line", listed(replaced))
            print(told, "`%xla_config setup_cells=skip` skips such lines.")
        return _called_from(caller, system, command, options)

    def _look_at_shell_cell(self, text: str) -> None:
        """`%%bash` and the like run as they are."""
        if not (head := _SHELL_CELL.match(text)):
            return
        self._tell_of_scripts(text[head.end() :])
        if replaced := list(_replaced(text[head.end() :])):
            print(
                _INSTALLS.format("cell", listed(replaced)),
                "`%xla_config setup_cells=skip` skips lines of the form `!pip install …` only.",
            )

    def _tell_of_scripts(self, command: str) -> None:
        for script in _launching(command):
            self._tell(
                f"`{script}` runs in a process of its own, where torch_xla finds no TPU on this "
                "machine: it starts one rank, or refuses `nprocs`. To launch it on the simulated "
                f"host, write `%run {script}`, or `import xla_nb; xla_nb.install()` at its top."
            )

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            print(text)


@functools.cache
def of(shell: Any) -> Furniture:
    """The one Furniture of a shell."""
    return Furniture(shell)


def _called_from(caller: FrameType, system: Any, command: str, options: dict[str, Any]) -> Any:
    """What the frame gets: IPython expands `$x` and `{x}` by the locals of whoever calls it."""
    names = {"__system__": functools.partial(system, **options), "__command__": command}
    return eval("__system__(__command__)", names, dict(caller.f_locals))


# ---------------------------------------------------------------- variables


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


# ---------------------------------------------------------------- packages


def _replaced(command: str) -> Iterator[str]:
    """What a shell command would do to torch and torch_xla as they are here."""
    for part in re.split(r"&&|\|\||[;|\n]", command):
        if _SETUP_SCRIPT.match(part):
            yield "install a torch_xla of its own choice"
        if pip := _PIP.match(part):
            with contextlib.suppress(ValueError):  # quotes that do not end
                words = shlex.split(part[pip.end() :])
                is_anew = not _ANEW.isdisjoint(words)
                replacing = functools.partial(_replacing, is_anew=is_anew)
                done = _removing if pip[1] == "uninstall" else replacing
                yield from filter(None, map(done, words))


def _removing(word: str) -> str | None:
    """`take away torch 2.9.0` for a word of `pip uninstall` that means it."""
    name = word.lower().replace("-", "_")
    there = _there(name)
    return there and f"take away {name} {there}"


def _there(name: str) -> str | None:
    """The version of torch or torch_xla that is here."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name) if name in _PACKAGES else None
    return None


def _replacing(word: str, is_anew: bool) -> str | None:
    """`install torch 1.9 in place of 2.9.0` for a word of `pip install` that means it."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet

    wheel = _WHEEL.search(word)
    if wheel:
        name, shown = wheel[1], wheel[2]
        wanted = SpecifierSet(f"=={shown}.*" if shown != "nightly" else "==0")
    else:
        try:
            requirement = Requirement(word)
        except InvalidRequirement:
            return None
        name, wanted = requirement.name.lower().replace("-", "_"), requirement.specifier
        shown = str(wanted)
    there = _there(name)
    if there is None:
        return None
    if not shown:
        return f"install {name} anew in place of {there}" if is_anew else None
    if wanted.contains(there, prereleases=True):
        return None
    return f"install {name} {shown} in place of {there}"


# ---------------------------------------------------------------- scripts


def _launching(command: str) -> Iterator[str]:
    """The scripts of a shell command that launch by torch_xla itself, where there is no TPU."""
    for part in re.split(r"&&|\|\||[;|\n]", command):
        if found := _STARTS.match(part):
            script = _script(part[found.end() :].split())
            with contextlib.suppress(OSError, UnicodeDecodeError):  # Python says so itself
                text = Path(script).read_text()
                if _LAUNCH.search(text) and "xla_nb" not in text and _is_simulated():
                    yield script


def _script(words: list[str]) -> str:
    """The file that Python, given these words, executes; "" if that cannot be told."""
    for number, word in enumerate(words):
        if word.endswith(".py"):
            return word
        if word == "-m" and (module := next(iter(words[number + 1 :]), "")):
            path = Path(*module.split("."))
            script = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            if script.exists():  # else it is `torch.distributed.run`, or `pip`
                return str(script)
    return ""


def _is_simulated() -> bool:
    """Whether the next launch would simulate a host."""
    try:
        return answers.wish() is not None
    except UsageError:
        return False


# ---------------------------------------------------------------- google.colab


def _is_colab() -> bool:
    try:
        return importlib.util.find_spec("google.colab") is not None
    except ModuleNotFoundError:
        return False


def _patches() -> ModuleType:
    """`google.colab.patches` alone: programs take `google.colab` for a sign that they are there."""
    module = ModuleType(_PATCHES, "What xla_nb has of Colab's module of this name.")
    vars(module)["cv2_imshow"] = cv2_imshow
    return module


def cv2_imshow(a: Any) -> None:
    """Display an image as OpenCV has it: an array of shape (rows, columns), (rows, columns, 3) in
    the order blue, green, red, or with alpha as the fourth; values are cut off at 0 and 255.

    Source: google.colab.patches.
    """
    from IPython.display import display
    from PIL import Image

    image = a.clip(0, 255).astype("uint8")
    if image.ndim == 3:
        image = image[..., [2, 1, 0, *range(3, image.shape[2])]]
    display(Image.fromarray(image))  # type: ignore[no-untyped-call]
