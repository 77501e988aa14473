"""docs/faces.md: the faces, their tables and what becomes of their settings and files."""

# ruff: noqa: E501 - the lines of its tables stand here as they do on the page

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tables import NOTICE, code, table

from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import CODES, LOCAL_TOOLS
from toolhub_service.faces.permissions import PERMISSIONS
from toolhub_service.faces.table import USER, Argument, Face, FaceTool

_INTRO = """
Two older sets of tools go on working under their own names: their programs call the hub's tools through a **face**, a table of
names, arguments and answers. A call through a face is translated before the first step and its answer after the last: the same
nine steps, policy, limits, approvals and audit log hold for it, and no tool exists twice
([decision 0041](decisions/0041-faces-are-tables.md)).

| face | takes | answers |
|---|---|---|
| `local-tools` | `{"tool": "FileRead", "args": {…, "user_id": "…"}}` | `{"success": true, "output": {…}}`, or `{"success": false, "error": {"error_code", "message", "details"}}` |
| `countbot` | a name and arguments | one text, also of an error: `Error (NOT_FOUND): …` |

## Ways in
* **gRPC**: `Invoke`, `InvokeStream` and `InvokeSession` with the metadata entry `toolhub-face`. `ToolIntent` names the face's tool and
  its arguments; the `ToolResult` carries the face's answer in `result_json` or `result_struct`, beside a real `error` where the call
  failed. `ExportTools` with the entry gives the face's definitions in the form asked for, of those tools that can run now. A dry
  run answers the hub's own plan, and jobs have the hub's own names.
* **Python**: `face = hub.face("countbot")`, then `await face.definitions()` (OpenAI function calling) and `await face.execute(name,
  args)`, a text that never raises. `hub.face("local-tools").run({"tool": …, "args": {…}})` gives the answer as a dict and never
  raises either. `connect_sync` has the same without `await`.
* **Command line**: `toolhub run '{"tool": "FileRead", "args": {…}}'` prints the answer; without an argument each line of standard input is
  a request and each line of standard output its answer, whatever is wrong with the line. `--face countbot` answers
  `{"call_id", "tool_name", "status", "duration_ms", "result"}`.

`faces.enabled` says which faces a hub has.

## What differs from the originals
* `user_id` identifies nobody. The principal comes from the credential; `user_id` becomes `context.user_id`, which is refused with
  `PERMISSION_DENIED` unless it is the principal itself or `impersonate` of the policy names the principal. What one user may do is a
  rule on `context.user_id`; [`toolhub policy import`](#permission-files) writes such rules.
* Paths are relative to the workspace, and an absolute one is `INVALID_INPUT`. Calls share files by `request_id`, or as `workspace.per`
  says.
* No shell: a pipe, a redirection or `;` in a command is refused. Commands run only where `commands` of the policy names them.
* An argument that the face does not have is refused. `null` stands for one that is left out.
* Deleting needs a plan unless an ALLOW rule names `core/fs.deletePath`; what needs a person's yes is `PERMISSION_DENIED` with the
  approval in `details`.
* `read_file` reads `skills/*/SKILL.md` like any other file.
* `purpose` is `called as FACE:TOOL` where the caller gives none. The label `face` in the audit log says the same.
""".strip()

_CODES = """
`OUTCOME_UNKNOWN` is `TIMEOUT` where a timeout is its cause: the call may have had its effect. `details` always holds the hub's own
`kind`, whether the call is `retryable`, and the facts of [errors](errors.md). A non-zero exit code is no error.
""".strip()

_AFTER = """
## CountBot's settings
| CountBot | here |
|---|---|
| a tool is not registered | [`tools.disabled`](configuration.md), or no grant of its capability; what lacks a need is UNAVAILABLE and not among the definitions |
| a tool of one's own in `setup.py` | a [custom tool](custom-tools.md), and its name in `faces.countbot_tools`: `[my_tool=acme/my_tool]` |
| `restrict_to_workspace` | always; `workspace.per` says which calls share one |
| command whitelist | `commands` of the [policy](policy.md); without an entry no command runs |
| `DANGEROUS_PATTERNS` | a list that no policy lifts (`details.danger`), and DENY rules |
| command timeout, 30 s | the same default; the call's own timeout |
| `max_output_length`, 10,000 | the same default |
| `BRAVE_API_KEY` | the settings of `core/web.search`, which the face does not name |
| `SecurityConfig.audit_log_enabled` | always on: no call with an effect runs unrecorded |

## Permission files
`toolhub policy import local-tools FILE` prints the policy of a permission file. FILE is YAML or JSON:
```yaml
users:
  alice:
    permissions: [read:file, write:file, execute:command, network:outbound]
    paths: [reports, shared/data]        # folders of the workspace; left out: all of it
    commands: [ls -l, wc]                # these words first, and what the grammar allows after them
    hosts: [api.example.com, "*.wikipedia.org:8443"]
  bob: [read:file, delete:file]          # permissions alone
```

| permission | tools | capabilities |
|---|---|---|
PERMISSIONS

One principal (`--principal`, default `local`) calls on behalf of all users: it gets the capabilities of all together and `impersonate`, and
DENY rules on `context.user_id` cut each user down to its own. A call for nobody of the file, or of a seventh tool, is refused. Nothing
becomes wider: what has no counterpart (an absolute path outside of `--base`, a shell or another program that runs programs, a host
that is no host) is left out and told, as a comment and on standard error; `--strict` makes it exit 1. `execute:command` without
`commands` and `network:outbound` without `hosts` allow nothing. A redirect is checked against the hosts of all users together.

`toolhub policy import openclaw FILE` does the same for OpenClaw's lists. Agents are principals; tools go by the hub's names, a face's or
OpenClaw's. An agent with a list `allow` may use nothing besides, one without holds what another policy grants:
```yaml
agents:
  coder:
    allow: [read, write, core/util.*]
    deny: [core/fs.deletePath]
    require_approval: [exec]
  ops: {bash_exec: require_approval, file_copy: deny}   # the same, tool by tool
```

## CountBot's audit fields
`toolhub audit export --as countbot` prints one line a call in the form of CountBot's log: `call_id`, `tool_name`, `arguments`,
`session_id`, `timestamp` (UTC), `status` (`success` or `error`), `duration_ms`, `result`. Arguments and result are what the audit log
keeps: secrets redacted, at most 1 KiB each; the result of a call that failed is the kind of its error.
""".strip()


def page() -> str:
    lines = ["# Faces: the names of older tools", "", NOTICE.format(source="service/toolhub_service/faces"), "", _INTRO]
    lines += ["", "## local-tools", ""]
    lines += _tools(LOCAL_TOOLS)
    by_code: dict[str, list[str]] = {}
    for kind, name in CODES.items():
        by_code.setdefault(name, []).append(code(kind.value))
    lines += [
        "",
        *table(("code", "kinds of the hub"), ((code(name), ", ".join(kinds)) for name, kinds in by_code.items())),
        "",
        _CODES,
        "",
        "## countbot",
        "",
        *_tools(countbot()),
        "",
        "`url` and `urls`: give one of them. A tool that becomes a job answers with its `jobId`.",
        "",
        _AFTER.replace("PERMISSIONS", "\n".join(_permissions())),
    ]
    return "\n".join(lines) + "\n"


def _tools(face: Face) -> list[str]:
    return table(
        ("tool", "hub's tool", "arguments", "answer"),
        (
            (code(row.name), _hub_tools(row), "; ".join(_arguments(row)), (row.answer.__doc__ or "").splitlines()[0])
            for row in face.tools.values()
        ),
    )


def _permissions() -> list[str]:
    rows = (
        (code(name), ", ".join(map(code, tools)), ", ".join(map(code, needs)))
        for name, (tools, needs) in PERMISSIONS.items()
    )
    return table((), rows)[2:]


def _hub_tools(row: FaceTool) -> str:
    if not row.chooser:
        return code(row.tool)
    return ", ".join(f"{code(each.tool)} with {row.chooser} {code(value)}" for value, each in row.others.items())


def _arguments(row: FaceTool) -> Iterator[str]:
    if row.chooser:
        yield f"{code(row.chooser)} (default {json.dumps(next(iter(row.others)))})"
        for value, each in row.others.items():
            yield from (f"with {value} {told}" for told in _arguments(each))
        return
    for name, argument in row.arguments.items():
        yield _argument(name, argument)
    if row.fixed:
        yield "always " + ", ".join(code(f"{name}: {json.dumps(value)}") for name, value in row.fixed.items())


def _argument(name: str, argument: Argument) -> str:
    target = "" if argument.to in (name, "") else f" → {code(argument.to)}"
    scale = f" × {argument.scale:,}" if argument.scale != 1 else ""
    schema: Mapping[str, object] = argument.schema
    default = schema.get("default")
    target += "".join(f", {json.dumps(value)} as {json.dumps(to)}" for value, to in argument.values.items())
    told = "required" if argument.required else f"default {json.dumps(default)}" if default is not None else ""
    if argument.to == USER:
        target = " → `context.user_id`"
    return f"{code(name)}{target}{scale}" + (f" ({told})" if told else "")
