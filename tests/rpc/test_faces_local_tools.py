"""The face local-tools through a whole hub: its examples, its eight codes, and what it makes of identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.fakes.http_server import RecordedRequest, response
from tests.free_port import free_port
from tests.hub import request
from tests.rpc.faces_hub import code_of, faced_hub
from toolhub.v1 import error_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_client import Hub
from toolhub_client.sync import connect_sync

FACE = (("toolhub-face", "local-tools"),)


async def web(asked: RecordedRequest, writer: Any) -> bool:
    """JSON, text, what was sent, or nothing."""
    if asked.target == "/silent":
        await asked.reader.read()
        return False
    bodies = {"/json": b'{"answer": 42}', "/text": b"plain text", "/echo": asked.body}
    writer.write(response(bodies[asked.target]))
    await writer.drain()
    return True


async def ran(client: Hub, tool: str, **args: Any) -> Any:
    """The answer to the request that the runner of local-tools takes."""
    return await client.face("local-tools").run({"tool": tool, "args": {"user_id": "local", **args}})


async def output(client: Hub, tool: str, **args: Any) -> Any:
    answer = await ran(client, tool, **args)
    assert set(answer) == {"success", "output"}, answer
    assert answer["success"] is True
    return answer["output"]


@pytest.mark.promise("faces.local-tools")
async def test_each_tool_answers_as_its_contract_states(tmp_path: Path) -> None:
    async with faced_hub(tmp_path, web) as (hub, client, server):
        text = "文件内容字符串"
        assert await output(client, "FileWrite", path="a/文件.txt", content=text) == {"path": "a/文件.txt"}
        assert await output(client, "FileRead", path="a/文件.txt") == {"content": text}
        assert await output(client, "FileRead", path="a/文件.txt", encoding="utf-8") == {"content": text}
        written = await output(client, "FileWrite", path="a/文件.txt", content="二", encoding="gb18030", overwrite=True)
        assert written == {"path": "a/文件.txt"}
        assert (hub.workspace("faces") / "a/文件.txt").read_bytes() == "二".encode("gb18030")
        await output(client, "FileWrite", path=".hidden", content="")
        await output(client, "FileWrite", path="empty.txt", content="", encoding=None)
        assert await output(client, "FileRead", path="empty.txt") == {"content": ""}
        entries = (await output(client, "ListDirectory", path="."))["entries"]
        assert [(entry["name"], entry["type"]) for entry in entries] == [("a", "directory"), ("empty.txt", "file")]
        assert set(entries[1]) == {"name", "type", "size", "last_modified"}
        assert entries[1]["size"] == 0
        assert entries[1]["last_modified"].endswith("Z")
        hidden = (await output(client, "ListDirectory", path=".", include_hidden=True))["entries"]
        assert hidden[0]["name"] == ".hidden"
        (hub.workspace("faces") / "bare").mkdir()
        assert await output(client, "ListDirectory", path="bare") == {"entries": []}
        run = await output(client, "ExecuteCommand", cmd="cat empty.txt", cwd=".", timeout=60)
        assert run == {"stdout": "", "stderr": "", "exit_code": 0}
        failed = await output(client, "ExecuteCommand", cmd="cat none.txt")
        assert (failed["exit_code"], failed["stdout"]) == (1, "")  # a non-zero exit is a result
        assert "none.txt" in failed["stderr"]
        got = await output(client, "HTTPRequest", url=server.url("/json"))
        assert (got["status_code"], got["body"]) == (200, {"answer": 42})
        assert got["headers"]["content-length"] == "14"
        got = await output(
            client, "HTTPRequest", url=server.url("/text"), method="GET", headers={"X-A": "b"}, timeout=30
        )
        assert (got["body"], server.asked[-1].headers["x-a"]) == ("plain text", "b")
        got = await output(client, "HTTPRequest", url=server.url("/echo"), method="POST", body={"a": [1, "二"]})
        assert got["body"] == {"a": [1, "二"]}
        got = await output(client, "HTTPRequest", url=server.url("/echo"), method="POST", body="as it is")
        assert got["body"] == "as it is"
        # Not a folder, and still no error: the file goes.
        deleted = await output(client, "FileDelete", path="empty.txt", recursive=True)
        assert deleted == {"deleted": True, "files": 1, "folders": 0}
        assert (await output(client, "FileDelete", path="bare"))[
            "folders"
        ] == 1  # an empty folder goes without recursive
        assert code_of(await ran(client, "FileDelete", path="a")) in {
            "INVALID_INPUT",
            "IO_ERROR",
        }  # a full one does not
        assert (await output(client, "FileDelete", path="a", recursive=True))["files"] == 1
        calls = [event for event in await hub.events() if event.event.tool == "core/fs.readText"]
        assert {event.event.user_id for event in calls} == {"local"}


@pytest.mark.promise("faces.local-tools")
async def test_each_of_the_eight_codes_comes_through_the_wire_with_the_truth_in_its_details(tmp_path: Path) -> None:
    port = free_port()
    async with faced_hub(tmp_path, web, ports=(port,)) as (_, client, server):
        await output(client, "FileWrite", path="there.txt", content="x")
        closed = f"http://127.0.0.1:{port}/"
        cases: list[tuple[str, str, str, dict[str, Any]]] = [
            ("PERMISSION_DENIED", "POLICY_DENIED", "FileRead", {"path": "there.txt", "user_id": "mallory"}),
            ("PERMISSION_DENIED", "POLICY_DENIED", "ExecuteCommand", {"cmd": "bash -c id"}),
            ("PERMISSION_DENIED", "APPROVAL_REQUIRED", "FileWrite", {"path": "press/a.txt", "content": "x"}),
            ("PERMISSION_DENIED", "HTTP_DISALLOWED_HOST", "HTTPRequest", {"url": "http://169.254.169.254/"}),
            ("NOT_FOUND", "NOT_FOUND", "FileRead", {"path": "none.txt"}),
            ("NOT_FOUND", "NOT_FOUND", "ListDirectory", {"path": "none"}),
            ("NOT_FOUND", "NOT_FOUND", "FileDelete", {"path": "none"}),
            ("NOT_FOUND", "TOOL_NOT_FOUND", "FileRaed", {"path": "there.txt"}),
            ("INVALID_INPUT", "PATH_OUTSIDE_SANDBOX", "FileRead", {"path": "../../etc/passwd"}),
            ("INVALID_INPUT", "PATH_OUTSIDE_SANDBOX", "FileWrite", {"path": "/etc/cron.d/x", "content": ""}),
            ("INVALID_INPUT", "PATH_OUTSIDE_SANDBOX", "ExecuteCommand", {"cmd": "cat a", "cwd": "/usr/bin"}),
            ("INVALID_INPUT", "INPUT_SCHEMA_INVALID", "FileRead", {}),
            ("INVALID_INPUT", "INPUT_SCHEMA_INVALID", "FileRead", {"path": "a", "user_id": ""}),
            ("INVALID_INPUT", "INPUT_SCHEMA_INVALID", "FileWrite", {"path": "a", "content": 7}),
            ("INVALID_INPUT", "INPUT_SCHEMA_INVALID", "FileRead", {"path": "a", "maxBytes": 2_000}),
            ("INVALID_INPUT", "INVALID_INPUT", "ExecuteCommand", {"cmd": ""}),
            ("INVALID_INPUT", "INVALID_INPUT", "ExecuteCommand", {"cmd": "cat a; rm -rf /"}),
            ("INVALID_INPUT", "INVALID_INPUT", "HTTPRequest", {"url": "file:///etc/passwd"}),
            ("INVALID_INPUT", "INVALID_INPUT", "HTTPRequest", {"url": "not a url"}),
            ("ALREADY_EXISTS", "ALREADY_EXISTS", "FileWrite", {"path": "there.txt", "content": "y"}),
            ("TIMEOUT", "OUTCOME_UNKNOWN", "ExecuteCommand", {"cmd": "sleep 60", "timeout": 0.2}),
            ("TIMEOUT", "HTTP_TIMEOUT", "HTTPRequest", {"url": server.url("/silent"), "timeout": 1}),
            ("EXECUTION_ERROR", "EXECUTION_ERROR", "ExecuteCommand", {"cmd": "yes"}),
            ("NETWORK_ERROR", "NETWORK_ERROR", "HTTPRequest", {"url": closed}),
            ("IO_ERROR", "FILE_TOO_LARGE", "FileWrite", {"path": "big", "content": "x" * 2_000_001}),
        ]
        seen = []
        for _, _, tool, args in cases:
            answer = await ran(client, tool, **args)
            seen.append((code_of(answer), answer["error"]["details"]["kind"], tool, args))
        assert seen == cases


async def test_a_face_over_the_contract_is_still_a_result_with_its_error_and_walks_the_same_steps(
    tmp_path: Path,
) -> None:
    async with faced_hub(tmp_path, web) as (hub, _, _):
        args = {"path": "a.txt", "content": "x", "user_id": "local"}
        written = await hub.invoke("FileWrite", args, metadata=FACE, purpose="", request_id="r")
        assert json.loads(written.result_json) == {"success": True, "output": {"path": "a.txt"}}
        assert (written.ok, written.tool, len(written.evidence)) == (True, "core/fs.writeText", 1)
        again = await hub.invoke("FileWrite", args, metadata=FACE, request_id="r")
        assert (again.ok, again.error.kind) == (False, error_pb2.ERROR_KIND_ALREADY_EXISTS)
        assert json.loads(again.result_json)["error"]["error_code"] == "ALREADY_EXISTS"
        as_struct = request("FileWrite", args_struct=args, request_id="r")
        answer = (await hub.stub.Invoke(as_struct, metadata=FACE)).result
        assert answer.result_struct["error"]["error_code"] == "ALREADY_EXISTS"

        stream = hub.stub.InvokeStream(request("FileRead", args, message=pb.InvokeStreamRequest), metadata=FACE)
        (last,) = [event async for event in stream]
        assert json.loads(last.result.result_json)["error"]["error_code"] == "INVALID_INPUT"  # content is not its own
        asked = request("FileRead", {"path": "a.txt", "user_id": "local"}, message=pb.SessionCall, request_id="r")
        asked.call_id = "c"
        session = hub.stub.InvokeSession(iter([pb.InvokeSessionRequest(calls=[asked])]), metadata=FACE)
        events = [event async for answer in session for event in answer.events]
        assert json.loads(events[-1].result.result_json) == {"success": True, "output": {"content": "x"}}
        # The hub's own names stay behind the face, and the face's own names before it.
        hidden = await hub.invoke("core/fs.readText", {"path": "a.txt"}, metadata=FACE, request_id="r")
        assert hidden.error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        assert (await hub.invoke("FileRead", args)).error.kind == error_pb2.ERROR_KIND_TOOL_NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await hub.invoke("FileRead", args, metadata=(("toolhub-face", "telnet"),))
        assert unknown.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "countbot, local-tools" in str(unknown.value.details())
        labels = [event.event.labels for event in await hub.events() if event.event.tool == "core/fs.writeText"]
        assert labels[0]["face"] == "local-tools:FileWrite"


async def test_errors_use_the_names_that_the_caller_knows(tmp_path: Path) -> None:
    async with faced_hub(tmp_path, web) as (_, client, _):
        wrong = (await ran(client, "FileWrite", path="a", content=7))["error"]
        assert (wrong["message"].count("core/fs"), wrong["details"]["violations"][0]["path"]) == (0, "/content")
        assert "`/content` must be string" in wrong["message"]
        late = (await ran(client, "HTTPRequest", url="http://127.0.0.1/", timeout=9_999))["error"]
        assert late["details"]["violations"][0]["path"] == "/timeout"
        unknown = (await ran(client, "FileRaed", path="a"))["error"]
        assert unknown["details"]["did_you_mean"] == ["FileRead"]
        assert unknown["message"].startswith("local-tools has no tool 'FileRaed'. Use one of: FileRead, FileWrite,")


async def test_a_user_id_in_a_message_is_believed_only_where_policy_allows_it(tmp_path: Path) -> None:
    strict = "extends: none\ngrants: [{principals: [local], capabilities: ['read:fs', 'write:fs']}]\n"
    async with faced_hub(tmp_path, web, policy=strict) as (hub, client, _):
        assert await output(client, "FileWrite", path="a", content="x", user_id="local") == {"path": "a"}
        other = await ran(client, "FileRead", path="a", user_id="alice")
        assert (code_of(other), other["error"]["details"]["kind"]) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
        two = await hub.invoke("FileRead", {"path": "a", "user_id": "local"}, metadata=FACE, user_id="alice")
        assert json.loads(two.result_json)["error"]["error_code"] == "INVALID_INPUT"


async def test_large_arguments_are_translated_and_cuts_are_reported(tmp_path: Path) -> None:
    async with faced_hub(tmp_path, web) as (hub, client, _):
        text = "".join(f'"{n}" ' for n in range(180_000))
        assert await output(client, "FileWrite", path="large.txt", content=text) == {"path": "large.txt"}
        assert (hub.workspace("faces") / "large.txt").read_text() == text
        read = await output(client, "FileRead", path="large.txt")
        assert read["truncated"] is True
        assert 0 < len(read["content"]) < len(text)
        refused = await ran(client, "FileWrite", path="large.txt", content=text, overwrite=1)
        assert code_of(refused) == "INVALID_INPUT"
        raw = b'{"path": "x", "user_id": "local", "content": "' + b'\\"' * 600_000
        broken = await hub.invoke("FileWrite", args_json=raw, metadata=FACE)
        assert json.loads(broken.result_json)["error"]["error_code"] == "INVALID_INPUT"


async def test_the_client_never_raises_also_where_there_is_no_hub(tmp_path: Path) -> None:
    async with faced_hub(tmp_path, web) as (_, client, _):
        face = client.face("local-tools")
        hostile: list[Any] = [{}, {"tool": 7}, {"tool": "", "args": {}}, {"tool": "FileRead", "args": []}, []]
        hostile += [{"tool": "FileRead", "args": {"path": {1, 2}}}, {"tool": "x" * 9_999}]
        assert [code_of(await face.run(each)) for each in hostile] == ["INVALID_INPUT"] * len(hostile)
    with connect_sync(f"127.0.0.1:{free_port()}", retry_s=0) as away:
        lost = away.face("local-tools").run({"tool": "FileRead", "args": {}})
        assert code_of(lost) == "NETWORK_ERROR"
        assert away.face("countbot").execute("read_file", {"path": "a"}).startswith("Error (NETWORK_ERROR): ")


async def test_plans_stay_the_hubs_own(tmp_path: Path) -> None:
    async with faced_hub(tmp_path, web) as (hub, _, _):
        asked = request("FileDelete", {"path": "none", "user_id": "local"}, mode=2)
        plan = (await hub.stub.Invoke(asked, metadata=FACE)).plan
        assert plan.tool == "core/fs.deletePath"
        assert json.loads(plan.args_json)["confirm"] is True
