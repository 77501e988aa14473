"""What comes back from a call: an answer to look at, or an exception by the caller's choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec
from google.protobuf.json_format import MessageToDict

from toolhub.v1 import plan_pb2, progress_pb2, result_pb2, tool_service_pb2
from toolhub_client.failures import CallFailed, call_failed

Progress = progress_pb2.Progress
Chunk = progress_pb2.Chunk
Model = TypeVar("Model")


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """The result of one call. `result` is the whole message; the rest is convenience."""

    result: result_pb2.ToolResult

    @property
    def ok(self) -> bool:
        return self.result.ok

    @property
    def call_id(self) -> str:
        """Names the call in the audit log and in traces."""
        return self.result.call_id

    @property
    def request_id(self) -> str:
        """The request that the call belongs to: calls that send it see the same files."""
        return self.result.request_id

    @property
    def value(self) -> Any:
        """The tool's answer as Python values; None when it failed or became a job. Of a call through a face the face's
        answer, whatever became of the call."""
        match self.result.WhichOneof("result"):
            case "result_json":
                return json.loads(self.result.result_json)
            case "result_struct":
                return MessageToDict(self.result.result_struct)
            case _:
                return None

    @property
    def error(self) -> CallFailed | None:
        """Why the call did not succeed; None when it did."""
        return None if self.result.ok else call_failed(self.result.error, self.result.call_id)

    @property
    def job_id(self) -> str:
        """The job that carries the call on; empty when there is none."""
        return self.result.job.job_id

    @property
    def evidence(self) -> Sequence[result_pb2.Evidence]:
        return self.result.evidence

    @overload
    def unwrap(self) -> Any: ...
    @overload
    def unwrap(self, as_: type[Model]) -> Model: ...
    def unwrap(self, as_: Any = None) -> Any:
        """The value, as an instance of `as_` where that is given: a pydantic model, a dataclass, a TypedDict, or any
        type that msgspec converts to. Raises CallFailed when the call did not succeed, and pydantic's or msgspec's
        ValidationError when the value does not fit."""
        if (error := self.error) is not None:
            raise error
        if as_ is None:
            return self.value
        validate = getattr(as_, "model_validate", None)
        return msgspec.convert(self.value, as_) if validate is None else validate(self.value)

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Answer({self.error!r})"
        what = f"job_id={self.job_id!r}" if self.job_id else _shortened(repr(self.value))
        return f"Answer({self.result.tool}: {what}, call_id={self.call_id!r})"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


@dataclass(frozen=True, slots=True, repr=False)
class DryRun:
    """What a call would do now. Nothing has happened; `Hub.commit` does exactly this."""

    request: tool_service_pb2.InvokeRequest
    plan: plan_pb2.Plan

    @property
    def ok(self) -> bool:
        """Whether the call would run."""
        return self.error is None

    @property
    def error(self) -> CallFailed | None:
        """What would stop it; PLAN_REQUIRED, which committing answers, does not count."""
        for step in self.plan.steps:
            if not step.ok and not self.plan.plan_digest:
                return call_failed(step.error, self.plan.call_id)
        return None

    @property
    def effects(self) -> Sequence[str]:
        """What it would do, one sentence each."""
        return self.plan.effects

    @property
    def plan_digest(self) -> str:
        """Binds the call to this plan; empty when the call would be refused."""
        return self.plan.plan_digest

    def __repr__(self) -> str:
        what = repr(self.error) if self.error is not None else f"effects={list(self.effects)!r}"
        return f"DryRun({self.plan.tool}: {what})"
