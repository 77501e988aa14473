from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.fakes.artifacts import kept_in, whole
from tests.ports.adapter_suite import SILENT, AdapterSuite, Prepared, RecordingSink, granted
from tests.unit.adapters.small_tools import Asks, Crashes, Echo, KeepsArtifact, LaysEvidence, Refuses, Waits
from toolhub_service.adapters.core import CoreAdapter, Workspaces, WorkspaceSharing
from toolhub_service.domain.call import ExecContext, QuestionAsked, Reply
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.tools.tool import spec_of


def adapter_of(folder: Path, *tools: object) -> CoreAdapter:
    return CoreAdapter([], Workspaces(str(folder)), custom_tools=tools)  # type: ignore[arg-type]


def spec(tool: object) -> ToolSpec:
    return spec_of(tool, source="custom")  # type: ignore[arg-type]


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestCoreAdapter(AdapterSuite):
    @pytest.fixture
    async def prepared(self, tmp_path: Path) -> Prepared:
        waits = Waits()
        tools = (Echo(), Refuses(), Crashes(), waits)
        echo, refuses, crashes, waiting = map(spec, tools)
        return Prepared(
            adapter=adapter_of(tmp_path, *tools),
            echo=echo,
            refuses=refuses,
            crashes=crashes,
            waits=waiting,
            started=waits.started,
            let_go=waits.let_go,
            stopped=waits.stopped,
        )


async def test_evidence_reports_and_marks_travel_with_the_outcome(tmp_path: Path) -> None:
    tool, sink = LaysEvidence(), RecordingSink()
    outcome = await adapter_of(tmp_path, tool).execute(granted(spec(tool), {"text": "text"}), sink)
    (evidence,) = outcome.evidence
    assert (evidence.type, evidence.ref, evidence.attributes) == (EvidenceType.FILE, "note.txt", {"size": "4"})
    assert outcome.truncated
    assert sink.progresses[0].total == 2
    assert sink.chunks[0].data == b"half"


async def test_the_workspace_is_made_only_when_a_tool_asks_and_closed_afterwards(tmp_path: Path) -> None:
    quiet, writes = Echo(), LaysEvidence()
    adapter = adapter_of(tmp_path, quiet, writes)
    await adapter.execute(granted(spec(quiet), {"text": "x"}), SILENT)
    assert entries(tmp_path) == []
    before = len(entries(Path("/proc/self/fd")))
    await adapter.execute(granted(spec(writes), {"text": "x"}), SILENT)
    assert (tmp_path / "tester" / "request-1" / "note.txt").read_text() == "x"
    assert len(entries(Path("/proc/self/fd"))) == before


async def test_results_are_plain_json_in_camel_case(tmp_path: Path) -> None:
    tool = Echo()
    outcome = await adapter_of(tmp_path, tool).execute(granted(spec(tool), {"text": "x"}, call_id="c9"), SILENT)
    assert outcome.value == {"text": "x", "callId": "c9"}


@pytest.mark.parametrize(
    ("args", "path", "word"),
    [({"text": 7}, "/text", "`str`"), ({"maxChars": "many"}, "/maxChars", "`int`"), ({"tekst": "x"}, "", "`tekst`")],
)
async def test_arguments_that_do_not_fit_are_refused_with_their_path(
    tmp_path: Path, args: JsonObject, path: str, word: str
) -> None:
    tool = Echo()
    with pytest.raises(ToolFailure) as caught:
        await adapter_of(tmp_path, tool).execute(granted(spec(tool), args), SILENT)
    error = caught.value.error
    assert error.kind is ErrorKind.INVALID_INPUT
    assert error.violations[0].path == path
    assert word in error.message


async def test_a_tool_that_exits_does_not_take_the_hub_along(tmp_path: Path) -> None:
    tool = Crashes()
    with pytest.raises(ToolFailure) as caught:
        await adapter_of(tmp_path, tool).execute(granted(spec(tool), {"text": "exit"}), SILENT)
    assert caught.value.error.kind is ErrorKind.INTERNAL
    assert isinstance(caught.value.__cause__, SystemExit)


async def test_a_tool_that_is_listed_but_not_loaded_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure) as caught:
        await adapter_of(tmp_path).execute(granted(spec(Echo())), SILENT)
    assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE


def test_a_plan_of_a_tool_states_its_effects_and_its_upstream(tmp_path: Path) -> None:
    tool = LaysEvidence()
    adapter, call = adapter_of(tmp_path, tool), granted(spec(tool), {"text": "abc"})
    planned = call.planned
    assert adapter.effects(call) == ("Write 3 characters to note.txt.",)
    assert adapter.upstream(planned) == "disk:abc"
    assert adapter.has_side_effects(planned)
    assert not adapter.has_side_effects(granted(spec(tool), {"text": ""}).planned)


def test_a_tool_without_an_upstream_of_its_own_is_its_own(tmp_path: Path) -> None:
    tool = Echo()
    assert adapter_of(tmp_path, tool).upstream(granted(spec(tool), {"text": "x"}).planned) == "test/text.echo"


def test_a_crash_while_planning_keeps_its_text_to_itself(tmp_path: Path) -> None:
    tool = Crashes()
    with pytest.raises(ToolFailure) as caught:
        adapter_of(tmp_path, tool).effects(granted(spec(tool), {"text": "hunter2"}))
    assert caught.value.error.kind is ErrorKind.INTERNAL
    assert "hunter2" not in repr(caught.value.error)


def test_specs_distinguish_built_in_from_custom(tmp_path: Path) -> None:
    adapter = CoreAdapter([Echo()], Workspaces(str(tmp_path)), custom_tools=[LaysEvidence()])
    assert [(one.name, one.source, one.kind) for one in adapter.specs()] == [("test/text.echo", "core", ToolKind.CORE)]
    assert [one.source for one in adapter.custom_specs()] == ["custom"]


async def test_whole_floats_are_integers_as_json_schema_has_it(tmp_path: Path) -> None:
    tool = Echo()
    outcome = await adapter_of(tmp_path, tool).execute(granted(spec(tool), {"text": "x", "maxChars": 5.0}), SILENT)
    assert outcome.value == {"text": "x", "callId": "call-1"}


async def test_ids_of_any_characters_stay_beneath_the_root(tmp_path: Path) -> None:
    tool = LaysEvidence()
    call = granted(spec(tool), {"text": "x"}, principal="../../etc", context=ExecContext(request_id="/a/../b"))
    outcome = await adapter_of(tmp_path / "all", tool).execute(call, SILENT)
    assert outcome.value["text"].startswith(f"{tmp_path}/all/")  # type: ignore[call-overload,index,union-attr]
    assert entries(tmp_path) == ["all"]


@pytest.mark.parametrize(
    ("sharing", "folders"),
    [
        (WorkspaceSharing.REQUEST, ("tester", "r1")),
        (WorkspaceSharing.SESSION, ("tester", "s1")),
        (WorkspaceSharing.PRINCIPAL, ("tester",)),
        (WorkspaceSharing.SHARED, ()),
    ],
)
def test_configuration_sets_which_calls_share_a_folder(
    sharing: WorkspaceSharing, folders: tuple[str, ...], tmp_path: Path
) -> None:
    call = granted(spec(Echo()), context=ExecContext(request_id="r1", session_id="s1")).call
    assert Workspaces(str(tmp_path), sharing).folders(call) == folders
    assert entries(tmp_path) == []  # asking makes nothing


def test_a_call_without_a_session_has_its_requests_folder() -> None:
    call = granted(spec(Echo()), context=ExecContext(request_id="r1")).call
    assert Workspaces("/root", WorkspaceSharing.SESSION).folders(call) == ("tester", "r1")


def test_execute_is_a_coroutine_function_so_that_no_task_is_needed() -> None:
    assert inspect.iscoroutinefunction(CoreAdapter.execute)


async def test_tools_keep_large_outputs_in_the_name_of_their_call(tmp_path: Path) -> None:
    kept = kept_in(tmp_path / "blobs")
    tool = KeepsArtifact()
    adapter = CoreAdapter([], Workspaces(str(tmp_path)), custom_tools=[tool], artifact_service=kept.artifacts)
    call = granted(spec(tool), {"text": "large"})
    (ref,) = (await adapter.execute(call, SILENT)).artifacts
    artifact = await kept.artifacts.open(call.call.principal.id, ref.artifact_id)
    assert artifact.call_id == call.call.call_id
    assert await whole(kept.artifacts, artifact) == b"large"


async def test_tool_of_a_hub_without_artifacts_keeps_nothing_and_goes_on(tmp_path: Path) -> None:
    tool = KeepsArtifact()
    outcome = await adapter_of(tmp_path, tool).execute(granted(spec(tool), {"text": "large"}), SILENT)
    assert outcome.artifacts == ()


async def test_a_tools_questions_are_asked_one_after_another_until_all_are_answered(tmp_path: Path) -> None:
    tool = Asks()
    adapter, call = adapter_of(tmp_path, tool), granted(spec(tool), {"text": "paint"})
    messages, reply = [], None
    for answer in ({}, {"how": "slowly"}):
        with pytest.raises(QuestionAsked) as caught:
            await adapter.execute(call._replace(reply=reply), SILENT)
        messages.append(caught.value.question.message)
        reply = Reply(answer, caught.value.question.continuation)
    assert messages == ["May I paint?", "How?"]
    outcome = await adapter.execute(call._replace(reply=reply), SILENT)
    assert outcome.value == {"text": "0 slowly", "callId": ""}
