"""Workflows as n8n keeps them, and the different shapes in which its API returns one and the same.

Version 2 knows drafts and what is published: `versionId` is the draft, `activeVersionId` what answers calls.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import string
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.n8n.moments import iso

WEBHOOK = "n8n-nodes-base.webhook"
OWNER_ID = str(uuid.UUID(int=0xE8918CDC, version=4))
_PROJECT_ID = "spFakeProject000"
_DEFAULTS: dict[str, dict[str, Any]] = {
    WEBHOOK: {"multipleMethods": False, "authentication": "none", "webhookNotice": ""},
    "n8n-nodes-base.respondToWebhook": {"enableResponseOutput": False, "generalNotice": "", "webhookNotice": ""},
    "n8n-nodes-base.wait": {"resume": "timeInterval"},
    "n8n-nodes-base.stopAndError": {"errorType": "errorMessage"},
}
_LETTERS = string.ascii_letters + string.digits
_HISTORY_IDS = itertools.count(1)


def new_id() -> str:
    """Sixteen letters and digits, as n8n makes them."""
    return "".join(secrets.choice(_LETTERS) for _ in range(16))


@dataclass
class Workflow:
    id: str
    name: str
    nodes: list[dict[str, Any]]
    connections: dict[str, Any]
    settings: dict[str, Any]
    description: str | None = None
    active: bool = False
    is_archived: bool = False
    tags: list[dict[str, Any]] = field(default_factory=list)
    pin_data: dict[str, Any] | None = None
    authors: str = "import"
    created_at: str = field(default_factory=iso)
    updated_at: str = field(default_factory=iso)
    version_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    version_counter: int = 1
    trigger_count: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    seen_values: set[str] = field(default_factory=set)
    """What its Remove Duplicates nodes remember."""

    def node(self, name: str) -> dict[str, Any]:
        return next(node for node in self.nodes if node["name"] == name)

    @property
    def webhooks(self) -> Iterator[dict[str, Any]]:
        return (node for node in self.nodes if node["type"] == WEBHOOK)

    def activate(self) -> dict[str, Any]:
        """Publish the draft; one that is active already is taken down first, and the history says both."""
        if self.active:
            self._note("deactivated")
        self._note("activated")
        self.active = True
        self.trigger_count = 1
        self.version_counter += 2
        version = self._version()
        return self._whole() | {"activeVersion": (version or {}) | {"workflowPublishHistory": list(self.history)}}

    def deactivate(self) -> dict[str, Any]:
        """Take it down; the answer has the counter of before, and no tags."""
        self._note("deactivated")
        self.active = False
        fields = self.got() | {"versionCounter": self.version_counter}
        self.version_counter += 1
        del fields["tags"]
        return fields

    def _note(self, event: str) -> None:
        entry = {"createdAt": iso(), "id": next(_HISTORY_IDS), "workflowId": self.id, "versionId": self.version_id}
        self.history.append(entry | {"event": event, "userId": OWNER_ID})

    def listed(self, *, with_pins: bool = True) -> dict[str, Any]:
        """A row of `GET /workflows`."""
        fields = self._head() | self._body(with_pins=with_pins) | {"triggerCount": self.trigger_count}
        return fields | {"shared": [self._share()], "activeVersion": self._version(), "tags": self.tags}

    def got(self) -> dict[str, Any]:
        """`GET /workflows/{id}`."""
        shared = self._share() | {"project": _project()}
        fields = self._whole() | {"shared": [shared], "tags": self.tags}
        return fields | {"activeVersion": self._version()}

    def as_created(self) -> dict[str, Any]:
        """The answer to `POST /workflows`."""
        return {key: value for key, value in self._whole().items() if key != "tags"}

    def begun(self) -> dict[str, Any]:
        """As an execution at work holds it."""
        fields = {"connections": self.connections, "nodes": [with_defaults(node) for node in self.nodes]}
        return fields | {"name": self.name, "settings": self.settings, "id": self.id}

    def kept(self) -> dict[str, Any]:
        """As an execution keeps it: with the parameters that nobody set."""
        fields = self._head() | {"activeVersionId": self.version_id if self.active else None}
        fields |= {"nodes": [with_defaults(node) for node in self.nodes], "connections": self.connections}
        return fields | {"settings": self.settings, "staticData": None, "pinData": self.pin_data}

    def _head(self) -> dict[str, Any]:
        fields = {"updatedAt": self.updated_at, "createdAt": self.created_at, "id": self.id, "name": self.name}
        return fields | {"active": self.active, "isArchived": self.is_archived}

    def _body(self, *, with_pins: bool = True) -> dict[str, Any]:
        fields: dict[str, Any] = {"nodes": self.nodes, "connections": self.connections, "settings": self.settings}
        fields |= {"staticData": None, "meta": None}
        if with_pins:
            fields["pinData"] = self.pin_data
        active = self.version_id if self.active else None
        return fields | {"versionId": self.version_id, "activeVersionId": active}

    def _whole(self) -> dict[str, Any]:
        counted = {"versionCounter": self.version_counter, "triggerCount": self.trigger_count}
        return self._head() | {"description": self.description} | self._body() | counted

    def _version(self) -> dict[str, Any] | None:
        if not self.active:
            return None
        fields: dict[str, Any] = {"updatedAt": self.updated_at, "createdAt": self.created_at}
        fields |= {"versionId": self.version_id}
        fields |= {"workflowId": self.id, "nodes": copy.deepcopy(self.nodes), "connections": self.connections}
        return fields | {"authors": self.authors, "name": None, "description": None, "autosaved": False}

    def _share(self) -> dict[str, Any]:
        fields = {"updatedAt": self.created_at, "createdAt": self.created_at, "role": "workflow:owner"}
        return fields | {"workflowId": self.id, "projectId": _PROJECT_ID}


def with_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """A node with the parameters that nobody set, as executions hold it."""
    return node | {"parameters": _DEFAULTS.get(node["type"], {}) | node.get("parameters", {})}


def _project() -> dict[str, Any]:
    at = iso()
    fields = {"updatedAt": at, "createdAt": at, "id": _PROJECT_ID, "name": "Lab Owner <lab@example.com>"}
    return fields | {"type": "personal", "icon": None, "description": None, "creatorId": OWNER_ID}


def imported(given: Mapping[str, Any]) -> Workflow:
    """A workflow file, as `n8n import:workflow` takes it: it keeps its id and comes in inactive."""
    given = copy.deepcopy(dict(given))
    return Workflow(
        given.get("id") or new_id(),
        given["name"],
        given["nodes"],
        given["connections"],
        given.get("settings", {}),
        description=given.get("description"),
        tags=[tag_of(tag) for tag in given.get("tags", [])],
        pin_data=given.get("pinData", {}),
    )


def created(given: Mapping[str, Any]) -> Workflow:
    """The body of `POST /workflows`: it gets an id and two more settings."""
    settings = dict(given["settings"]) | {"callerPolicy": "workflowsFromSameOwner", "availableInMCP": False}
    workflow = imported(dict(given) | {"id": new_id(), "settings": settings})
    workflow.authors, workflow.pin_data = "Lab Owner", None
    return workflow


def tag_of(tag: str | Mapping[str, Any]) -> dict[str, Any]:
    """A tag; workflow files name it or hold it whole."""
    name = tag if isinstance(tag, str) else tag["name"]
    known = tag.get("id") if isinstance(tag, Mapping) else None
    return {"createdAt": iso(), "updatedAt": iso(), "id": known or f"tag{name}", "name": name}
