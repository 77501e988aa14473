"""Records name, kind, times and parent of each nested run of tools, models, chains and retrievers, but no values.

The hub makes spans from these records afterwards, whether the call ran on its own loop or in a worker. LangChain's run
of the called tool itself is left out: it is the hub's span `execute_tool`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

RUNS_MAX: Final = 200  # per call; further ones are not recorded
_NAME_CHARS: Final = 100


class RunRecorder(BaseCallbackHandler):
    """Records one call."""

    run_inline = True
    """Called where the run happens: it is fast, and an executor would change the order."""

    def __init__(self) -> None:
        self._records: list[list[Any]] = []
        self._indexes: dict[UUID, int] = {}
        # The run of the called tool itself: the first. If a tool passes its own config on, the parent of its nested
        # runs is unknown, and they count as this one's.
        self._called: UUID | None = None

    def records(self) -> list[list[Any]]:
        """Return a list of `[kind, name, start_ns, end_ns, parent, error]`, wall clock; `parent`: index in this list,
        or -1.

        A run that has not ended ends now.
        """
        now_ns = time.time_ns()
        return [[*record[:3], record[3] or now_ns, *record[4:]] for record in self._records]

    def on_tool_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("execute_tool", serialized, **about)

    def on_chain_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("invoke_chain", serialized, **about)

    def on_llm_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("text_completion", serialized, **about)

    def on_chat_model_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("chat", serialized, **about)

    def on_retriever_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("retrieval", serialized, **about)

    def on_tool_end(self, output: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id, error)

    on_chain_error = on_llm_error = on_retriever_error = on_tool_error

    def _begin(
        self, kind: str, serialized: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **about: Any
    ) -> None:
        if self._called is None:
            self._called = run_id
        elif len(self._records) < RUNS_MAX:
            parent = -1 if parent_run_id is None else self._indexes.get(parent_run_id, -1)
            self._indexes[run_id] = len(self._records)
            self._records.append([kind, _name(serialized, about), time.time_ns(), 0, parent, ""])

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        index = self._indexes.get(run_id)
        if index is not None:
            record = self._records[index]
            record[3] = time.time_ns()
            record[5] = "" if error is None else type(error).__name__


def _name(serialized: Any, about: Mapping[str, Any]) -> str:
    named = about.get("name") or (serialized.get("name") if isinstance(serialized, Mapping) else None) or ""
    # A lone surrogate cannot be encoded as JSON, and the whole reply would be lost for a span's name.
    return str(named)[:_NAME_CHARS].encode("utf-8", "replace").decode()
