"""Runs workflows: each execution is a task that goes on whether or not its caller stays.

Waits are real but scaled: `time_scale` is the real seconds for one second of a workflow; None holds every wait until
the execution is released. A wait under 65 s stays `running` in memory, from 65 s on the execution is `waiting` and
survives a restart; what runs at a restart has `crashed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.fakes.n8n.answers import Answer, GoneError, json_answer, message
from tests.fakes.n8n.executions import Execution, ExecutionBook
from tests.fakes.n8n.moments import epoch_ms, iso
from tests.fakes.n8n.nodes import CodeStandIn, Item, NodeError, Step, act
from tests.fakes.n8n.workflows import Workflow, with_defaults

PERSISTED_FROM_S = 65.0
Source = dict[str, Any]
Todo = tuple[str, list[Item], list[Source]]


class ChangeSignal:
    """Waiters for a condition check it again at each change."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class Engine:
    def __init__(self, book: ExecutionBook, news: ChangeSignal) -> None:
        self.book = book
        self.time_scale: float | None = 0.001
        self.code: dict[str, CodeStandIn] = {}
        self._news = news
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, workflow: Workflow, trigger: dict[str, Any], item: Item) -> Execution:
        """Start what a webhook triggers."""
        execution = self.book.add(workflow, trigger=trigger, first=item)
        self._spawn(execution, [(trigger["name"], [item], [])])
        return execution

    def retry(self, failed: Execution) -> Execution:
        """Go on from the node that failed, as a new execution."""
        left = failed.left[0]
        execution = self.book.add(failed.workflow, mode="retry", retry_of=failed.number, trigger=failed.trigger)
        name = left["node"]["name"]
        execution.run_data = {node: runs for node, runs in failed.run_data.items() if node != name}
        self._spawn(execution, [(name, left["data"]["main"][0], left["source"]["main"])])
        return execution

    def stop(self, execution: Execution) -> None:
        """Cancel one that runs or waits."""
        self._finish(execution, "canceled")
        self._tasks.pop(execution.id).cancel()

    def restart(self) -> None:
        """What a restart of n8n does to its executions."""
        for execution in self.book:
            if execution.status == "running":
                self._finish(execution, "crashed")
                self._tasks.pop(execution.id).cancel()
            elif execution.is_active:
                self._hang_up(execution)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for execution in self.book.began:
            self._hang_up(execution)

    def _spawn(self, execution: Execution, todo: list[Todo]) -> None:
        # A failure that nobody asked for is no failure of the test.
        execution.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks[execution.id] = asyncio.create_task(self._run(execution, todo))
        self._news.notify()

    async def _run(self, execution: Execution, todo: list[Todo]) -> None:
        try:
            while todo:
                todo += await self._step(execution, *todo.pop(0))
        except NodeError as error:
            execution.error = error.fields
            self._finish(execution, "error")
        else:
            self._finish(execution, "success")
        self._tasks.pop(execution.id, None)

    async def _step(self, execution: Execution, name: str, items: list[Item], sources: list[Source]) -> list[Todo]:
        """Run one node, record its result, and return the next."""
        node = execution.workflow.node(name)
        began_ms, execution.last_node = epoch_ms(), name
        noted: dict[str, Any] = {"startTime": began_ms, "executionIndex": execution.steps, "source": sources}
        execution.steps += 1
        execution.at_work = {"node": with_defaults(node), "data": {"main": [items]}, "source": {"main": sources}}
        try:
            outputs = await act(Step(node, execution, items, self._wait, self.code))
        except NodeError as error:
            noted |= {"hints": [], "executionTime": epoch_ms() - began_ms, "executionStatus": "error"}
            execution.run_data[name] = [noted | {"error": error.fields}]
            execution.left = [execution.at_work]
            raise
        noted |= {"hints": [], "executionTime": epoch_ms() - began_ms, "executionStatus": "success"}
        execution.run_data[name] = [noted | {"data": {"main": outputs}}]
        return _next(execution.workflow, name, outputs)

    async def _wait(self, execution: Execution, seconds: float) -> None:
        if seconds >= PERSISTED_FROM_S:
            execution.status, execution.stopped_at, execution.wait_till = "waiting", iso(), iso(seconds)
            self._news.notify()
        scaled_s = None if self.time_scale is None else seconds * self.time_scale
        try:
            async with asyncio.timeout(scaled_s):
                await execution.released.wait()
        except TimeoutError:
            pass
        execution.status, execution.stopped_at, execution.wait_till = "running", None, None

    def _finish(self, execution: Execution, status: str) -> None:
        execution.status, execution.stopped_at, execution.wait_till = status, iso(), None
        if execution.retry_of is not None and status == "success" and str(execution.retry_of) in self.book.known:
            self.book[execution.retry_of].retry_success_id = execution.id
        if status == "crashed":
            self._hang_up(execution)
        elif not execution.answer.done():
            execution.answer.set_result(_last_answer(execution))
        execution.has_ended.set()
        self._news.notify()

    def _hang_up(self, execution: Execution) -> None:
        if not execution.answer.done():
            execution.answer.set_exception(GoneError())


def _next(workflow: Workflow, name: str, outputs: list[list[Item]]) -> list[Todo]:
    wired = workflow.connections.get(name, {}).get("main", [])
    return [
        (target["node"], items, [{"previousNode": name, "previousNodeOutput": output, "previousNodeRun": 0}])
        for output, (items, targets) in enumerate(zip(outputs, wired, strict=False))
        for target in targets or []
        if items
    ]


def _last_answer(execution: Execution) -> Answer:
    """What the caller gets who waited for the end: nothing but an empty 200 where the Respond node was not reached."""
    parameters = execution.trigger.get("parameters", {})
    if parameters.get("responseMode") == "responseNode":
        return Answer(200)
    if execution.status != "success":
        return message(500, "Error in workflow")
    values = [item["json"] for item in execution.output]
    if parameters.get("responseData") == "allEntries":
        return json_answer(values)
    return json_answer(values[0] if values else {})
