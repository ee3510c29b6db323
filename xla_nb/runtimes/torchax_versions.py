"""Checks, without importing anything, that the installed torchax works here.

torch_xla's wheel contains an old torchax in the same folder as the real one; which of them is there
depends on what was installed last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.version import Version

from xla_nb.errors import LaunchError
from xla_nb.wording import listed

#: Versions that were tried together: those of the test suite, and those of a GPU.
TRIED = (
    {"torchax": "0.0.13", "torch": "2.9", "jax": "0.7.1", "jaxlib": "0.7.1"},
    {"torchax": "0.0.13", "torch": "2.11", "jax": "0.11.2", "jaxlib": "0.11.2"},
)
#: This torchax cannot be imported with this torch or a later one: it names `aten.prod` by overloads
#: that are gone.
_LAST_TORCHAX, _TOO_NEW = Version("0.0.13"), Version("2.13")

INSTALL = (
    "`pip install 'torch==2.9.*' 'jax==0.7.1' 'jaxlib==0.7.1'`, then "
    "`pip install --force-reinstall --no-deps torchax==0.0.13`"
)
_JAX_ALONE = (
    "torchax is not installed, so ranks have JAX only and torch has no device 'jax'. To add it, "
    "run `pip install 'xla_nb[jax]'`."
)


def check_versions() -> tuple[str, ...]:
    """What the user should know of the installed versions. Raises `LaunchError` if these cannot
    work, with the commands that install what does."""
    found = {name: version for name in TRIED[0] if (version := _version(name))}
    needed = ("jax", "jaxlib") if imported() is None else tuple(TRIED[0])
    missing = [name for name in needed if name not in found]
    if missing:
        raise _refusal(f"lacks {listed(missing)}", found)
    if imported() is None:
        return (_JAX_ALONE,)
    if imported() != found["torchax"]:
        raise _refusal(
            "would import the old torchax of torch_xla's wheel: torch_xla was installed after "
            "torchax and overwrote its files",
            found,
        )
    if Version(found["torchax"]) <= _LAST_TORCHAX and Version(found["torch"]) >= _TOO_NEW:
        raise _refusal(f"needs a torch older than {_TOO_NEW}", found)
    if any(all(_is(found[name], tried[name]) for name in tried) for tried in TRIED):
        return ()
    return (f"Not yet tried together: {_in_words(found)}. Tried: {_in_words(*TRIED)}.",)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is(version: str, tried: str) -> bool:
    """Whether it is the tried version or a later patch of it; after a "+" comes the build."""
    return f"{version.partition('+')[0]}.".startswith(f"{tried}.")


def imported() -> str | None:
    """The version in the files that an import of torchax would load, "" where they do not say, None
    where there are none. The old torchax has 0.0.6 or less."""
    spec = PathFinder.find_spec("torchax")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).read_text()
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return match.group(1) if match else ""


def _in_words(*sets: Mapping[str, str]) -> str:
    return "; ".join(", ".join(map(" ".join, versions.items())) for versions in sets)


def _refusal(problem: str, found: Mapping[str, str]) -> LaunchError:
    here = _in_words(found) or "none of it"
    return LaunchError(f"--runtime torchax {problem} (installed: {here}). Run {INSTALL}.")
