"""A process that appends until it is killed: `python audit_victim.py <folder>`. Prints each durable sequence."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import started_log
from toolhub_service.stores.audit.log import WriterTiming


async def main(folder: Path) -> None:
    log = await started_log(folder, timing=WriterTiming(linger_s=0.001, checkpoint_events=20))
    number = 0
    while True:
        number += 1
        log.append(called(number))
        if number % 7 == 0:
            await log.append_durably(called(number))
            print(number + number // 7, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
