"""Every snippet on the pages of the Go and TypeScript clients compiles, after what the page has introduced before."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.missing import need_program

ROOT = Path(__file__).parents[3]
TSC = ROOT / ".ci/toolchain/node_modules/typescript/bin/tsc"
TS_CLIENT, GO_CLIENT = ROOT / "clients/ts", ROOT / "clients/go"
TS_BEFORE = """
import { type Call, connect, type Hub, type JsonObject, valueOf } from "@tool-hub/client";
import { JobState } from "@tool-hub/client/v1/job_state";
"""
TS_GIVEN = "hub: Hub, call: Call, calls: Call[], args: JsonObject, openai: any, model: string, messages: object[]"
GO_BEFORE = """package snippets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tool-hub/tool-hub/clients/go/toolhub"
	toolhubv1 "github.com/tool-hub/tool-hub/gen/go/toolhub/v1"
)

var (
	_         = fmt.Sprint
	_         = errors.As
	_         = time.Second
	_         toolhubv1.ToolFilter
	messages  []any
	toolCalls []any
	args      any
)

func ask(string)          {}
func tell(string, string) {}
"""

need_program("go")
need_program("node")


def snippets(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(found) > 4
    return found


@pytest.mark.promise("clients.readme-runs")
def test_typescript_snippets_compile(tmp_path: Path) -> None:
    functions = []
    for number, snippet in enumerate(snippets(TS_CLIENT / "README.md", "ts")):
        body = re.sub(r"^import .*$", "", snippet, flags=re.MULTILINE)
        functions.append(f"export async function snippet{number}({TS_GIVEN}) {{\n{{\n{body}\n}}\n}}\n")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "snippets.ts").write_text(TS_BEFORE + "\n".join(functions))
    (tmp_path / "node_modules").symlink_to(ROOT / ".ci/toolchain/node_modules")
    paths = {
        "@tool-hub/client": [str(TS_CLIENT / "src/index.ts")],
        "@tool-hub/client/v1/*": [str(ROOT / "gen/ts/toolhub/v1") + "/*_pb.ts"],
    }
    options = {"paths": paths, "noEmit": True, "rootDir": "/", "noUnusedLocals": False, "noUnusedParameters": False}
    config = {"extends": str(TS_CLIENT / "tsconfig.json"), "compilerOptions": options, "include": ["snippets.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    compiled = subprocess.run(
        ["node", str(TSC), "--project", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert compiled.returncode == 0, compiled.stdout


@pytest.mark.promise("clients.readme-runs")
def test_go_snippets_compile(tmp_path: Path) -> None:
    functions = []
    for number, snippet in enumerate(snippets(GO_CLIENT / "README.md", "go")):
        first = re.search(r"\berr\b( :=)?", snippet)
        before = "" if first is None or first[1] else "\tvar err error\n"
        # Go refuses what is not used, and a page shows no use of all that it names.
        declared = re.findall(r"^(?!for )([\w, ]+) :=", snippet, re.MULTILINE)
        named = {name.strip() for names in declared for name in names.split(",")}
        named |= set(re.findall(r"^var (\w+)", snippet, re.MULTILINE)) | {"err"}
        used = "".join(f"\t_ = {name}\n" for name in sorted(named - {"_"}))
        given = "ctx context.Context, hub *toolhub.Hub, call toolhub.Call"
        functions.append(f"func snippet{number}({given}) error {{\n{before}{snippet}{used}\treturn nil\n}}\n")
    source, overlay = tmp_path / "snippets.go", tmp_path / "overlay.json"
    source.write_text(GO_BEFORE + "\n".join(functions))
    overlay.write_text(json.dumps({"Replace": {str(GO_CLIENT / "snippets/snippets.go"): str(source)}}))
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    command = ["go", "build", f"-overlay={overlay}", "./snippets"]
    compiled = subprocess.run(command, cwd=GO_CLIENT, env=env, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
