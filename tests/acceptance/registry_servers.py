"""Serves servers of the registries from fresh caches, calls each once, and exports their tools in every form.

`python -m tests.acceptance.registry_servers` needs npx, and uv from PyPI; `--write` puts the table into
docs/acceptance.md. It fails where a server is neither READY within five minutes nor says why, where a call that needs
no network fails, and where the validator of a model's interface refuses an export.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.acceptance.page import put
from tests.bench.page import markdown
from tests.fakes import model_interfaces
from tests.unit.deploy.test_package import hub_of, run

SERVERS: Final[Mapping[str, Mapping[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("registry_servers.yaml").read_text()
)
READY_WITHIN_S: Final = 300.0
POLICY: Final = 'extends: starter\ngrants: [{principals: [local], capabilities: ["mcp:*"]}]\n'
FORMS: Final = {
    "openai": model_interfaces.openai,
    "openai_strict": model_interfaces.openai_strict,
    "anthropic": model_interfaces.anthropic,
    "gemini": model_interfaces.gemini,
}
Command = Callable[..., str]


def serve(folder: Path, uv: Path) -> dict[str, list[str]]:
    """Rows by server: state, seconds, tools, the call's outcome; under "" the complaints about exports."""
    caches = {"npm_config_cache": str(folder / "npm"), "UV_CACHE_DIR": str(folder / "uv")}
    passed = {
        name: os.environ[name]
        for name in os.environ
        if name.lower().endswith("_proxy") or "CERT" in name or "CA_" in name
    }
    (folder / "work").mkdir()
    run("git", "init", "--quiet", str(folder / "work"), cwd=folder)
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "sources.yaml").write_text(json.dumps({"sources": dict(_sources(folder / "work", caches))}))
    environment = {
        **passed,
        **caches,
        "PATH": f"{uv.parent}{os.pathsep}{os.environ['PATH']}",
        "TOOLHUB_POLICY_FILE": str(folder / "policy.yaml"),
        "TOOLHUB_SOURCES_FILE": str(folder / "sources.yaml"),
    }
    program = [str(Path(sys.executable).with_name("toolhub"))]
    with hub_of(program, folder, environment=environment) as command:
        rows = wait_until_read(command)
        for name, row in rows.items():
            print(name, *row, file=sys.stderr)
            row.append(call_once(command, name, folder / "work") if row[0] == "READY" else "–")
        rows[""] = list(refused_exports(command))
    return rows


def _sources(work: Path, caches: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, server in SERVERS.items():
        args = [argument.replace("{folder}", str(work)) for argument in server["args"]]
        yield name, {"command": server["command"], "args": args, "env": {**caches, **server.get("env", {})}}


def wait_until_read(command: Command) -> dict[str, list[str]]:
    """State, seconds after the start, and number of tools or the reason, of each source."""
    began_s = time.monotonic()
    rows: dict[str, list[str]] = {}
    while time.monotonic() - began_s < READY_WITHIN_S and len(rows) < len(SERVERS):
        for source in _foreign(command):
            state = source["state"].removeprefix("SOURCE_STATE_")
            if source["source"] not in rows and state in {"READY", "PARTIAL", "NEEDS_LOGIN"}:
                rows[source["source"]] = [state, f"{time.monotonic() - began_s:.0f}", str(source.get("tools", 0))]
        time.sleep(2)
    for source in _foreign(command):
        state = source["state"].removeprefix("SOURCE_STATE_")
        rows.setdefault(source["source"], [state, "–", source.get("message", "")])
    return rows


def _foreign(command: Command) -> list[dict[str, Any]]:
    return [each for each in json.loads(command("sources", "list", "--json"))["sources"] if each["source"] in SERVERS]


def call_once(command: Command, name: str, work: Path) -> str:
    ((tool, arguments),) = SERVERS[name]["call"].items()
    args = json.dumps(arguments).replace("{folder}", str(work))
    try:
        answer = json.loads(command("call", f"{name}/{tool}", args, "--json"))
    except AssertionError as ended:  # the command's exit code says that the call was refused or failed
        answer = json.loads(str(ended).splitlines()[1] or "{}")
    if answer.get("ok"):
        return "ok"
    error = answer.get("error", {})
    return f"{error.get('kind', 'no answer').removeprefix('ERROR_KIND_')}: {error.get('message', '')[:100]}"


def refused_exports(command: Command) -> Iterator[str]:
    for form, complaints_of in FORMS.items():
        for tool in json.loads(command("tools", "export", "--format", form))["tools"]:
            name = tool.get("name") or tool["function"]["name"]
            yield from (f"{form}: {name}: {complaint}" for complaint in complaints_of(tool))


def failures(rows: Mapping[str, list[str]]) -> Iterator[str]:
    yield from rows[""]
    for name, row in rows.items():
        if name and row[0] != "READY" and not row[2]:
            yield f"{name} is {row[0]} and does not say why"
        if name and row[0] == "READY" and row[3] != "ok" and not SERVERS[name].get("network"):
            yield f"{name}: the call ended with {row[3]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/acceptance.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolhub-servers-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        run(sys.executable, "-m", "venv", str(folder / "uvenv"), cwd=folder)
        run(
            str(folder / "uvenv/bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "uv",
            cwd=folder,
            within_s=READY_WITHIN_S,
        )
        rows = serve(folder, folder / "uvenv/bin/uv")
    found = list(failures(rows))
    table = markdown(
        [
            ("server", "state", "after (s)", "tools, or why not", "one call"),
            *((name, *row) for name, row in sorted(rows.items()) if name),
        ]
    )
    print(table, *found, sep="\n")
    if options.write:
        put("registry_servers", table)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
