"""Skills that an MCP server serves (SEP-2640): each becomes a tool that reads it and never executes it.

Only a server that declares the extension is asked. A listing contains each skill's frontmatter and the digest of each
of its files; a file is fetched only when it is read, and must match the digest and size in the listing, SKILL.md also
its frontmatter. Pins are computed from the listing. A nested skill has its own listing, tool and approval, and is not
read through the outer one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from mcp import MCPError

from toolhub_service.adapters.definitions import Overrides, SourceTerms
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.link import McpLink, McpServer, McpSession
from toolhub_service.adapters.skill.definitions import READ, READ_INPUT, READ_OUTPUT
from toolhub_service.adapters.skill.skill_file import SkillInvalid, frontmatter_of, read_skill_file
from toolhub_service.adapters.tool_names import Unnamed, known_name
from toolhub_service.adapters.upstream import as_object, as_string, keep_bytes, one_line, quote_foreign, write_json
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType, Outcome
from toolhub_service.domain.source import Definition
from toolhub_service.domain.tool import Annotations, SkillListing
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redact

EXTENSION: Final = "io.modelcontextprotocol/skills"
SKILLS_MAX: Final = 500
FILES_MAX: Final = 512  # the extension's own limits of a skill
SKILL_MAX_BYTES: Final = 16 * 1024 * 1024
_PAGES_MAX: Final = 50
_TEXT_MAX_BYTES: Final = 64 * 1024
_SKILL_MD: Final = "SKILL.md"
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_URI_MAX_CHARS: Final = 2_000
_ENTRY_MAX_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class ServedFile:
    uri: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ServedSkill:
    """A skill as the server lists it. Untrusted."""

    uri: str
    """URI of its SKILL.md."""
    frontmatter: JsonObject
    files: Mapping[str, ServedFile]
    """By path from the folder of SKILL.md."""

    @property
    def name(self) -> str:
        return as_string(self.frontmatter.get("name"))


async def read_skills(
    link: McpLink, session: McpSession, redact: Redact, mask: Mask, problems: list[str]
) -> list[ServedSkill]:
    """Return the skills on all pages of `skills/list`, without the source's own secrets. An unusable skill becomes a
    problem and does not fail the reading."""
    found: list[ServedSkill] = []
    cursor = ""
    for _ in range(_PAGES_MAX if EXTENSION in session.extensions else 0):
        try:
            page = await link.send(session, "skills/list", {"cursor": cursor} if cursor else {})
        except MCPError as error:
            problems.append(
                f"The list of skills could not be read. The server says: {quote_foreign(error.error.message, redact)}"
            )
            return found
        entries = page.get("skills")
        for entry in entries if isinstance(entries, list) else ():
            try:
                found.append(_skill(mask.object(entry) if isinstance(entry, Mapping) else entry))
            except Unnamed as unnamed:
                problems.append(unnamed.problem)
            if len(found) >= SKILLS_MAX:
                problems.append(f"Only the first {SKILLS_MAX} skills are offered.")
                return found
        following = page.get("nextCursor")
        if not isinstance(following, str) or not following or following == cursor:
            return found
        cursor = following
    return found


def definition_of(skill: ServedSkill, terms: SourceTerms, overrides: Overrides) -> Definition | None:
    """Return the tool that reads the skill; None when the operator does not offer it. Raises Unnamed."""
    own_name = f"{skill.name}.{READ}"
    chosen = overrides.of(own_name)
    if not chosen.offered:
        return None
    remote: JsonObject = {
        "name": own_name,
        "description": as_string(skill.frontmatter.get("description")),
        "uri": skill.uri,
        "frontmatter": skill.frontmatter,
        "files": {path: [file.sha256, file.size_bytes] for path, file in skill.files.items()},
    }
    spec = terms.spec(
        known_name(terms.name, own_name, "A skill"),
        f"{own_name}@{hashlib.sha256(write_json(remote) or b'').hexdigest()[:16]}",
        chosen,
        description=f"{remote['description']}\n\nReads the skill `{skill.name}` that the server serves: its "
        "instructions and the list of its files; with `resource`, one of them.",
        input_schema=READ_INPUT,
        output_schema=READ_OUTPUT,
        # The hub sends only `resources/read`, which the protocol defines as a read.
        annotations=Annotations(read_only=True, idempotent=True),
    )
    files = tuple((path, file.sha256, file.size_bytes) for path, file in skill.files.items())
    return Definition(replace(spec, skill=SkillListing(skill.frontmatter, files)), remote)


async def read_served_file(
    server: McpServer, call: GrantedCall, skill: ServedSkill, artifacts: ArtifactService | None, redact: Redact
) -> Outcome:
    """Return one file of a skill. Raises ToolFailure, also for bytes that do not match the listing."""
    asked = call.args.get("resource")
    path = asked if isinstance(asked, str) else _SKILL_MD
    file = skill.files.get(path)
    if file is None:
        message = (
            f"The skill has no file `{one_line(path, 80)}`. Call {call.spec.name} without `resource`: it lists them."
        )
        raise refuse(ErrorKind.NOT_FOUND, message)
    # Read at each call and not cached: the digests of the listing show whether it is still the same file.
    data = await _fetch_file(server, call, file, redact)
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise _other(server, call, f"`{one_line(path, 80)}` is not the file of that digest and size")
    facts: dict[str, JsonValue] = {"skill": skill.name, "digest": _listing_digest(skill)}
    proof = Evidence(EvidenceType.URL, file.uri, f"Read {path} of the skill {skill.name}", sha256=file.sha256)
    if path == _SKILL_MD:
        body = _instructions(server, call, skill, data)
    if asked is None:
        others: list[JsonValue] = [
            {"path": name, "bytes": each.size_bytes} for name, each in skill.files.items() if name != _SKILL_MD
        ]
        return Outcome(value={**facts, "instructions": body, "resources": others}, evidence=(proof,))
    facts |= {"resource": path, "bytes": file.size_bytes, "sha256": file.sha256}
    if len(data) <= _TEXT_MAX_BYTES and (text := _text(data)) is not None:
        return Outcome(value={**facts, "text": text}, evidence=(proof,))
    kept, references = await keep_bytes(data, call.call, artifacts, name=path.rpartition("/")[2])
    return Outcome(value={**facts, **kept}, artifacts=references, evidence=(proof,))


def _skill(entry: JsonValue) -> ServedSkill:
    """Raises Unnamed, whose problem says why the skill is left out."""
    fields = as_object(entry) or {}
    uri, frontmatter = as_string(fields.get("uri")), as_object(fields.get("frontmatter")) or {}
    name = as_string(frontmatter.get("name"))
    label = f"A skill named `{one_line(name, 80)}` was left out"
    if len(write_json(entry) or b"x" * (_ENTRY_MAX_BYTES + 1)) > _ENTRY_MAX_BYTES:
        raise Unnamed(
            f"{label}: its entry in the list has more than {_ENTRY_MAX_BYTES:,} bytes, or is nested too deeply."
        )
    if not name or not as_string(frontmatter.get("description")).strip():
        raise Unnamed(f"{label}: its frontmatter has no name or no description.")
    if not uri.endswith(f"/{_SKILL_MD}") or len(uri) > _URI_MAX_CHARS:
        raise Unnamed(f"{label}: its address does not end in /{_SKILL_MD}.")
    resources = fields.get("resources")
    if not isinstance(resources, list) or not 0 < len(resources) <= FILES_MAX:
        raise Unnamed(f"{label}: it does not list its files with their digests, or has more than {FILES_MAX}.")
    files = dict(_files(resources, uri.removesuffix(_SKILL_MD), label))
    if _SKILL_MD not in files or sum(file.size_bytes for file in files.values()) > SKILL_MAX_BYTES:
        raise Unnamed(f"{label}: {_SKILL_MD} is not among its files, or they have more than {SKILL_MAX_BYTES:,} bytes.")
    return ServedSkill(uri, frontmatter, files)


def _files(resources: list[JsonValue], root: str, label: str) -> Iterator[tuple[str, ServedFile]]:
    for resource in resources:
        fields = as_object(resource) or {}
        uri, size = as_string(fields.get("uri")), fields.get("size")
        path, found = unquote(uri.removeprefix(root)), _DIGEST.fullmatch(as_string(fields.get("digest")))
        is_within = uri.startswith(root) and not {"", ".", ".."} & set(path.split("/")) and path.isprintable()
        if not is_within or found is None or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise Unnamed(f"{label}: a file of it lies elsewhere, or has no SHA-256 digest or size.")
        # A SKILL.md in a subfolder is a separate skill with its own entry.
        if not path.endswith(f"/{_SKILL_MD}"):
            yield path, ServedFile(uri, found[1], size)


async def _fetch_file(server: McpServer, call: GrantedCall, file: ServedFile, redact: Redact) -> bytes:
    session = await server.link.session(call.deadline_s)
    try:
        answer = await server.link.send(session, "resources/read", {"uri": file.uri})
    except MCPError as error:
        raise failures.protocol_failure(call, error, redact) from error
    contents = answer.get("contents")
    first = as_object(contents[0]) if isinstance(contents, list) and len(contents) == 1 else None
    if first is not None and isinstance(text := first.get("text"), str):
        # Strict encoding would raise for a lone surrogate; this way the digest shows that it is another file.
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(as_string((first or {}).get("blob")), validate=True)
    except (binascii.Error, ValueError):
        # No file has the listed digest and these bytes, so the caller refuses it as another file.
        return b""


def _instructions(server: McpServer, call: GrantedCall, skill: ServedSkill, data: bytes) -> str:
    """Return the body of SKILL.md, whose frontmatter must equal the listed one, field by field."""
    try:
        if frontmatter_of(data) != _as_text(skill.frontmatter):
            raise _other(server, call, "the frontmatter of SKILL.md is not the listed one")
        return read_skill_file(data, skill.name).body
    except SkillInvalid as invalid:
        raise _other(server, call, f"SKILL.md cannot be used: {invalid}") from invalid


def _as_text(value: JsonValue) -> JsonValue:
    """Return the value as a YAML reader that keeps all scalars as text would."""
    if isinstance(value, Mapping):
        return {key: _as_text(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_as_text(member) for member in value]
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _listing_digest(skill: ServedSkill) -> str:
    listed = {path: file.sha256 for path, file in sorted(skill.files.items())}
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _text(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _other(server: McpServer, call: GrantedCall, what: str) -> ToolFailure:
    """The server sends another skill than the one that was listed and pinned: it must be listed again."""
    server.changed()
    reason = f"its server sends something else than it listed ({what}): `toolhub pins diff {call.spec.name}` shows it"
    message = f"{call.spec.name} was not read: {reason}. Use another tool, or ask an operator."
    return refuse(ErrorKind.TOOL_QUARANTINED, message, reason=reason)
