"""Explain why a value of the notebook cannot be sent to ranks, by its variable's name."""

from __future__ import annotations

import builtins
import contextlib
import errno
import getpass
import pickle
import sys
import types
from collections.abc import Sequence
from typing import Any, TypeAlias

from xla_nb import untrusted
from xla_nb.linux import shortage
from xla_nb.pickling import code_facts, rebuild
from xla_nb.wording import in_one_line

_LOCK_ADVICE = (  # the user's own, or inside a library's object
    "Use the `lock` parameter or a multiprocessing lock, or create the object that holds it inside "
    "the function"
)
_ADVICE = {
    "_thread.lock": _LOCK_ADVICE,
    "_thread.RLock": _LOCK_ADVICE,
    "socket": "Connect inside the function",
    "Connection": "Connect inside the function",
    "Cursor": "Connect inside the function",
    "'module' object": "Import it inside the function",
    "'_csv.reader'": "Create it inside the function, or send a list of its rows",
    "'_csv.writer'": "Create it inside the function",
    "'itertools.pairwise'": "Send a list of its items, or create it inside the function",
    "'_sre.SRE_Scanner'": "Send a list of its items, or create it inside the function",
    "'re.Match'": "Send what it matched, such as `m.group()` or `m.groupdict()`",
    "'_hashlib.HASH'": "Send its digest, or create it inside the function",
    "'_thread._local'": "Create it inside the function: its values belong to one thread",
}

#: Quoted from accelerate's own launchers.
TRAINING_FUNCTION = (
    "To launch a multi-device training from your notebook, the `Accelerator` should only be "
    "initialized inside your training function"
)

#: What a function should return instead, by `Unshippable.thing`.
_RESULT_ADVICE = {
    "an open file": "Return its path or its content",
    "an open socket": "Return the data received",
    "a generator": "Return a list of its items",
    "a dict view": "Return it as a list",
    "a thread": "Return what it computed",
}
#: Advice if the file of a result cannot be written.
_FULL_DISK = "Set XLA_NB_HOME to a folder with more free space, or return less"
_BAD_FOLDER = "Set XLA_NB_HOME to another folder, and keep that folder unchanged until the run ends"
_DESCRIPTORS = property, staticmethod, classmethod
_FILE = "an open file", "Open it inside the function"
_ITEMS = "a generator", "Send a list of its items, or create it inside the function"
_VIEW = "a dict view", "Send the dict, or the view as a list"
_STATE = "accelerate's state in the notebook, which is process 0 of 1", TRAINING_FUNCTION
_WIDGET = "a notebook widget", "Create it inside the function"
_ACTOR = (
    "a Ray actor handle",
    'Ranks connect to Ray themselves: name the actor (`.options(name="NAME", namespace="SPACE")`) '
    'and call `ray.init("auto", namespace="SPACE")` and `ray.get_actor("NAME")` inside the '
    "function",
)
_REF = "a Ray object reference", "Send the object that `ray.get` returns for it"
#: What is refused, by the name of a class or of its module: what it is, and what to do instead.
_REFUSED: dict[str, tuple[str, str]] = {
    "_io.TextIOWrapper": _FILE,
    "_io.BufferedReader": _FILE,
    "_io.BufferedWriter": _FILE,
    "_io.BufferedRandom": _FILE,
    "_io.FileIO": _FILE,
    "socket.socket": ("an open socket", "Connect inside the function"),
    "threading.Thread": ("a thread", "Start it inside the function"),
    "multiprocessing.process.BaseProcess": (
        "a process",
        "Start it inside the function, or send what you need, such as `p.pid`",
    ),
    "builtins.generator": _ITEMS,
    "builtins.coroutine": _ITEMS,
    "builtins.async_generator": _ITEMS,
    "builtins.dict_keys": _VIEW,
    "builtins.dict_values": _VIEW,
    "builtins.dict_items": _VIEW,
    "logging.Handler": (
        "a logging handler",
        "Create it inside the function and add it to its logger there",
    ),
    "unittest.mock.NonCallableMock": ("a mock", "Create it inside the function"),
    "accelerate.accelerator": _STATE,
    "accelerate.state": _STATE,
    "ipywidgets.widgets.widget": _WIDGET,
    "tqdm.notebook": _WIDGET,
    "xla_nb.run.recorded.RecordedRun": (
        "a run",
        "Assign what you need from it in the notebook (`values = run.results`) and use that",
    ),
    "ray.actor.ActorHandle": _ACTOR,
    "ray.util.client.common.ClientActorHandle": _ACTOR,
    "ray.ObjectRef": _REF,
    "ray._raylet.ObjectRef": _REF,
}
_MAX_DEPTH = 8  # levels of the path to a culprit
#: From a value to a part: each part on the way, with its path from the value.
Way: TypeAlias = Sequence[tuple[str, object]]
_OPTIMIZER_ADVICE = (
    "Create it inside the function from the model's parameters there; to keep its state, send "
    'an optimizer of the model after `.to("cpu")` that has loaded `{}.state_dict()`'
)


class Unshippable(TypeError):
    """Raised while pickling a value that is or contains `thing`; `advice` says what to do
    instead."""

    def __init__(self, thing: str, advice: str) -> None:
        super().__init__(f"it is or contains {thing}")
        self.thing = thing
        self.advice = advice


class OnDevice(Unshippable):
    """An Unshippable for a tensor or array on the notebook's own device. `fetch` is the expression
    that moves `{}` to the CPU, `use` what to do with it in the function."""

    def __init__(self, obj: object, thing: str, fetch: str, use: str) -> None:
        self._kind, self._fetch = type(obj), fetch
        self._use = f"{use}: ranks open the device themselves"
        super().__init__(thing, f"Send `{fetch.format('x')}`{self._use}")

    def advise(self, name: str, way: Way) -> str:
        """Fit the advice to the culprit, to which `way` leads in what code calls `name`. Returns
        its path: the optimizer, if the tensors belong to one."""
        optimizer = getattr(sys.modules.get("torch.optim"), "Optimizer", ())
        module = getattr(sys.modules.get("torch.nn"), "Module", ())
        path, part = next((step for step in way if isinstance(step[1], optimizer)), way[-1])
        code = (name + path).rpartition(code_facts.CLOSURE.format(""))[2]
        if isinstance(part, optimizer):
            self.advice = _OPTIMIZER_ADVICE.format(code)
        elif isinstance(part, module) or untrusted.name_of(type(part)) == "MpModelWrapper":
            self.advice = f'Call `{code}.to("cpu")` before the launch{self._use}'
        elif isinstance(part, self._kind):
            self.advice = f"Send `{self._fetch.format(code)}`{self._use}"
        return path


def described(value: object, origin: str = "") -> str:
    """Describe a variable's value and, if known, the line that defines it."""
    kind = f"{untrusted.module_of(type(value))}.{untrusted.name_of(type(value))}"
    if type(value) is types.MethodType:
        kind = f"the method `{untrusted.name_of(type(value.__self__))}.{value.__name__}`"
    return f"{kind}, defined in {origin}" if origin else kind


def fault_in_words(fault: BaseException) -> str:
    """Return in one line why something cannot be pickled, with the exception's name unless pickle
    usually raises it."""
    message = _message(fault).rstrip(".")
    if isinstance(fault, TypeError | AttributeError | pickle.PicklingError | OSError) and message:
        return in_one_line(message, 300)
    return in_one_line(f"{untrusted.name_of(type(fault))}: {message}".removesuffix(": "), 300)


def refusal(name: str, details: str, fault: BaseException, way: Way = (), code: str = "") -> str:
    """Return why a variable, `described` by `details`, cannot be sent, and what to do instead.
    `way` leads to the culprit in what code calls `code`, by default the variable's name."""
    message, path, code = fault_in_words(fault), way[-1][0] if way else "", code or name
    if isinstance(fault, OnDevice) and way:
        path = fault.advise(code, way)
    if isinstance(fault, Unshippable):
        message = f"{f'`{code}{path}`' if path else 'it'} is or contains {fault.thing}"
    elif path:
        message = f"`{code}{path}`: {message}"
    subject = f"`{name}`" if name else "the function"
    return f"Cannot send {subject} ({details}) to ranks: {message}. {advice(fault)}."


def _message(fault: BaseException) -> str:
    """Return an exception's message; torch passes values to be formatted in, which Python leaves
    apart."""
    first, *rest = fault.args or ("",)
    if rest and type(first) is str and "{}" in first:
        with contextlib.suppress(Exception):
            return first.format(*rest)
    return untrusted.message_of(fault)


def culprit(value: object, trail: Sequence[object]) -> Way:
    """Return the path from a value to the last part of `trail`, where pickling it failed, each part
    with its place: `["log"][0]`, `.file`, ` → data` (of a function's closure). It ends before a
    private attribute."""
    order = {id(part): number for number, part in enumerate(trail)}
    found = {order[id(part)]: way for part, way in code_facts.ways(value, order.keys())}
    steps: list[tuple[str, object]] = [("", value)]
    for (place, name), part in found[max(found)][:_MAX_DEPTH] if found else ():
        if place == code_facts.ATTRIBUTE and name[:1] == "_" and name != "__self__":
            break
        steps.append((steps[-1][0] + place.format(name), part))
    return steps


def advice(fault: BaseException) -> str:
    """Return what to do instead of sending the value that raised `fault`."""
    if isinstance(fault, Unshippable):
        return fault.advice
    message = untrusted.message_of(fault)
    known = next((text for key, text in _ADVICE.items() if key in message), None)
    return known or "Create it inside the function, or pass what it is built from"


def advice_on_result(fault: BaseException) -> str:
    """Return what to do instead of returning the value that raised `fault`."""
    if isinstance(fault, Unshippable):
        return _RESULT_ADVICE.get(fault.thing, fault.advice)
    if not isinstance(fault, OSError):
        return "Return numbers, arrays or CPU tensors instead"
    if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _FULL_DISK
    return shortage(fault.errno).removesuffix(".") or _BAD_FOLDER


def refused(kind: type) -> tuple[str, str] | None:
    """Return what the instances of a class are and what to do instead if they are refused; None if
    not: subclasses may define how theirs are pickled."""
    for base in kind.__mro__:
        known = _REFUSED.get(f"{base.__module__}.{base.__qualname__}")
        known = known or _REFUSED.get(base.__module__)
        if known and code_facts.is_pickled_as(kind, base):
            return known
    if issubclass(kind, _DESCRIPTORS) and kind not in _DESCRIPTORS:
        thing = f"a `{kind.__qualname__}`, a custom property or method type"
        return thing, "Move the class that has it to a file that the notebook imports"
    return None


def reduce_stream(obj: object) -> Any:
    """Reduce a standard stream to that of the process that opens the pickle."""
    for name in ("stdout", "stderr", "stdin"):
        if obj is getattr(sys, name):
            return getattr, (sys, name)
    return NotImplemented


#: Functions that ipykernel replaces while a cell runs, by the names of its methods.
_PROMPTS = {"raw_input": (builtins, "input"), "getpass": (getpass, "getpass")}


def reduce_tee(function: types.FunctionType) -> Any:
    """Reduce IPython's replacement of a stream's `write` while a cell runs to the rank's
    `write`."""
    if function.__qualname__ != "InteractiveShell._tee.<locals>.write":
        return NotImplemented
    return getattr, (getattr(sys, rebuild.contents(function)["channel"]), "write")


def reduce_method(method: types.MethodType) -> Any:
    """Reduce a method of a standard stream to that of the rank's stream, which has another class,
    and the kernel's prompts to those of the rank."""
    if any(method.__self__ is stream for stream in (sys.stdout, sys.stderr, sys.stdin)):
        return getattr, (method.__self__, method.__name__)
    if type(method.__self__).__module__.startswith("ipykernel.") and method.__name__ in _PROMPTS:
        return getattr, _PROMPTS[method.__name__]
    return NotImplemented
