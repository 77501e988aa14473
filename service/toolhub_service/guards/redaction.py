"""What hides the secrets of a text, for whoever needs no more of the redactor (`secrets`) than that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Redact: TypeAlias = Callable[[str], str]
"""The text without the secrets that the hub knows or recognises."""
