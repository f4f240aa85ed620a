"""The one exception that a person at the keyboard is meant to read."""

from __future__ import annotations


class UserError(ValueError):
    """A request that cannot be carried out as given; the message says what was given, expected and to do.

    The command line prints the message as one sentence and exits with status 2.
    """
