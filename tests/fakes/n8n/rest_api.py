"""`/rest`: the internal API behind the editor, with a cookie instead of a key.

The rule of the browser id: a cookie made by a login with header `browser-id` is good only together with that header;
a request without it is answered 401, and the cookie is dead from then on.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from tests.fakes.n8n.answers import Answer, json_answer, problem
from tests.fakes.n8n.moments import iso
from tests.fakes.n8n.public_api import not_stoppable
from tests.fakes.n8n.workflows import OWNER_ID, new_id
from tests.fakes.n8n.world import Owner, RecordedRequest, ServerState

COOKIE = "n8n-auth"
_HANDLING = ("handler (~/n8n/src/controller.registry.ts:110:12)", "~/n8n/src/response-helper.ts:161:17")
_SETUP = (
    "OwnershipService.setupOwner (~/n8n/src/services/ownership.service.ts:221:10)",
    "OwnerController.setupOwner (~/n8n/src/controllers/owner.controller.ts:27:17)",
    *_HANDLING,
)
_LOGIN = ("AuthController.login (~/n8n/src/controllers/auth.controller.ts:140:9)", *_HANDLING)
_STOP = (
    "ExecutionService.assertStoppable (~/n8n/src/executions/execution.service.ts:552:10)",
    "ExecutionService.stop (~/n8n/src/executions/execution.service.ts:511:8)",
    "ExecutionsController.stop (~/n8n/src/executions/executions.controller.ts:113:10)",
    *_HANDLING,
)
_OWNER_SCOPES = ["apiKey:manage", "tag:list", "user:list", "workflow:create", "workflow:execute", "workflow:update"]


class InternalApi:
    def __init__(self, world: ServerState) -> None:
        self._world = world

    async def answer(self, asked: RecordedRequest) -> Answer:
        match asked.method, asked.path:
            case "GET", "/rest/settings":
                return json_answer({"data": self._settings()})
            case "POST", "/rest/owner/setup":
                return self._set_up(asked)
            case "POST", "/rest/login":
                return self._log_in(asked)
        return self._signed_in(asked) if self._is_signed_in(asked) else _dismissed(asked)

    def _signed_in(self, asked: RecordedRequest) -> Answer:
        match asked.method, asked.path:
            case "GET", "/rest/api-keys/scopes":
                return json_answer({"data": list(self._world.scopes)})
            case "POST", "/rest/api-keys":
                return self._make_key(asked)
        stop = re.fullmatch(r"/rest/executions/([^/]+)/stop", asked.path)
        if stop and asked.method == "POST":
            return self._stop(stop[1])
        return problem(404, f"Cannot {asked.method} {asked.path}", *_HANDLING, kind="NotFoundError")

    def _is_signed_in(self, asked: RecordedRequest) -> bool:
        cookie = asked.cookies.get(COOKIE, "")
        browser_id = self._world.sessions.get(cookie)
        if browser_id is None:
            return False
        if browser_id and asked.headers.get("browser-id") != browser_id:
            del self._world.sessions[cookie]
            return False
        return True

    def _set_up(self, asked: RecordedRequest) -> Answer:
        given = asked.json
        if not 8 <= len(given["password"]) <= 64:
            fault = {"code": "too_small", "minimum": 8, "type": "string", "inclusive": True, "exact": False}
            fault |= {"message": "Password must be 8 to 64 characters long.", "path": ["password"]}
            return json_answer(fault, 400)
        if self._world.owner is not None:
            return problem(400, "Instance owner already setup", *_SETUP)
        self._world.owner = Owner(given["email"], given["firstName"], given["lastName"], given["password"])
        return self._welcomed(asked, self._world.owner, iso())

    def _log_in(self, asked: RecordedRequest) -> Answer:
        owner, given = self._world.owner, asked.json
        if owner is None or (given["emailOrLdapLoginId"], given["password"]) != (owner.email, owner.password):
            return problem(401, "Wrong username or password. Do you have caps lock on?", *_LOGIN, kind="AuthError")
        return self._welcomed(asked, owner, iso()[:10])

    def _welcomed(self, asked: RecordedRequest, owner: Owner, last_active_at: str) -> Answer:
        """The user, and a cookie for the browser that asked."""
        cookie = secrets.token_urlsafe(24)
        self._world.sessions[cookie] = asked.headers.get("browser-id", "")
        answer = json_answer({"data": self._user(owner, last_active_at)})
        header = f"{COOKIE}={cookie}; Max-Age=604800; Path=/; HttpOnly; SameSite=Lax"
        return Answer(200, answer.body, headers={"Set-Cookie": header})

    def _user(self, owner: Owner, last_active_at: str) -> dict[str, Any]:
        user: dict[str, Any] = {"createdAt": iso(), "id": OWNER_ID, "email": owner.email}
        user |= {"firstName": owner.first_name, "lastName": owner.last_name, "personalizationAnswers": None}
        user |= {"settings": self._usage(), "disabled": False, "mfaEnabled": False, "lastActiveAt": last_active_at}
        user |= {"isPending": False, "role": "global:owner", "signInType": "email", "isOwner": True}
        return user | {"featureFlags": {}, "globalScopes": _OWNER_SCOPES, "mfaAuthenticated": False}

    def _usage(self) -> dict[str, Any]:
        """A person counts as active from the first execution that succeeded."""
        first = next((row for row in self._world.book.began if row.status == "success"), None)
        if first is None:
            return {"userActivated": False}
        first_fields = {"userActivated": True, "firstSuccessfulWorkflowId": first.workflow.id}
        return first_fields | {"userActivatedAt": first.established_ms}

    def _make_key(self, asked: RecordedRequest) -> Answer:
        given = asked.json
        if "expiresAt" not in given:
            fault = {"code": "invalid_type", "expected": "number", "received": "undefined"}
            return json_answer(fault | {"path": ["expiresAt"], "message": "Required"}, 400)
        key, at = self._world.make_key(frozenset(given["scopes"])), iso()
        made = {"updatedAt": at, "createdAt": at, "id": new_id(), "userId": OWNER_ID, "label": given["label"]}
        made |= {"scopes": given["scopes"], "apiKey": f"******{key[-4:]}", "audience": "public-api"}
        return json_answer({"data": made | {"rawApiKey": key, "expiresAt": given["expiresAt"]}})

    def _stop(self, execution_id: str) -> Answer:
        execution = self._world.book.known.get(execution_id)
        if execution is None:
            return problem(500, "No execution found to stop", *_STOP, kind="MissingExecutionStopError", code=0)
        if not execution.is_active:
            return problem(500, not_stoppable(execution), *_STOP, kind="WorkflowOperationError", code=0)
        self._world.engine.stop(execution)
        return json_answer({"data": execution.as_stopped()})

    def _settings(self) -> dict[str, Any]:
        management = {"authenticationMethod": "email", "showSetupOnFirstLoad": self._world.owner is None}
        oidc = {"loginEnabled": False, "loginUrl": f"{self._world.url}/rest/sso/oidc/login"}
        sso = {"saml": {"loginEnabled": False}, "ldap": {"loginEnabled": False, "loginLabel": ""}, "oidc": oidc}
        public_settings: dict[str, Any] = {"settingsMode": "public", "defaultLocale": "en"}
        public_settings |= {
            "userManagement": management | {"smtpSetup": False},
            "sso": sso,
            "authCookie": {"secure": False},
        }
        public_settings |= {"previewMode": False, "enterprise": {"saml": False, "ldap": False, "oidc": False}}
        return public_settings | {"communityNodesEnabled": False}


def _dismissed(asked: RecordedRequest) -> Answer:
    headers = {"Set-Cookie": f"{COOKIE}=; Max-Age=0; Path=/"} if COOKIE in asked.cookies else {}
    body = json_answer({"status": "error", "message": "Unauthorized"}).body
    return Answer(401, body, headers=headers)
