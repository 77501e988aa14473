"""A hub in a process of its own whose tool asks: `python -m tests.rpc.asking_hub FOLDER`, until it is killed.

Says in one line of JSON where it listens and what it knows of itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.rpc.test_questions import questions_harness


async def main(folder: Path, names: tuple[str, ...]) -> None:
    async with questions_harness(folder, names) as office:
        keys = {name: dict(office.by(name))["authorization"] for name in names}
        print(json.dumps({"address": office.running.address, "keys": keys}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
