"""A process that appends until it is killed, run with a URL and a folder. Prints each durable sequence."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.postgres_logs import started_postgres_log
from toolhub_service.stores.audit.log import WriterTiming


async def main(url: str, folder: Path) -> None:
    log = await started_postgres_log(url, folder, timing=WriterTiming(linger_s=0.001, checkpoint_events=20))
    number = 0
    while True:
        number += 1
        log.append(called(number))
        if number % 7 == 0:
            await log.append_durably(called(number))
            print(number + number // 7, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
