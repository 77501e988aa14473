"""`python -m tests.services`: install what the tests need and this machine lacks. Does nothing where all is there."""

from __future__ import annotations

import os
import sys

from tests.missing import required
from tests.services.fixtures import POSTGRES_URL, REDIS_URL
from tests.services.programs import POSTGRES, REDIS, SERVICES, Service, Unavailable, install, remedy


def main() -> int:
    """0, or 1 when a service that is required cannot be had."""
    configured = {REDIS.name: REDIS_URL, POSTGRES.name: POSTGRES_URL}
    missing: list[Service] = []
    for service in SERVICES:
        variable = configured.get(service.name, "")
        if variable in os.environ:
            print(f"{service.name}: {variable} is set")
            continue
        try:
            print(f"{service.name}: {install(service)}", flush=True)
        except Unavailable as unavailable:
            missing.append(service)
            print(unavailable, file=sys.stderr)
    if missing:
        names = ", ".join(service.name for service in missing)
        print(
            f"Not here: {names}. To have them: {remedy(missing)}. Until then their tests are skipped.", file=sys.stderr
        )
    return 1 if missing and required() else 0


if __name__ == "__main__":
    sys.exit(main())
