"""`toolhub …`: see cli/root.py."""

from __future__ import annotations

from toolhub_service.cli.root import main

if __name__ == "__main__":
    main()
