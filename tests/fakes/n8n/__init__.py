"""A fake n8n, held to recordings of the real one (2.8.4) by tests/recordings.

    async with fake_n8n(workflows=[...], credentials={"hubCred000000001": ("X-Hub-Token", "…")}) as n8n:
        client.post(f"{n8n.url}/webhook/hub-last", json={"a": 1})

It is a real HTTP server on loopback that takes workflows as n8n exports them and runs the nodes that those of the tests
use (nodes.py; JavaScript as far as expressions.py knows it, else `n8n.code("Node name", python_function)`).

What there is
    /webhook/<path>         every response mode; 404 of unknown, inactive and wrong method, 403, 422
    /webhook-test/<path>    404: nobody listens in the editor
    /api/v1/workflows       list (limit, cursor, active, name, tags, excludePinnedData), get, create, delete, activate,
                            deactivate, tags; header X-N8N-API-KEY: `n8n.api_key` or `n8n.make_key("workflow:list")`
    /api/v1/executions      list (workflowId, status, limit, cursor, includeData), get, delete, retry; stop from
                            `version="2.10.0"` on
    /rest                   settings, owner/setup, login, api-keys, executions/{id}/stop (`owner=Owner()` may log in)
    /healthz[/readiness]    {"status": "ok"}

What n8n does that one would not think, and this server does as well
    an error before the Respond node     200 with an empty body, and the type of JSON
    any other error in a workflow        500 {"message": "Error in workflow"}, or nothing to be seen with onReceived
    `responseData` of onReceived         text/html, whatever it holds
    a caller that hangs up               the execution goes on
    the same idempotency key twice       two executions
    a list without status                leaves out what runs or waits; `status=waiting` is always empty
    errors of webhooks and of /rest      `stacktrace` (and `hint`) with paths of the server
    404 "not found" / "Not Found"        no such route (an old version) / no such thing

Time
    `time_scale` (0.001) is the real seconds for one second of a workflow; None holds every wait until
    `n8n.release(execution_id)`. From 65 s on an execution is `waiting` with waitTill; below it is `running`.

To look and to wait, without sleeping
    n8n.requests, n8n.asked(method, glob)           what arrived; `await n8n.was_asked(method, glob, times)`
    n8n.starts(workflow_id)                         how often it was really begun; `await n8n.began(workflow_id, times)`
    n8n.executions[id], .began, .forget(id)         what is known, what ever was, prune
    n8n.executions.hide(id, lists=1)                left out of the next list, as an execution that has just ended
    await n8n.reached(id, status), .ended(id)

To go wrong: `fault = n8n.fails(path_glob, How.…, method="", times=1, skip=0, …)`; see How for what there is,
FOREVER for `times`, `fault.hits`, `fault.let_go()`, `fault.over()`. An API that is away while webhooks work is
`n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)`. `await n8n.down()`, `n8n.up()`, `n8n.restart()` (what ran has
`crashed`, what waits goes on, open requests get no answer).
"""

from __future__ import annotations

from tests.fakes.n8n.executions import Execution
from tests.fakes.n8n.faults import FOREVER, Fault, How
from tests.fakes.n8n.server import FakeN8n, fake_n8n
from tests.fakes.n8n.workflows import Workflow
from tests.fakes.n8n.world import Owner, RecordedRequest

__all__ = ["FOREVER", "Execution", "FakeN8n", "Fault", "How", "Owner", "RecordedRequest", "Workflow", "fake_n8n"]
