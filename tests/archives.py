"""Unpacking archives that the tests themselves have made, with whatever guard this Python has."""

from __future__ import annotations

import tarfile


def guard_extraction(archive: tarfile.TarFile) -> tarfile.TarFile:
    """The archive, extracted by the filter `data` where Python has it: since 3.11.4 (PEP 706)."""
    if found := getattr(tarfile, "data_filter", None):
        archive.extraction_filter = found
    return archive
