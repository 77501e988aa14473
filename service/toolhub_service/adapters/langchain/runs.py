"""What happens inside a call, for the trace: nested runs of tools, models, chains and retrievers, without any value.

A callback handler writes down name, kind, times and parent of each run; the hub makes spans of them afterwards, the
same way for a call on its own loop and for one in a worker. LangChain's run of the called tool itself is left out: the
hub's span `execute_tool` stands for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

RUNS_MAX: Final = 200
"""Of one call; further ones are not told."""
_NAME_CHARS: Final = 100


class RunRecorder(BaseCallbackHandler):
    """Records one call."""

    run_inline = True
    """Called where the run happens: it is quick, and an executor would lose the order."""

    def __init__(self) -> None:
        self._records: list[list[Any]] = []
        self._places: dict[UUID, int] = {}
        self._called: UUID | None = None
        """The run of the called tool itself: the first. A tool that passes its own config on hides the parent of what
        it runs inside, which then counts as this one's."""

    def records(self) -> list[list[Any]]:
        """`[kind, name, start_ns, end_ns, parent, error]` each, wall clock; `parent`: place in this list, or -1.

        A run that has not ended ends now.
        """
        now_ns = time.time_ns()
        return [[*record[:3], record[3] or now_ns, *record[4:]] for record in self._records]

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._begin("execute_tool", serialized, run_id, parent_run_id, kwargs)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._begin("invoke_chain", serialized, run_id, parent_run_id, kwargs)

    def on_llm_start(
        self, serialized: Any, prompts: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._begin("text_completion", serialized, run_id, parent_run_id, kwargs)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._begin("chat", serialized, run_id, parent_run_id, kwargs)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._begin("retrieval", serialized, run_id, parent_run_id, kwargs)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def _begin(
        self, kind: str, serialized: Any, run_id: UUID, parent_run_id: UUID | None, about: Mapping[str, Any]
    ) -> None:
        if self._called is None:
            self._called = run_id
        elif len(self._records) < RUNS_MAX:
            parent = -1 if parent_run_id is None else self._places.get(parent_run_id, -1)
            self._places[run_id] = len(self._records)
            self._records.append([kind, _name(serialized, about), time.time_ns(), 0, parent, ""])

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        place = self._places.get(run_id)
        if place is not None:
            record = self._records[place]
            record[3] = time.time_ns()
            record[5] = "" if error is None else type(error).__name__


def _name(serialized: Any, about: Mapping[str, Any]) -> str:
    named = about.get("name") or (serialized.get("name") if isinstance(serialized, Mapping) else None) or ""
    return str(named)[:_NAME_CHARS].encode("utf-8", "replace").decode()
