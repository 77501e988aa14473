"""What a source needs that does not stand in its file: resolved, and taught to the redactor before anything uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from toolhub_service.app.sources_file import resolve_value
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.sources import SecretRef, Value

_MIN_CHARS = 8
"""`TOKEN: none` must not blank every `none` of a log."""


def shown(value: Value) -> str:
    """In the place of a value that stands elsewhere: where."""
    return value if isinstance(value, str) else f"{value.prefix}{{{value.env or value.file}}}"


class SourceValues:
    """Reads values of one source."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def of(self, named: Mapping[str, Value]) -> dict[str, str]:
        """Every value by its name. Raises ValueMissing, which never holds a value."""
        return {name: self.one(value, is_secret=is_secret_name(name)) for name, value in named.items()}

    def all(self, values: Iterable[Value]) -> tuple[str, ...]:
        """Of which those that stand elsewhere are secret. Raises ValueMissing."""
        return tuple(self.one(value, is_secret=False) for value in values)

    def one(self, value: Value, *, is_secret: bool = True) -> str:
        """Raises ValueMissing."""
        text = resolve_value(value)
        if isinstance(value, SecretRef) or is_secret:
            words = {text, text.rpartition(" ")[2]}  # `Bearer x` is as secret as x
            self._redactor.learn(word for word in words if len(word) >= _MIN_CHARS)
        return text
