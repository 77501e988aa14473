"""The driver of the scripted job server is a right `RemoteJob`: the model passes the suite of its port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import FixedRandomness
from tests.fakes.http_remote_job import HttpRemoteJob
from tests.fakes.job_server import JobServer, job_server
from tests.fakes.job_server_faults import How, Op
from tests.fakes.remote_stage import SOON, a_client, remote_call
from tests.ports.remote_job_suite import RemoteJobSuite, Trouble
from toolhub_service.adapters.remote_polling import Poller

_SCRIPT = {
    Trouble.START_REFUSED: (Op.START, How.REFUSE),
    Trouble.START_ANSWER_LOST: (Op.START, How.LOSE_ANSWER),
    Trouble.START_LOST: (Op.START, How.DROP),
    Trouble.FIND_BROKEN: (Op.FIND, How.DROP),
    Trouble.FOLLOW_CUT: (Op.STATUS, How.CUT),
    Trouble.FORGOTTEN: (Op.STATUS, How.FORGET),
    Trouble.STOP_BROKEN: (Op.CANCEL, How.DROP),
    Trouble.COLLECT_CUT: (Op.RESULT, How.CUT),
    Trouble.RESULT_GONE: (Op.RESULT, How.FORGET),
}


class ScriptedStage:
    """Implements `RemoteStage`."""

    def __init__(self, server: JobServer, remote: HttpRemoteJob) -> None:
        self.remote = remote
        self.call = remote_call(server.url, {"holds": True, "result": "made"})
        self._server = server

    @property
    def effects(self) -> int:
        return self._server.effects.total()

    def meet(self, trouble: Trouble) -> None:
        if trouble is Trouble.STOP_IMPOSSIBLE:
            self._server.can_stop = False
        else:
            self._server.script.add(*_SCRIPT[trouble])

    def let_go(self) -> None:
        self._server.let_go.set()


class TestHttpRemoteJob(RemoteJobSuite):
    @pytest.fixture
    async def stage(self) -> AsyncIterator[ScriptedStage]:
        async with job_server() as server, a_client() as client:
            yield ScriptedStage(server, HttpRemoteJob(client, server.url, Poller(FixedRandomness(), SOON)))
