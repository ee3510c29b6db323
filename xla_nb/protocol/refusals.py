"""Why a value of the notebook cannot be sent to ranks, by its variable's name."""

from __future__ import annotations

from xla_nb.wording import in_one_line

_ADVICE = {
    "_thread.lock": "Use the `lock` parameter, or a lock of multiprocessing",
    "_thread.RLock": "Use the `lock` parameter, or a lock of multiprocessing",
    "socket": "Connect inside the function",
    "Connection": "Connect inside the function",
    "Cursor": "Connect inside the function",
    "'module' object": "Import it inside the function",
}


class Unshippable(TypeError):
    """Raised while pickling a value that is or contains `thing`; `advice` is what to do instead."""

    def __init__(self, thing: str, advice: str) -> None:
        super().__init__(f"it is or contains {thing}")
        self.advice = advice


def described(value: object, origin: str = "") -> str:
    """The type of a variable's value, and the cell that defines it, where it is known."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{kind}, defined in {origin}" if origin else kind


def refusal(name: str, details: str, fault: Exception) -> str:
    """Why a variable, `described` by `details`, cannot be sent, and what to do instead."""
    told = in_one_line(str(fault), 300).rstrip(".")
    return f"Cannot send `{name}` ({details}) to ranks: {told}. {advice(fault)}."


def advice(fault: BaseException) -> str:
    """What to do instead of sending the value that raised `fault`."""
    if isinstance(fault, Unshippable):
        return fault.advice
    known = next((text for key, text in _ADVICE.items() if key in str(fault)), None)
    return known or "Create it inside the function, or pass what it is built from"
