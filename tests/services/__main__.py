"""`python -m tests.services`: install what the tests need and this machine lacks. Does nothing where all is there."""

from __future__ import annotations

import os
import sys

from tests.missing import required
from tests.services.fixtures import POSTGRES_URL, REDIS_URL
from tests.services.programs import CHROMIUM, ENVOY, POSTGRES, REDIS, XVFB, Unavailable, install


def main() -> int:
    """0, or 1 when a service that is required cannot be had."""
    missing = 0
    for service, variable in ((REDIS, REDIS_URL), (POSTGRES, POSTGRES_URL), (ENVOY, ""), (CHROMIUM, ""), (XVFB, "")):
        if variable in os.environ:
            print(f"{service.name}: {variable} is set")
            continue
        try:
            print(f"{service.name}: {install(service)}")
        except Unavailable as unavailable:
            missing += 1
            print(unavailable, file=sys.stderr)
    return 1 if missing and required() else 0


if __name__ == "__main__":
    sys.exit(main())
