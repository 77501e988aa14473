"""What comes back from a call: an answer to look at, or an exception by the caller's choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict

from toolhub.v1 import error_pb2, progress_pb2, result_pb2
from toolhub_client.errors import ADVICE

Progress = progress_pb2.Progress
Chunk = progress_pb2.Chunk


class CallFailed(Exception):
    """A call was judged or ran and did not succeed. `str()` is the hub's message for the model."""

    def __init__(self, error: error_pb2.ToolError, call_id: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.call_id = call_id

    @property
    def kind(self) -> str:
        """Such as `ErrorKind.POLICY_DENIED`; of a newer hub, a name that this client does not know."""
        return error_pb2.ErrorKind.Name(self.error.kind).removeprefix("ERROR_KIND_")

    @property
    def advice(self) -> str:
        """What a model should do about an error of this kind; empty when the kind is unknown."""
        return ADVICE.get(self.kind, "")

    @property
    def retryable(self) -> bool:
        return self.error.retryable

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait; None when waiting does not help or is unknown."""
        return self.error.retry_after.ToMicroseconds() / 1e6 if self.error.HasField("retry_after") else None

    @property
    def violations(self) -> Sequence[error_pb2.Violation]:
        """Every broken rule of the input schema: `path`, `message`, `hint`, for the model to repair the call from."""
        return self.error.violations

    @property
    def details(self) -> dict[str, Any]:
        """Facts for repair, such as `approval_id`, `rule_id`, `allowed_hosts`."""
        return MessageToDict(self.error.details)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call. `result` is the whole message; the rest is convenience."""

    result: result_pb2.ToolResult

    @property
    def ok(self) -> bool:
        return self.result.ok

    @property
    def call_id(self) -> str:
        return self.result.call_id

    @property
    def value(self) -> Any:
        """The tool's answer as Python values; None when it failed or became a job."""
        match self.result.WhichOneof("result"):
            case "result_json":
                return orjson.loads(self.result.result_json)
            case "result_struct":
                return MessageToDict(self.result.result_struct)
            case _:
                return None

    @property
    def error(self) -> CallFailed | None:
        return None if self.result.ok else CallFailed(self.result.error, self.result.call_id)

    @property
    def job_id(self) -> str:
        """The job that carries the call on; empty when there is none."""
        return self.result.job.job_id

    @property
    def evidence(self) -> Sequence[result_pb2.Evidence]:
        return self.result.evidence

    def unwrap(self) -> Any:
        """The value. Raises CallFailed when the call did not succeed."""
        if not self.result.ok:
            raise CallFailed(self.result.error, self.result.call_id)
        return self.value
