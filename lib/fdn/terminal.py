"""Standard streams that can print every character, and that drop it where the caller has closed them."""

from __future__ import annotations

import codecs
import os
import sys

PLAIN = {
    "–": "-", "—": "-", "−": "-", "…": "...", "·": ".", "’": "'", "′": "'", "“": '"', "”": '"',
    "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "≫": ">>", "±": "+-", "×": "x", "²": "^2",
    "Δ": "Delta ", "β": "beta", "ρ": "rho", "ℓ": "l",
}  # fmt: skip


def open_streams() -> None:
    """Make standard output and error fit to print to, whatever their encoding and whether they are open."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, who wants to hear nothing
            stream = open(os.devnull, "w", encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)  # in the place of the closed one
            setattr(sys, name, stream)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """The first character that an encoding lacks: in plain signs, as the byte it was in a file's name, or escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode("ascii"), error.start + 1


codecs.register_error("plain", _plain)
