"""Where the bytes of artifacts lie, and what keeps, reads and sweeps them."""

from __future__ import annotations

import os

from toolhub_service.app.means import Means
from toolhub_service.app.storing import Stores, not_installed
from toolhub_service.domain.artifact_ports import Blobs
from toolhub_service.domain.errors import HubFailure, HubStatus
from toolhub_service.runtime.artifacts import Artifacts
from toolhub_service.stores.blobs_disk import DiskBlobs


def make_blobs(means: Means) -> Blobs:
    """Raises HubFailure when a bucket is configured and its packages are not installed."""
    url = means.settings.artifacts.bucket_url
    if not url:
        return DiskBlobs(str(means.paths.artifacts))
    try:
        from toolhub_service.stores.blobs_bucket import open_bucket
    except ModuleNotFoundError as missing:
        raise not_installed("artifacts.bucket_url", "s3") from missing
    try:
        return open_bucket(url, os.environ)
    except OSError as unreadable:
        message = f"artifacts.bucket_url: a secret file cannot be read: {unreadable.strerror}."
        raise HubFailure(HubStatus.FAILED_PRECONDITION, "BUCKET_SECRET_UNREADABLE", message) from unreadable
    except ValueError as wrong:
        raise HubFailure(HubStatus.INVALID_ARGUMENT, "BUCKET_URL_INVALID", f"artifacts.bucket_url: {wrong}.") from wrong


def make_artifacts(means: Means, stores: Stores, blobs: Blobs) -> Artifacts:
    settings = means.settings.artifacts
    return Artifacts(
        stores.artifacts,
        blobs,
        means.clock,
        means.randomness,
        ttl_s=settings.ttl_s,
        max_bytes=settings.max_bytes,
        quota_bytes=settings.quota_bytes,
        argument_max_bytes=settings.argument_max_bytes,
    )
