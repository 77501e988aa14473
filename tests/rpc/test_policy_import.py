"""Permission files of older tools, translated and put in force in a whole hub: each user may do what the file says, and
nothing besides."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import always, response, serving
from tests.hub import RunningHub, running_hub
from tests.rpc.faces_hub import code_of
from toolhub.v1 import error_pb2
from toolhub_client import Context, Hub, connect
from toolhub_service.faces.local_tools import LOCAL_TOOLS
from toolhub_service.faces.openclaw import from_openclaw
from toolhub_service.faces.permissions import PERMISSIONS, ImportRefused, from_local_tools
from toolhub_service.policy.parsing import parse_policy

USERS: dict[str, Any] = {
    "alice": {
        "permissions": ["read:file", "write:file", "execute:command", "network:outbound"],
        "paths": ["reports", "/srv/base/shared/data"],
        "commands": ["ls -a", "cat"],
        "hosts": ["127.0.0.1:8080", "*.example.com", "[::1]:81"],
    },
    "bob": ["read:file", "delete:file"],
    "carol+x@y": {"permissions": ["read:file"], "paths": []},
    "dave": {"permissions": [], "paths": None},
}


async def allowed(client: Hub, user: str, tool: str, **args: Any) -> bool:
    """Whether policy lets the call pass, whatever its result."""
    answer = await client.face("local-tools").run({"tool": tool, "args": {"user_id": user, **args}})
    if answer["success"]:
        return True
    kind = answer["error"]["details"]["kind"]
    assert (kind in {"POLICY_DENIED", "HTTP_DISALLOWED_HOST"}) == (code_of(answer) == "PERMISSION_DENIED"), answer
    return kind not in {"POLICY_DENIED", "HTTP_DISALLOWED_HOST"}


@pytest.mark.promise("faces.import-never-wider")
async def test_each_user_of_a_permission_file_may_do_what_it_grants_and_nothing_else(tmp_path: Path) -> None:
    imported = from_local_tools({"users": USERS}, "local", "/srv/base")
    assert imported.warnings[:2] == [
        "alice: 127.0.0.1:8080 is no public address: it stays closed until `cidrs` of its entry opens it",
        "alice: [::1]:81 is no public address: it stays closed until `cidrs` of its entry opens it",
    ]
    async with (
        running_hub(tmp_path, policy=imported.text("A test.")) as hub,
        connect(hub.address, context=Context(request_id="r")) as client,
    ):
        for name in ("reports", "reportsx", "shared/data", "shared/other"):
            folder = hub.workspace("r") / name
            folder.mkdir(parents=True)
            (folder / "a.txt").write_text("a")
        passes: list[tuple[str, str, dict[str, Any]]] = [
            ("alice", "FileRead", {"path": "reports/a.txt"}),
            ("alice", "FileRead", {"path": "./reports/../shared/data/a.txt"}),
            ("alice", "ListDirectory", {"path": "reports"}),
            ("alice", "FileWrite", {"path": "reports/new.txt", "content": ""}),
            ("alice", "ExecuteCommand", {"cmd": "ls -a", "cwd": "reports"}),
            ("alice", "ExecuteCommand", {"cmd": " cat a.txt", "cwd": "shared/data"}),
            ("bob", "FileRead", {"path": "shared/other/a.txt"}),
            ("bob", "FileDelete", {"path": "shared/other/a.txt"}),
        ]
        refused: list[tuple[str, str, dict[str, Any]]] = [
            ("alice", "FileRead", {"path": "reportsx/a.txt"}),
            ("alice", "FileRead", {"path": "reports/../shared/other/a.txt"}),
            ("alice", "ListDirectory", {"path": "."}),
            ("alice", "FileDelete", {"path": "reports/a.txt"}),
            ("alice", "ExecuteCommand", {"cmd": "ls", "cwd": "reports"}),
            ("alice", "ExecuteCommand", {"cmd": "ls -ax", "cwd": "reports"}),
            ("alice", "ExecuteCommand", {"cmd": "cat a.txt"}),
            ("alice", "ExecuteCommand", {"cmd": "catx a.txt", "cwd": "reports"}),
            ("alice", "ExecuteCommand", {"cmd": "wc a.txt", "cwd": "reports"}),
            ("alice", "ExecuteCommand", {"cmd": "'cat' a.txt", "cwd": "reports"}),
            ("alice", "HTTPRequest", {"url": "http://127.0.0.1:8080/"}),
            ("alice", "HTTPRequest", {"url": "http://example.com/"}),
            ("alice", "HTTPRequest", {"url": "http://aexample.com/"}),
            ("alice", "HTTPRequest", {"url": "http://a.example.com:8080/"}),
            ("alice", "HTTPRequest", {"url": "http://a.example.com.evil.net/"}),
            ("bob", "FileWrite", {"path": "a", "content": ""}),
            ("bob", "ExecuteCommand", {"cmd": "cat reports/a.txt"}),
            ("bob", "HTTPRequest", {"url": "http://a.example.com/"}),
            ("carol+x@y", "FileRead", {"path": "reports/a.txt"}),
            *((user, "FileRead", {"path": "reports/a.txt"}) for user in ("dave", "local", "root", "ALICE")),
        ]
        assert [each for each in passes if not await allowed(client, each[0], each[1], **each[2])] == []
        assert [each for each in refused if await allowed(client, each[0], each[1], **each[2])] == []
        # Who names no user, or a tool that the file does not know, is nobody of the file.
        for tool, args, user in (
            ("core/fs.readText", {"path": "reports/a.txt"}, ""),
            ("core/fs.stat", {"path": "reports/a.txt"}, "alice"),
            ("core/util.time.now", {}, "bob"),
            ("core/exec.run", {"argv": ["wc", "a.txt"], "cwd": "reports"}, "alice"),
        ):
            result = await hub.invoke(tool, args, request_id="r", user_id=user)
            assert result.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED, tool
        argv = {"argv": ["cat", "a.txt"], "cwd": "reports"}
        assert (await hub.invoke("core/exec.run", argv, request_id="r", user_id="alice")).ok


async def test_a_named_host_of_a_user_is_reached_once_its_network_is_opened(tmp_path: Path) -> None:
    async with serving(always(response(b"hi"))) as server:
        users = {"alice": {"permissions": ["network:outbound"], "hosts": [f"127.0.0.1:{server.port}"]}}
        users["bob"] = {"permissions": ["network:outbound"], "hosts": ["*"]}
        imported = from_local_tools({"users": users}, "local")
        assert "users have different hosts" in imported.warnings[-1]
        imported.document["egress"][0]["cidrs"] = ["127.0.0.0/8"]
        async with running_hub(tmp_path, policy=imported.text("A test.")) as hub, connect(hub.address) as client:
            assert await allowed(client, "alice", "HTTPRequest", url=server.url())
            assert not await allowed(client, "alice", "HTTPRequest", url=server.url().replace("127.0.0.1", "localhost"))


@pytest.mark.promise("faces.import-never-wider")
async def test_every_mixture_of_permissions_allows_exactly_its_own_tools(tmp_path: Path) -> None:
    names = list(PERMISSIONS)
    sets = [each for size in range(len(names) + 1) for each in itertools.combinations(names, size)]
    users = {
        f"u{number}": {"permissions": list(each), "commands": ["ls"], "hosts": ["*"]}
        for number, each in enumerate(sets)
    }
    calls: dict[str, dict[str, Any]] = {
        "FileRead": {"path": "none"},
        "ListDirectory": {"path": "none"},
        "FileWrite": {"path": "x", "content": "", "overwrite": True},
        "FileDelete": {"path": "none"},
        "ExecuteCommand": {"cmd": "ls"},
    }
    needs = {tool: name for name, (tools, _) in PERMISSIONS.items() for tool in tools}
    imported = from_local_tools({"users": users}, "local")
    async with running_hub(tmp_path, policy=imported.text("A test.")) as hub, connect(hub.address) as client:
        wrong = []
        for (user, user_fields), (tool, args) in itertools.product(users.items(), calls.items()):
            may = needs[LOCAL_TOOLS.tools[tool].tool] in user_fields["permissions"]
            if await allowed(client, user, tool, **args) != may:
                wrong.append((user, user_fields["permissions"], tool))
        assert wrong == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, 'expected {"users"'),
        ({"users": []}, 'expected {"users"'),
        ({"users": {}, "groups": {}}, 'expected {"users"'),
        ({"users": {"a": "read:file"}}, "users.a: expected"),
        ({"users": {"a": {"permissions": ["read:file"], "deny": ["x"]}}}, "users.a.deny: unknown"),
        ({"users": {"a": {"paths": "reports"}}}, "users.a.paths: expected a list of texts"),
        ({"users": {"a": {"hosts": [1]}}}, "users.a.hosts: expected a list of texts"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_place(file: dict[str, Any], expected: str) -> None:
    with pytest.raises(ImportRefused) as refused:
        from_local_tools(file, "local")
    assert str(refused.value).startswith(expected)


def test_settings_without_a_counterpart_are_left_out_and_reported() -> None:
    permissions = {
        "permissions": ["read:file", "sudo:all", "execute:command", "network:outbound"],
        "paths": ["/etc", "../up", "ok"],
        "commands": ["bash", "python3 -c x", "rm", "echo $(id)", "/bin/ls", "ls; id", "no-such-program"],
        "hosts": ["http://a.example/", "a b", "x:99999", ""],
    }
    imported = from_local_tools({"users": {"a": permissions, "two words": []}}, "bot")
    warned = "\n".join(imported.warnings)
    left_out = (
        "sudo:all",
        "/etc",
        "../up",
        "bash",
        "python3 -c x",
        "echo $(id)",
        "/bin/ls",
        "ls; id",
        "no-such-program",
    )
    for what in (*left_out, "http://a.example/", "a b", "x:99999", "two words"):
        assert what in warned
    parse_policy(imported.text("A test."))
    assert "egress" not in imported.document
    assert {entry.get("name") for entry in imported.document.get("commands", ())} <= {"rm"}
    assert imported.text("A test.").count("# NOTE: ") == len(imported.warnings)


async def openclaw_hub_specs(hub: RunningHub) -> Any:
    return hub.hub.toolbox.catalog.all()


@pytest.mark.promise("faces.import-never-wider")
async def test_lists_of_openclaw_hold_for_the_principal_of_the_agents_name(tmp_path: Path) -> None:
    async with running_hub(tmp_path / "specs") as hub:
        specs = await openclaw_hub_specs(hub)
    lists = {
        "allow": ["read", "write_file", "core/util.*"],
        "deny": ["core/util.time.now"],
        "require_approval": ["edit"],
    }
    imported = from_openclaw({"agents": {"local": lists}}, specs)
    async with running_hub(tmp_path / "hub", policy=imported.text("A test.")) as hub:
        assert (await hub.invoke("core/fs.writeText", {"path": "a", "text": "x"}, request_id="r")).ok
        assert (await hub.invoke("core/fs.readText", {"path": "a"}, request_id="r")).ok
        assert (await hub.invoke("core/util.hash.sha256Text", {"text": "a"})).ok
        for tool, args, kind in (
            ("core/util.time.now", {}, error_pb2.ERROR_KIND_POLICY_DENIED),
            ("core/fs.stat", {"path": "a"}, error_pb2.ERROR_KIND_POLICY_DENIED),
            ("core/fs.editText", {"path": "a", "oldText": "x", "newText": "y"}, error_pb2.ERROR_KIND_APPROVAL_REQUIRED),
        ):
            assert (await hub.invoke(tool, args, request_id="r")).error.kind == kind, tool
    # The form of the book's class: policies[agent_id][tool_name] = strategy.
    policies = {
        "coder": {"bash_exec": "require_approval", "file_copy": "deny", "database_query": "allow", "nmap": "deny"}
    }
    imported = from_openclaw(policies, specs)
    effects = {rule["effect"]: rule.get("tools") for rule in imported.document["rules"][:2]}
    assert effects == {"DENY": ["core/fs.copy"], "REQUIRE_APPROVAL": ["core/exec.run"]}
    assert "coder: no tool of the hub is known as 'nmap', so IT IS NOT DENIED BY THIS POLICY" in imported.warnings
    files: list[dict[str, Any]] = [{"agents": []}, {"a": {"x": "maybe"}}, {"a": {"allow": "read"}}, {"a": 7}, {"": {}}]
    for broken in files:
        with pytest.raises(ImportRefused):
            from_openclaw(broken, specs)
