"""The options of a launch, each declared once: its default, valid values and meaning.

The magics' parsers, their help, `%xla_config`, all checks and `xla_nb.spawn`'s docstring are made
from the fields of Options; a test holds spawn's signature and docs/reference.md to them.
"""

from __future__ import annotations

import inspect
import keyword
import operator
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

from xla_nb import engines, runtimes, untrusted
from xla_nb.errors import UsageError
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import SIMULATE
from xla_nb.wording import exactly, listed, meant, shortened

ViewName = Literal["panel", "text", "none"]
VIEWS: tuple[ViewName, ...] = get_args(ViewName)
_F = TypeVar("_F", bound=Callable[..., Any])
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SPAN = re.compile(r"(\d{1,6})(?:\s*[-\u2013]\s*(\d{1,6}))?")
_MAX_RANKS = 100_000  # most ranks in one span
_LIMIT = 10**9  # more than any machine has, or anybody waits
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SWITCH_WORDS = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}

#: Checks a value, or its text on a line, and returns it in its own type; raises UsageError with the
#: name that the user knows it by.
Check = Callable[[str, Any], Any]


# ---------------------------------------------------------------- valid values


def count(label: str, value: Any) -> int:
    """A whole number of at least 1."""
    number = value
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:  # int() has a limit
        number = int(value)
    elif hasattr(value, "__index__") and not isinstance(value, bool):  # NumPy's integers too
        number = operator.index(value)
    if type(number) is not int or not 1 <= number < _LIMIT:
        raise UsageError(f"{label} must be a whole number of at least 1, not {_repr(value)}.")
    return number


def duration(label: str, value: Any) -> float:
    """Seconds: `90`, `1.5s`, `5m`, `2h`."""
    seconds = value
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        seconds = float(match[1]) * _UNITS[match[2]]
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < _LIMIT:
        return float(seconds)
    raise UsageError(f"Invalid {label} {_repr(value)}. Use 90, 5m or 2h.")


def numbers(label: str, value: Any) -> tuple[int, ...]:
    """Ranks: `2`, `0,2`, `1-3`; in Python also one or several numbers."""
    values = value if isinstance(value, Iterable) else [value]
    text = value if isinstance(value, str) else ",".join(map(str, values))
    spans = [_SPAN.fullmatch(part.strip()) for part in text.split(",")]
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span]
    if len(ends) < len(spans) or any(not 0 <= last - first < _MAX_RANKS for first, last in ends):
        raise UsageError(f"{label} must be ranks, such as 0, 0,2 or 1-3, not {_repr(value)}.")
    return tuple(sorted({rank for first, last in ends for rank in range(first, last + 1)}))


@dataclass(frozen=True)
class OneOf:
    """Checks that a value is one of these words, or satisfies `fits` if that is given."""

    words: Sequence[str]
    fits: Callable[[str], bool] | None = None

    def __call__(self, label: str, value: Any) -> str:
        fits = self.fits or self.words.__contains__
        if not isinstance(value, str) or not fits(value):
            choices = listed(self.words, "or")
            raise UsageError(f"Unknown {label} {_repr(value)}. Choose {choices}.")
        return value


def _tpu_type(label: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{label} must be the name of a TPU type, not {_type(value)}.")
    return tpu_types.simulatable(label, value)


def switch(label: str, value: Any) -> bool:
    """True or False, or `on`, `off`, `yes`, `no`."""
    state = _SWITCH_WORDS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(state, bool):
        raise UsageError(f"{label} must be true or false, not {_repr(value)}.")
    return state


def _environment(label: str, value: Any) -> dict[str, str]:
    """A mapping of names to values, or the words NAME=VALUE of a line.

    Errors never show a value: it may be a secret, and the notebook is saved."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = dict(_assignment(label, word) for word in value)
    if not isinstance(value, Mapping):
        raise UsageError(f"{label} must be a dict of names and values, not {_type(value)}.")
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(f"{label}: {name!r} is not a valid variable name.")
        if not isinstance(text, str):
            raise UsageError(f"{label}: the value of {name!r} must be a string, not {_type(text)}.")
        if "\0" in text:
            raise UsageError(f"{label}: the value of {name!r} has a null character.")
    return dict(value)


def _assignment(label: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{label} needs NAME=VALUE: the name of a variable, `=` and its value.")
    return name, value


def variable(label: str, value: str) -> str:
    """The name of a variable, normalized as Python does."""
    name = unicodedata.normalize("NFKC", value)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{label} needs a variable name; {_repr(value)} is not one.")
    if name.startswith("__") and name.endswith("__"):
        raise UsageError(f"{label} {name}: that name is reserved by Python. Use another name.")
    return name


def _type(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _repr(value: Any) -> str:
    return shortened(untrusted.words(lambda: repr(value), "repr()"), 200)


# ---------------------------------------------------------------- the options


@dataclass(frozen=True)
class Option:
    """One option: `name` is its argument in `xla_nb.spawn`, and its flag on a line; `metavar` is
    empty for a switch. `otherwise` describes the behaviour without it, if the default does not.
    `%xla_config` can set it if it is a `setting`."""

    name: str
    default: Any
    metavar: str
    check: Check
    meaning: str
    otherwise: str = ""
    setting: bool = True

    @property
    def flag(self) -> str:
        return f"-{self.name}" if len(self.name) == 1 else f"--{self.name.replace('_', '-')}"

    @property
    def usage(self) -> str:
        return f"{self.flag} {self.metavar}".strip()

    @property
    def without(self) -> str:
        """The behaviour without it."""
        if self.otherwise or self.default is None:
            return self.otherwise
        if self.check is switch:
            return "on" if self.default else "off"
        return exactly(self.default) if self.check is duration else str(self.default)


def _option(default: Any, *args: Any, **kwargs: Any) -> Any:
    """A field of Options with its default and the rest of its Option."""
    option = Option("", default, *args, **kwargs)
    return field(default_factory=lambda: default, metadata={Option: option})


@dataclass(frozen=True)
class Options:
    """How a run is launched, followed and shown. Times are in seconds."""

    # fmt: off
    n: int | None = _option(
        None, "N", count, "ranks (on each host); with spmd, virtual devices",
        "all of the TPU; 4 simulated",
    )
    runtime: str = _option(
        "xla", "NAME", OneOf(runtimes.NAMES),
        "which runtime ranks use: xla; spmd, one process with all devices; torchax, one JAX world",
    )
    on: str = _option(
        "local", "WHERE", OneOf(engines.ADDRESSES, engines.is_address),
        "local: this machine; ray: a Ray cluster (RAY_ADDRESS or this machine's); "
        "ray://HOST:PORT: a cluster behind its client server",
    )
    hosts: int | None = _option(None, "H", count, "hosts of the cluster", "all free hosts")
    slices: int | None = _option(None, "S", count, "TPU slices that the hosts form", "1")
    wait: float = _option(0.0, "TIME", duration, "how long to wait for free hosts", "do not wait")
    simulate: str | None = _option(
        None, "TYPE", _tpu_type,
        "simulate a TPU of this type, such as v5litepod-8, even beside a real one; cpu: ranks see "
        "a CPU",
        "XLA_NB_SIMULATE; without a TPU the smallest type with N chips",
    )
    env: Mapping[str, str] = _option(
        {}, "NAME=VALUE", _environment,
        "environment variables for the ranks; on a line, one per --env",
        "none", setting=False,
    )
    timeout: float | None = _option(
        None, "TIME", duration, "stop the run after this long: 90, 5m, 2h", "no limit"
    )
    grace: float = _option(
        5.0, "TIME", duration,
        "how long other ranks may continue after a failure, and ranks may clean up at a stop",
    )
    keep_going: bool = _option(
        False, "", switch, "return a failed Run instead of raising RunFailed"
    )
    hang_after: float = _option(
        300.0, "TIME", duration,
        "report a hang when a rank has made no progress for this long; 0: never",
    )
    hang_stop: bool = _option(False, "", switch, "stop the run when a hang is reported")
    stop_on_nan: bool = _option(
        False, "", switch, "stop the run when a reported figure becomes NaN or infinite"
    )
    view: ViewName | None = _option(  # noqa: RUF009
        None, "VIEW", OneOf(VIEWS), "panel, text or none", "what the front end can show"
    )
    bg: bool = _option(
        False, "", switch,
        "return at once; then run.wait(), run.stop(), %xla_stop, %xla_stacks", setting=False,
    )
    # fmt: on


OPTIONS: dict[str, Option] = {
    spec.name: replace(spec.metadata[Option], name=spec.name) for spec in fields(Options)
}
DROPIN, GUARD = "dropin", "guard"
#: The settings of `%xla_config` for a notebook.
SETTINGS = {
    option.name: option
    for option in (
        *OPTIONS.values(),
        Option(
            DROPIN, True, "", switch,
            "xmp.spawn, torch_xla.launch and accelerate's notebook_launcher launch as xla_nb.spawn "
            "does",
        ),
        Option(
            GUARD, True, "", switch,
            "stop a cell that would open a TPU in the notebook process",
        ),
    )
    if option.setting
}  # fmt: skip
DEFAULTS = {name: option.default for name, option in SETTINGS.items()}


def options(
    given: Mapping[str, Any], settings: Mapping[str, Any], *, flags: bool = False
) -> Options:
    """Options from the given values, from the settings where these are None, and from defaults.

    All are checked; `flags`: errors name them as on a magic's line. Raises UsageError."""
    values = {**settings, **{name: value for name, value in given.items() if value is not None}}
    return Options(
        **{
            name: option.check(option.flag if flags else name, values[name])
            for name, option in OPTIONS.items()
            if values.get(name) is not None
        }
    )


def explained(flags: bool) -> Callable[[_F], _F]:
    """Decorator that fills in OPTIONS in the docstring of a function that takes them, or of a
    magic, whose line has `flags`."""
    lines = []
    for option in OPTIONS.values():
        text = f"{option.meaning} (default: {option.without})"
        label = option.usage if flags else option.name
        lines += textwrap.wrap(f"{label:<17} {text}", 88, subsequent_indent=" " * 18)

    def fill(function: _F) -> _F:
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = doc.replace("OPTIONS", "\n".join(lines))
        return function

    return fill


def signed(function: _F) -> _F:
    """Decorator that shows all OPTIONS in the signature of a function that takes them."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
    others = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in OPTIONS
        if name not in signature.parameters
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*named, *others])
    return function


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for options that do not exist."""
    if unknown := sorted(set(given) - set(known)):
        hint = f"{meant(unknown[0], known)} Choose {listed(known)}."
        raise UsageError(f"Unknown option {listed(unknown)}.{hint}")


def environment(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the variables that options set."""
    return {**environ, **({SIMULATE: options.simulate} if options.simulate else {}), **options.env}


def arguments(value: object) -> tuple[object, ...]:
    """The arguments of the function after the rank's index. Raises UsageError."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, tuple):
        example = "()" if value is None else f"({value!r},)"
        raise UsageError(f"args must be a tuple, not {value!r}. Write args={example}.")
    return value
