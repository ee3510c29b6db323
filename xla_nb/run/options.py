"""The options of a launch, each declared once: its flag, its default, what it may be and means.

The magic's parser and help, `%xla_config`, and the checks of `xla_nb.spawn` are made from OPTIONS;
a test holds spawn's signature and docs/reference.md to it.
"""

from __future__ import annotations

import keyword
import math
import operator
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from xla_nb import engines, runtimes, untrusted
from xla_nb.errors import UsageError
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE
from xla_nb.wording import listed, meant, shortened

ViewName = Literal["panel", "text", "none"]
VIEWS: tuple[ViewName, ...] = get_args(ViewName)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SPAN = re.compile(r"(\d{1,6})(?:\s*[-\u2013]\s*(\d{1,6}))?")
_RANKS = 100_000  # of one span
_MOST = 10**9  # more than any machine has, or anybody waits
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?")
_BYTES = {unit: 1024**power for power, unit in enumerate(["", "K", "M", "G", "T"])}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_ON_OFF = ("on", "off")
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Options:
    """How a run is launched, followed and shown. Times are in seconds; OPTIONS says the rest."""

    n: int | None = None
    runtime: str = "xla"
    on: str = "local"
    hosts: int | None = None
    slices: int | None = None
    wait: float = 0.0
    simulate: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    grace: float = 5.0
    keep_going: bool = False
    hang_after: float = 300.0
    hang_stop: bool = False
    stop_on_nan: bool = False
    view: ViewName | None = None
    bg: bool = False


class Word(str):
    """A value as it stands on a magic's line, where `2` is a number; in Python `"2"` is none."""


#: Checks a value under the name its user knows it by, and gives it in its own type; raises
#: UsageError.
Check = Callable[[str, Any], Any]


# ---------------------------------------------------------------- what a value may be


def count(label: str, value: Any) -> int:
    """A number of things, at least 1."""
    number = value
    if isinstance(value, Word) and value.isdecimal() and len(value) < 20:  # int() has its limit
        number = int(value)
    elif hasattr(value, "__index__") and not isinstance(value, bool):  # NumPy's integers too
        number = operator.index(value)
    if type(number) is not int or not 1 <= number < _MOST:
        raise UsageError(f"{label} must be a whole number of at least 1, not {_shown(value)}.")
    return number


def duration(label: str, value: Any) -> float:
    """Seconds: `90`, `1.5s`, `5m`, `2h`."""
    seconds = value
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        seconds = float(match[1]) * _SECONDS[match[2]]
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < _MOST:
        return float(seconds)
    raise UsageError(f"Invalid {label} {_shown(value)}. Use 90, 5m or 2h.")


def nbytes(label: str, value: Any) -> int:
    """Bytes: `500M`, `2GiB`; powers of 1024."""
    match = _SIZE.fullmatch(str(value))
    size = float(match[1]) * _BYTES[match[2]] if match else math.inf
    if size == math.inf:
        raise UsageError(f"Invalid {label} {_shown(value)}. Use 500M or 2G.")
    return int(size)


def numbers(label: str, value: Any) -> tuple[int, ...]:
    """Ranks: `2`, `0,2`, `1-3`; in Python also a number, or several."""
    text = value if isinstance(value, str) else ",".join(map(str, _several(value)))
    spans = [_SPAN.fullmatch(part.strip()) for part in text.split(",")]
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span]
    if len(ends) < len(spans) or any(not 0 <= last - first < _RANKS for first, last in ends):
        raise UsageError(f"{label} must be ranks, such as 0, 0,2 or 1-3, not {_shown(value)}.")
    return tuple(sorted({rank for first, last in ends for rank in range(first, last + 1)}))


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else [value]


def _choice(kind: str, names: Sequence[str]) -> Check:
    def check(label: str, value: Any) -> str:
        if value not in names:
            raise UsageError(f"Unknown {kind} {_shown(value)}. Choose {listed(names, 'or')}.")
        return str(value)

    return check


def _engine(label: str, value: Any) -> str:
    if not isinstance(value, str) or not engines.is_address(value):
        choices = listed(engines.ADDRESSES, "or")
        raise UsageError(f"Unknown {label} {_shown(value)}. Choose {choices}.")
    return str(value)


def _tpu(label: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{label} must be the name of a TPU type, not {_type(value)}.")
    return tpu_types.simulatable(label, value)


def _switch(label: str, value: Any) -> bool:
    switch = _SWITCH.get(value.lower()) if isinstance(value, Word) else value
    if not isinstance(switch, bool):
        raise UsageError(f"{label} must be true or false, not {_shown(value)}.")
    return switch


def _environment(label: str, value: Any) -> dict[str, str]:
    """A mapping of names to values, or the words NAME=VALUE of a line.

    Errors show no value: it may be a secret, and the notebook is saved."""
    if isinstance(value, list) and all(isinstance(word, Word) for word in value):
        value = dict(_assignment(label, word) for word in value)
    if not isinstance(value, Mapping):
        raise UsageError(f"{label} must be a dict of names and values, not {_type(value)}.")
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"{label} has a name that no variable can have: {name!r}.")
        if not isinstance(text, str):
            raise UsageError(f"{label}: the value of {name!r} must be a string, not {_type(text)}.")
        if "\0" in text:
            raise UsageError(f"{label}: the value of {name!r} has a NUL character. Remove it.")
        if not (_is_text(name) and _is_text(text)):
            raise UsageError(f"{label}: {name!r} or its value has half a character. Remove it.")
    return dict(value)


def _assignment(label: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{label} needs NAME=VALUE: the name of a variable, `=` and its value.")
    return name, value


def _is_text(text: str) -> bool:
    """Whether an environment can hold it: no surrogates, but those that stand for bytes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def variable(label: str, value: str) -> str:
    """The name of a variable, as Python itself reads it."""
    name = unicodedata.normalize("NFKC", value)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{label} needs a variable name; {_shown(value)} is not one.")
    if name.startswith("__") and name.endswith("__"):
        raise UsageError(f"{label} {name}: that name is Python's own. Use another name.")
    return name


def _type(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _shown(value: Any) -> str:
    text = (
        repr(str(value))
        if isinstance(value, Word)
        else untrusted.words(lambda: repr(value), "repr()")
    )
    return shortened(text, 200)


# ---------------------------------------------------------------- the options


@dataclass(frozen=True)
class Option:
    """One option. `name` is its argument of `xla_nb.spawn`, `default` None where `otherwise` says
    in words what happens without it; `%xla_config` sets it where it is a `setting`. `choices`: the
    values it may have, or the most usual ones."""

    name: str
    flag: str
    metavar: str  # empty: a switch
    default: Any
    check: Check
    meaning: str
    otherwise: str = ""
    setting: bool = True
    choices: Sequence[str] = ()

    @property
    def usage(self) -> str:
        return f"{self.flag} {self.metavar}".strip()


OPTIONS = {
    option.name: option
    for option in (
        Option(
            "n", "-n", "N", None, count, "number of ranks (per host, with --hosts)",
            "all of the TPU's, or 4 simulated ones",
        ),
        Option(
            "runtime", "--runtime", "NAME", "xla", _choice("runtime", runtimes.NAMES),
            "what ranks use: xla; spmd, one process with all devices; torchax, one JAX world",
            choices=runtimes.NAMES,
        ),
        Option(
            "on", "--on", "WHERE", "local", _engine,
            "where ranks run: local; ray, a Ray cluster (RAY_ADDRESS or this machine's); "
            "ray://HOST:PORT, a cluster behind its client server",
            choices=engines.ADDRESSES,
        ),
        Option(
            "hosts", "--hosts", "H", None, count, "hosts of the cluster", "all that are free"
        ),
        Option("slices", "--slices", "S", None, count, "TPU slices that the hosts form", "1"),
        Option(
            "wait", "--wait", "TIME", 0.0, duration, "how long to wait for free hosts",
            "do not wait",
        ),
        Option(
            "simulate", "--simulate", "TYPE", None, _tpu,
            "simulate a TPU of this type, such as v5litepod-8, even beside a real one; cpu: ranks "
            "are told that they have a CPU",
            "XLA_NB_SIMULATE; where there is no TPU, the smallest type with N chips",
        ),
        Option(
            "env", "--env", "NAME=VALUE", {}, _environment,
            "an environment variable of the ranks; can be repeated", "none", setting=False,
        ),
        Option(
            "timeout", "--timeout", "TIME", None, duration,
            "stop the run after this long: 90, 5m, 2h", "no limit",
        ),
        Option(
            "grace", "--grace", "TIME", 5.0, duration,
            "how long others may go on after a failure, and ranks clean up at a stop", "5 s",
        ),
        Option(
            "keep_going", "--keep-going", "", False, _switch,
            "return a failed Run instead of raising RunFailed", choices=_ON_OFF,
        ),
        Option(
            "hang_after", "--hang-after", "TIME", 300.0, duration,
            "report a hang when a rank has made no progress for this long; 0: never", "5 min",
        ),
        Option(
            "hang_stop", "--hang-stop", "", False, _switch,
            "stop the run when a hang is reported", choices=_ON_OFF,
        ),
        Option(
            "stop_on_nan", "--stop-on-nan", "", False, _switch,
            "stop the run when a reported figure becomes NaN or infinite", choices=_ON_OFF,
        ),
        Option(
            "view", "--view", "VIEW", None, _choice("view", VIEWS), "panel, text or none",
            "what the front end can show", choices=VIEWS,
        ),
        Option(
            "bg", "--bg", "", False, _switch,
            "return at once; then run.wait(), run.stop(), %xla_stop, %xla_stacks", setting=False,
        ),
    )
}  # fmt: skip
SETTINGS = {name: option for name, option in OPTIONS.items() if option.setting}
DROPIN, GUARD = "dropin", "guard"
#: What `%xla_config` sets for the notebook itself.
OWN = {
    option.name: option
    for option in (
        Option(
            DROPIN, "", "", True, _switch,
            "xmp.spawn, torch_xla.launch and accelerate's notebook_launcher launch as xla_nb.spawn "
            "does, and old names of torch_xla work", choices=_ON_OFF,
        ),
        Option(
            GUARD, "", "", True, _switch,
            "stop a cell that is about to open a TPU in the notebook's own process",
            choices=_ON_OFF,
        ),
    )
}  # fmt: skip
#: What `%xla_config` sets for the home of all notebooks, by the names of record/tidying.py.
LIMITS = {
    "keep_runs": Option(
        "runs", "", "", None, count, "ended runs whose files are kept, in all notebooks"
    ),
    "keep_bytes": Option("nbytes", "", "", None, nbytes, "bytes that these files may take"),
}


def check(name: str, value: Any, label: str = "") -> Any:
    """A value of the option `name`, in its own type; `label` is what its user calls it.

    None stands for the option's default. Raises UsageError."""
    option = {**OPTIONS, **LIMITS, **OWN}[name]
    return option.default if value is None else option.check(label or name, value)


def completed(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were given, and the settings for those that are None."""
    return {n: settings.get(n) if value is None else value for n, value in values.items()}


def options(values: Mapping[str, Any], *, flags: bool = False) -> Options:
    """Options of these values, all checked; `flags`: errors name them as on a magic's line.

    Raises UsageError."""
    return Options(
        **{
            name: check(name, value, OPTIONS[name].flag if flags else name)
            for name, value in values.items()
        }
    )


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Raises UsageError for options that are none."""
    if strange := sorted(set(given) - set(known)):
        hint = f"{meant(strange[0], known)} Choose {listed(known)}."
        raise UsageError(f"Unknown option {listed(strange)}.{hint}")


def environment(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that options stand for."""
    return {**environ, **({SIMULATE: options.simulate} if options.simulate else {}), **options.env}


def arguments(value: object) -> tuple[object, ...]:
    """What the function is called with after the rank's index. Raises UsageError."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, tuple):
        meant = "()" if value is None else f"({value!r},)"
        raise UsageError(f"args must be a tuple, not {value!r}. Write args={meant}.")
    return value
