"""Advisories and licences of everything that is locked: Python, npm and Go packages, and the crates of examples/rust.

`make audit-deps` calls it. Licences are those that the packages state: the metadata of what is installed, of what pip
would install, of package-lock.json, of cargo, and the licence files of Go modules. Advisories are asked of OSV
(https://google.github.io/osv.dev/api/; TOOLHUB_OSV_URL names a mirror). It fails on a licence that is copyleft or not
known, and on an advisory, unless .ci/accepted.yaml gives the reason. What could not be asked is said in one line, and a
reason that nothing needs any more in another; AUDIT_REQUIRED=1 makes a failure of the first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.command_failures import failure_reason  # noqa: E402 - this script stands outside of every package

TOOLCHAIN = ROOT / ".ci" / "toolchain"
ACCEPTED = ROOT / ".ci" / "accepted.yaml"
VENV = Path(sys.prefix)
OSV_URL = "https://api.osv.dev"
QUERIES_IN_ONE = 500
GO_FOLDERS = (".ci/toolchain", "clients/go", "gen/go", "tests/bench/session_load")
PERMISSIVE, UNKNOWN, COPYLEFT = "permissive", "unknown", "copyleft"
_ORDER = (PERMISSIVE, UNKNOWN, COPYLEFT)
_COPYLEFT = re.compile(r"GPL|MPL|EPL|EUPL|CDDL|OSL-|SSPL|CC-BY-SA|Mozilla|General Public|Eclipse", re.IGNORECASE)
_PERMISSIVE = re.compile(
    r"\b(MIT|MIT-0|0?BSD|Apache|ISC|ISCL|PSF|Python-2\.0|CNRI-Python|Zlib|Unlicense|CC0|BSL-1\.0|Unicode|BlueOak|WTFPL|CC-BY-4\.0"
    r"|Python Software Foundation|CDLA-Permissive)\b",
    re.IGNORECASE,
)
_FIRST_WORDS = {
    "MIT": "Permission is hereby granted, free of charge",
    "BSD": "Redistribution and use in source and binary forms",
    "Apache-2.0": "Apache License",
    "ISC": "Permission to use, copy, modify, and",
    "MPL-2.0": "Mozilla Public License",
    "LGPL": "GNU LESSER GENERAL PUBLIC LICENSE",
    "AGPL": "GNU AFFERO GENERAL PUBLIC LICENSE",
    "GPL": "GNU GENERAL PUBLIC LICENSE",
}
"""How the text of each licence can be told; the one that stands first in a file counts."""


class Package(NamedTuple):
    """One locked package. `ecosystem` is OSV's word: PyPI, npm, Go, crates.io."""

    ecosystem: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.ecosystem} {self.name} {self.version}"


@dataclass(frozen=True)
class Findings:
    """Lines: what fails, what could not be asked, and reasons that nothing needs any more."""

    failures: list[str]
    unasked: list[str]
    unneeded: list[str]


Advisory = tuple[list[Package], Mapping[str, Any]]
"""The locked packages that it is about, and OSV's record of it."""


class CannotAskError(Exception):
    """Something could not be asked; the message says why."""


def kind_of(licence: str) -> str:
    """PERMISSIVE, UNKNOWN or COPYLEFT, of an SPDX expression or of the words that a package uses instead.

    Of alternatives (OR) the freest counts, of parts (AND) the strictest."""
    words = re.findall(r"[()]|[^\s()]+", licence)
    kind, rest = _alternatives(words)
    return kind if not rest else UNKNOWN


def _alternatives(words: list[str]) -> tuple[str, list[str]]:
    kind, words = _parts(words)
    while words and words[0].upper() == "OR":
        other, words = _parts(words[1:])
        kind = min(kind, other, key=_ORDER.index)
    return kind, words


def _parts(words: list[str]) -> tuple[str, list[str]]:
    kind, words = _one(words)
    while words and words[0].upper() == "AND":
        other, words = _one(words[1:])
        kind = max(kind, other, key=_ORDER.index)
    return kind, words


def _one(words: list[str]) -> tuple[str, list[str]]:
    if words and words[0] == "(":
        kind, rest = _alternatives(words[1:])
        return kind, rest[1:]
    end = next((place for place, word in enumerate(words) if word in {"(", ")", "OR", "AND", "or", "and"}), len(words))
    name = " ".join(words[:end])
    kind = COPYLEFT if _COPYLEFT.search(name) else PERMISSIVE if _PERMISSIVE.search(name) else UNKNOWN
    return kind, words[end:]


def licence_of_text(text: str) -> str:
    """The licence whose text it is; empty where none is recognised."""
    text = re.sub(r"\s+", " ", text)
    places = {name: text.lower().find(words.lower()) for name, words in _FIRST_WORDS.items()}
    found = {name: place for name, place in places.items() if place >= 0}
    return min(found, key=lambda name: found[name]) if found else ""


def licence_of_metadata(metadata: Mapping[str, Any]) -> str:
    """Of a Python package (metadata as JSON, PEP 566): its expression, else its classifiers, else its text."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    stated = [each.rsplit(" :: ", 1)[-1] for each in metadata.get("classifier", ()) if each.startswith("License :: ")]
    names = [re.sub(r"[()]", "", name) for name in stated if name not in {"OSI Approved", "DFSG approved"}]
    text = str(metadata.get("license") or "").strip()
    return " AND ".join(names) or (text if len(text) < 60 else licence_of_text(text))


def python_packages(path: Path, unasked: list[str]) -> Iterator[tuple[Package, str | None]]:
    """Those of a locked list. The licence is None where pip could not be asked about what is not installed."""
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))
    there = {(_canonical(each.name), each.version): each for each in distributions(path=_environments())}
    reported: dict[str, str] = {}
    try:
        reported = report_of_pip(path) if locked.items() - there.keys() else {}
    except CannotAskError as reason:
        unasked.append(f"licences of {path.name}: {reason}")
    for name, version in locked.items():
        installed = there.get((name, version))
        licence = licence_of_metadata(installed.metadata.json) if installed else reported.get(name)
        yield Package("PyPI", name, version), licence


def report_of_pip(path: Path) -> dict[str, str]:
    """The licence of each package that pip would install from the list."""
    options = ("--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--require-hashes", "--report", "-")
    said = _output(sys.executable, "-m", "pip", "install", *options, "--requirement", str(path))
    told = [each["metadata"] for each in json.loads(said)["install"]]
    return {_canonical(each["name"]): licence_of_metadata(each) for each in told}


def node_packages(locks: Sequence[Path]) -> Iterator[tuple[Package, str]]:
    for path in locks:
        for place, told in json.loads(path.read_text())["packages"].items():
            if place and not told.get("link"):
                licence = told.get("license", "")
                name = told.get("name", place.rpartition("node_modules/")[2])
                yield Package("npm", name, told["version"]), licence if isinstance(licence, str) else ""


def go_packages(folders: Sequence[Path]) -> Iterator[tuple[Package, str]]:
    """Raises CannotAskError where Go cannot bring the modules."""
    own = "github.com/tool-hub/tool-hub/"
    for folder in folders:
        decoder, said = json.JSONDecoder(), _output("go", "mod", "download", "-json", cwd=folder).strip()
        while said:
            module, end = decoder.raw_decode(said)
            said = said[end:].lstrip()
            if not module["Path"].startswith(own):
                yield (
                    Package("Go", module["Path"], module["Version"].removeprefix("v")),
                    _licence_in(Path(module["Dir"])),
                )


def crates(manifest: Path) -> Iterator[tuple[Package, str]]:
    """Raises CannotAskError where cargo is not on the path, or cannot bring them."""
    said = _output("cargo", "metadata", "--quiet", "--format-version", "1", "--manifest-path", str(manifest))
    for told in json.loads(said)["packages"]:
        if told["source"]:
            yield Package("crates.io", told["name"], told["version"]), (told["license"] or "").replace("/", " OR ")


def everything_locked() -> tuple[dict[Package, str | None], list[str]]:
    """Each package with its licence, None where that could not be asked, and what could not be asked."""
    unasked: list[str] = []
    found: dict[Package, str | None] = {}
    for path in (*sorted(TOOLCHAIN.glob("*.txt")), *sorted((ROOT / "tests/servers").glob("*.txt"))):
        found.update(python_packages(path, unasked))
    parts: dict[str, Iterator[tuple[Package, str]]] = {
        "npm packages": node_packages([TOOLCHAIN / "package-lock.json", ROOT / "tests/servers/package-lock.json"]),
        "Go modules": go_packages([ROOT / folder for folder in GO_FOLDERS]),
        "crates of examples/rust": crates(ROOT / "examples/rust/Cargo.toml"),
    }
    for name, packages in parts.items():
        try:
            found.update(packages)
        except CannotAskError as reason:
            unasked.append(f"{name}: {reason}")
    return found, unasked


def judge_licences(licences: Mapping[Package, str | None], accepted: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Those that are copyleft or not known, and that no reason accepts as they are."""
    failures = []
    for package, licence in sorted(licences.items(), key=lambda each: each[0]):
        if licence is None or (kind := kind_of(licence)) == PERMISSIVE:
            continue
        reason = accepted.get(f"{package.ecosystem} {package.name}")
        if reason is None:
            failures.append(f"{package} is {kind} ({licence or 'states no licence'})")
        elif reason["licence"] != (licence or "none"):
            failures.append(f"{package} states {licence or 'no licence'}; what was accepted is {reason['licence']}")
    return failures


def judge_advisories(advisories: Mapping[str, Advisory], accepted: Mapping[str, str]) -> list[str]:
    """Those that nobody withdrew, and that no reason accepts under any of their names."""
    return [
        f"{', '.join(map(str, packages))}: {name} {told.get('summary', '')} (https://osv.dev/{name})"
        for name, (packages, told) in sorted(advisories.items(), key=lambda each: each[0])
        if not told.get("withdrawn") and not {name, *told.get("aliases", ())} & accepted.keys()
    ]


def unneeded_reasons(licences: Mapping[Package, str | None], accepted: Mapping[str, object]) -> list[str]:
    """Reasons for packages that are locked no more, or whose licence needs none."""
    needing = {
        f"{each.ecosystem} {each.name}" for each, licence in licences.items() if kind_of(licence or "") != PERMISSIVE
    }
    ecosystems = {package.ecosystem for package in licences}
    return [f"the licence of {key}" for key in accepted if key not in needing and key.split()[0] in ecosystems]


def ask_osv(packages: Iterable[Package], url: str) -> dict[str, Advisory]:
    """Each advisory on one of the packages, by its id. Raises CannotAskError."""
    waiting: list[tuple[Package, dict[str, Any]]] = [
        (each, {"package": {"ecosystem": each.ecosystem, "name": each.name}, "version": each.version})
        for each in sorted(packages)
    ]
    found: dict[str, list[Package]] = {}
    try:
        with httpx.Client(base_url=url, timeout=30) as osv:
            while waiting:
                asked, waiting = waiting[:QUERIES_IN_ONE], waiting[QUERIES_IN_ONE:]
                answer = osv.post("/v1/querybatch", json={"queries": [query for _, query in asked]}).raise_for_status()
                for (package, query), result in zip(asked, answer.json()["results"], strict=True):
                    for each in result.get("vulns", ()):
                        found.setdefault(each["id"], []).append(package)
                    if token := result.get("next_page_token"):
                        waiting.append((package, {**query, "page_token": token}))
            return {
                name: (concerned, osv.get(f"/v1/vulns/{name}").raise_for_status().json())
                for name, concerned in found.items()
            }
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise CannotAskError(f"{url} did not answer ({error})") from error


def audit(url: str) -> Findings:
    """Everything that is locked."""
    accepted = yaml.safe_load(ACCEPTED.read_text())
    licences, unasked = everything_locked()
    failures = judge_licences(licences, accepted["licences"])
    try:
        failures += judge_advisories(ask_osv(licences, url), accepted["advisories"])
    except CannotAskError as reason:
        unasked.append(f"advisories: {reason}")
    return Findings(failures, unasked, unneeded_reasons(licences, accepted["licences"]))


def main() -> int:
    """0, or 1 where something was found, or could not be asked though AUDIT_REQUIRED=1."""
    found = audit(os.environ.get("TOOLHUB_OSV_URL", OSV_URL))
    for line in found.unneeded:
        print(f"audit-deps: .ci/accepted.yaml gives a reason that nothing needs any more: {line}")
    for line in found.unasked:
        print(f"audit-deps: not asked: {line}")
    for line in found.failures:
        print(f"audit-deps: {line}", file=sys.stderr)
    if found.failures:
        print("audit-deps: take another version or package, or give the reason in .ci/accepted.yaml", file=sys.stderr)
        return 1
    print("audit-deps: what was asked is permissive and without advisories, or accepted with a reason")
    return 1 if found.unasked and os.environ.get("AUDIT_REQUIRED") == "1" else 0


def _environments() -> list[str]:
    """Folders of installed packages: the project's, and those that targets of the makefile make beside them."""
    patterns = (
        "lib/python*/site-packages",
        "peers/lib/python*/site-packages",
        "lock/lib/python*/site-packages",
        "clients/*",
    )
    return [str(folder) for pattern in patterns for folder in VENV.glob(pattern)]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence_in(folder: Path) -> str:
    files = sorted(
        path for path in folder.iterdir() if re.match(r"(?i)licen[cs]e|copying", path.name) and path.is_file()
    )
    return licence_of_text(files[0].read_text(errors="replace")) if files else ""


def _output(*command: str, cwd: Path = ROOT) -> str:
    if shutil.which(command[0]) is None:
        raise CannotAskError(f"{command[0]} is not on the path")
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise CannotAskError(failure_reason(ran.stdout + ran.stderr, ran.returncode))
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
