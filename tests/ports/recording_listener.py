"""A listener of a store that keeps what it receives and lets a test wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.job import JobNews

News = TypeVar("News")


class RecordingListener(Generic[News]):
    def __init__(self) -> None:
        self.news: list[News] = []
        self._more = asyncio.Event()

    def __call__(self, news: News) -> None:
        self.news.append(news)
        self._more.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not enough():
                self._more.clear()
                await self._more.wait()


class JobListener(RecordingListener[JobNews]):
    def sequences(self, job_id: str) -> list[int]:
        """The numbers of a job's entries that came, without repeats."""
        return list(dict.fromkeys(news.sequence for news in self.news if news.job_id == job_id))


class ApprovalListener(RecordingListener[Approval | None]):
    def versions(self, approval_id: str = "apr-1") -> list[int]:
        """The versions of an approval that came, without repeats."""
        own = (each for each in self.news if each is not None and each.approval_id == approval_id)
        return list(dict.fromkeys(each.version for each in own))
