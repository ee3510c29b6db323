"""A number and its noun.

The rule: English that adds an s; what needs other words writes them itself.
"""


def several(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
