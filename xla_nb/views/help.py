"""What `name?` shows of an object on a rank, in IPython's words."""

from __future__ import annotations

from xla_nb import ansi
from xla_nb.protocol.inspection import About


def as_text(about: About, rank: int) -> str:
    """With IPython's headings, in its order; the first line says whose object it is."""
    if not about.found:
        return f"Object `{about.name}` not found on rank {rank}."
    lines = [f"On rank {rank}"]
    lines += _field("Signature", f"{about.name}{about.signature}" if about.signature else "")
    init = f"{about.name}{about.init_signature}" if about.init_signature else ""
    lines += _field("Init signature", init)
    if not about.source:
        lines += _field("Docstring", about.doc)
        lines += _field("Init docstring", about.init_doc)
    lines += _field("Type", about.type)
    lines += _field("String form", about.text)
    lines += _field("Length", about.length)
    lines += _field("File", f"{about.file}, line {about.line}" if about.line else about.file)
    lines += _field("Source", about.source)
    return "\n".join(lines)


def _field(title: str, text: str) -> list[str]:
    lines = [ansi.plain(line) for line in text.split("\n")]
    if not text:
        return []
    return [f"{title}:", *lines] if len(lines) > 1 else [f"{title + ':':<16}{lines[0]}"]
