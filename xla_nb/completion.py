"""What Tab offers behind a magic: its options, and the values of those that have a few."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from xla_nb.run.options import LIMITS, OPTIONS, OWN, SETTINGS, Option

_OF_TOPOLOGY = ("n", "on", "hosts", "slices", "wait", "simulate")


def turn_on(shell: Any) -> None:
    """Tell IPython's completer, once in a shell."""
    try:
        from IPython.core.completer import context_matcher
    except ImportError:  # before 8.6: other matches come too
        dispatcher = shell.strdispatchers["complete_command"]
        for magic, offered in _OFFERED.items():
            if not any(dispatcher.s_matches(magic)):
                hook = functools.partial(_behind, offered)
                shell.set_hook("complete_command", hook, str_key=magic)
    else:
        matchers = shell.Completer.custom_matchers
        if not any(getattr(one, "matcher_identifier", "") == _NAME for one in matchers):
            matchers.append(context_matcher(identifier=_NAME)(_matched))


def _matched(context: Any) -> dict[str, Any]:
    """What IPython's `context_matcher` gives: nothing else is offered where these are."""
    from IPython.core.completer import SimpleCompletion

    line, symbol = context.text_until_cursor, context.token
    offered = _OFFERED.get(line.split(maxsplit=1)[0] if line.strip() else "")
    event = SimpleNamespace(text_until_cursor=line, symbol=symbol)
    words = _behind(offered, None, event) if offered else []
    fitting = (word for word in words if word.startswith(symbol))
    found = [SimpleCompletion(text=word, type="magic option") for word in fitting]
    return {"completions": found, "suppress": bool(found), "ordered": True}


def _behind(offered: Callable[[Any], list[str]], _shell: Any, event: Any) -> list[str]:
    """What is offered behind a magic, and nothing at its own name."""
    return offered(event) if " " in event.text_until_cursor.lstrip() else []


def _spawn(event: Any) -> list[str]:
    flags = {option.flag: option for option in OPTIONS.values()}
    return _flags(event, flags, "--args", "-o")


def _topology(event: Any) -> list[str]:
    flags = {OPTIONS[name].flag: OPTIONS[name] for name in _OF_TOPOLOGY}
    return _flags(event, flags, "--accelerator", "--dry-run")


def _flags(event: Any, flags: Mapping[str, Option], *others: str) -> list[str]:
    """The values of the option before the cursor; else all options, unless a name begins there,
    which IPython completes itself."""
    words = event.text_until_cursor.split()
    before = words[-2] if event.text_until_cursor[-1:].strip() else words[-1]
    option = flags.get(before)
    if option is not None and option.metavar:
        return list(option.choices)
    return [*flags, *others] if event.symbol[:1] in ("", "-") else []


def _config(event: Any) -> list[str]:
    options = {**SETTINGS, **OWN, **LIMITS}
    name, equals, _ = event.text_until_cursor.rpartition(" ")[2].partition("=")
    if equals:
        option = options.get(name)
        return list(option.choices) if option else []
    return [*(f"{name}=" for name in options), "reset"]


_NAME = "xla_nb"
_OFFERED = {"%%xla_spawn": _spawn, "%xla_config": _config, "%xla_topology": _topology}
