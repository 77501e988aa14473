"""Which prompts of one source are to be stopped, and how far that has come: shared by who asks and who follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Stops:
    """Sets of prompt ids."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        """Somebody has cancelled them."""
        self.overran: set[str] = set()
        """They ran for longer than their templates allow."""
        self.removed: set[str] = set()
        """Servers have taken them out for us."""
        self._under_way: set[str] = set()

    @contextmanager
    def asking(self, prompt_id: str) -> Iterator[None]:
        """While a server is asked: that it does not know the prompt may then be our own doing."""
        self._under_way.add(prompt_id)
        try:
            yield
        finally:
            self._under_way.discard(prompt_id)

    def is_under_way(self, prompt_id: str) -> bool:
        return prompt_id in self._under_way

    def forget(self, prompt_id: str) -> None:
        for known in (self.wanted, self.overran, self.removed):
            known.discard(prompt_id)
