"""`make audit-deps`: which licences and advisories it lets pass, on answers of OSV that were recorded."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
JINJA = {
    "id": "GHSA-cpwx-vrp4-4pq7",
    "aliases": ["CVE-2025-27516"],
    "summary": "Jinja2 vulnerable to sandbox breakout through attr filter selecting format method",
}
NET = {"id": "GO-2025-3595", "aliases": ["GHSA-vvgc-356p-c3xw"], "summary": "Incorrect neutralization in x/net/html"}
TAKEN_BACK = {"id": "PYSEC-2022-42969", "aliases": ["CVE-2022-42969"], "withdrawn": "2024-11-21T00:00:00Z"}
RECORDS = {str(each["id"]): each for each in (JINJA, NET, TAKEN_BACK)}
AFFECTED = {("PyPI", "jinja2", "3.1.5"): [JINJA, TAKEN_BACK], ("Go", "golang.org/x/net", "0.37.0"): [NET]}


class Osv(BaseHTTPRequestHandler):
    """Answers as api.osv.dev does; the second advisory of a package stands on a second page."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"results": [self.result_of(query) for query in asked["queries"]]})

    def do_GET(self) -> None:
        self.answer(RECORDS[self.path.removeprefix("/v1/vulns/")])

    def result_of(self, query: dict[str, Any]) -> dict[str, Any]:
        package = query["package"]
        found = AFFECTED.get((package["ecosystem"], package["name"], query["version"]), [])
        page = int(query.get("page_token", 0))
        told: dict[str, Any] = {
            "vulns": [{"id": each["id"], "modified": "2025-01-01"} for each in found[page : page + 1]]
        }
        if page + 1 < len(found):
            told["next_page_token"] = str(page + 1)
        return told if found else {}

    def answer(self, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def osv_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Osv) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture
def audit_deps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_deps", ROOT / ".ci/audit_deps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("licence", "kind"),
    [
        ("MIT", "permissive"),
        ("Apache-2.0 OR GPL-3.0-only", "permissive"),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", "copyleft"),
        ("(MIT OR GPL-2.0) AND LGPL-2.1-or-later", "copyleft"),
        ("MPL-1.1 OR GPL-2.0-only OR LGPL-2.1-or-later", "copyleft"),
        ("Apache-2.0 WITH LLVM-exception", "permissive"),
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", "permissive"),
        ("Mozilla Public License 2.0 MPL 2.0", "copyleft"),
        ("GNU Affero General Public License v3", "copyleft"),
        ("AGPL-3.0-only", "copyleft"),
        ("Python Software Foundation License", "permissive"),
        ("MIT AND Acme Source License", "unknown"),
        ("SEE LICENSE IN LICENSE", "unknown"),
        ("(MIT", "permissive"),
        ("MIT)", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_licence_is_as_free_as_its_parts_and_alternatives_allow(
    audit_deps: ModuleType, licence: str, kind: str
) -> None:
    assert audit_deps.kind_of(licence) == kind


def test_a_licence_is_read_from_metadata_classifiers_or_text(audit_deps: ModuleType) -> None:
    of = audit_deps.licence_of_metadata
    classifiers = ["License :: OSI Approved", "License :: OSI Approved :: MIT License", "Typing :: Typed"]
    assert of({"license_expression": "ISC", "classifier": classifiers}) == "ISC"
    assert of({"classifier": classifiers, "license": "GPL"}) == "MIT License"
    assert of({"license": "BSD"}) == "BSD"
    assert (
        of({"license": "Copyright 2023 A. Person\n\nPermission is hereby\ngranted, free of charge, to any person"})
        == "MIT"
    )
    assert of({}) == ""
    mpl = "Mozilla Public License Version 2.0 ... the GNU General Public License, Version 2.0 ..."
    assert audit_deps.licence_of_text(mpl) == "MPL-2.0"
    assert audit_deps.licence_of_text("GNU LESSER GENERAL PUBLIC LICENSE\nVersion 3") == "LGPL"


def test_a_licence_that_is_not_listed_or_has_changed_is_refused(audit_deps: ModuleType) -> None:
    package = audit_deps.Package
    licences = {
        package("PyPI", "free", "1"): "MIT",
        package("PyPI", "listed", "1"): "MPL-2.0",
        package("npm", "strict", "2"): "GPL-3.0-only",
        package("PyPI", "turned", "3"): "AGPL-3.0-only",
        package("Go", "silent", "4"): "",
        package("PyPI", "unasked", "5"): None,
    }
    accepted = {"PyPI listed": {"licence": "MPL-2.0"}, "PyPI turned": {"licence": "LGPL-3.0-only"}}
    assert audit_deps.judge_licences(licences, accepted) == [
        "Go silent 4 is unknown (states no licence)",
        "PyPI turned 3 states AGPL-3.0-only; what was accepted is LGPL-3.0-only",
        "npm strict 2 is copyleft (GPL-3.0-only)",
    ]
    gone = {**accepted, "PyPI free": {}, "PyPI unasked": {}, "PyPI gone": {}, "crates.io other": {}}
    assert audit_deps.unneeded_reasons(licences, gone) == ["the licence of PyPI free", "the licence of PyPI gone"]


def test_an_advisory_is_refused_unless_it_is_listed_under_any_name_or_withdrawn(
    audit_deps: ModuleType, osv_url: str
) -> None:
    package = audit_deps.Package
    packages = [package(*key) for key in AFFECTED] + [
        package("PyPI", "jinja2", "3.1.6"),
        package("npm", "left-pad", "1.3.0"),
    ]
    advisories = audit_deps.ask_osv(packages, osv_url)
    assert set(advisories) == set(RECORDS)
    jinja, net = audit_deps.judge_advisories(advisories, {})
    assert jinja == f"PyPI jinja2 3.1.5: {JINJA['id']} {JINJA['summary']} (https://osv.dev/{JINJA['id']})"
    assert audit_deps.judge_advisories(advisories, {"CVE-2025-27516": "no templates of others"}) == [net]


def test_what_cannot_be_asked_is_said_in_a_line_and_fails_only_where_that_is_asked_for(
    audit_deps: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit_deps, "everything_locked", lambda: ({audit_deps.Package("PyPI", "a", "1"): "MIT"}, []))
    monkeypatch.setenv("TOOLHUB_OSV_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AUDIT_REQUIRED", raising=False)
    assert audit_deps.main() == 0
    assert "audit-deps: not asked: advisories: http://127.0.0.1:1 did not answer" in capsys.readouterr().out
    monkeypatch.setenv("AUDIT_REQUIRED", "1")
    assert audit_deps.main() == 1


def test_an_unlisted_finding_fails_with_what_to_do(
    audit_deps: ModuleType, osv_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        audit_deps, "everything_locked", lambda: ({audit_deps.Package("PyPI", "jinja2", "3.1.5"): "GPL-2.0"}, [])
    )
    monkeypatch.setenv("TOOLHUB_OSV_URL", osv_url)
    assert audit_deps.main() == 1
    licence, advisory, advice = capsys.readouterr().err.splitlines()
    assert "jinja2 3.1.5 is copyleft" in licence
    assert str(JINJA["id"]) in advisory
    assert advice.endswith("take another version or package, or give the reason in .ci/accepted.yaml")


def test_locked_packages_that_are_installed_are_all_read_and_accepted(audit_deps: ModuleType) -> None:
    unasked: list[str] = []
    found = dict(audit_deps.python_packages(ROOT / ".ci/toolchain/dev.txt", unasked))
    node = [ROOT / ".ci/toolchain/package-lock.json", ROOT / "tests/servers/package-lock.json"]
    found.update(audit_deps.node_packages(node))
    assert unasked == []
    assert len(found) > 300
    accepted = yaml.safe_load((ROOT / ".ci/accepted.yaml").read_text())
    assert audit_deps.judge_licences(found, accepted["licences"]) == []
    assert all(entry["reason"].endswith(".") for entry in accepted["licences"].values())
