"""Knobs of the audit log: its files, how long events stay, where they are carried to."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from toolhub_service.sections.source_config import Section


class AuditExport(Section, frozen=True):
    """Each place that is named gets every event at least once, in order; readers tell them by writer and sequence."""

    file: Annotated[str, Meta(description="File of JSON lines; empty: none. Followed by a log shipper.")] = ""
    file_max_bytes: Annotated[
        int,
        Meta(description="Size at which the file is renamed to `<name>-<time>-<row>` and begun anew.", ge=1_048_576),
    ] = 64 * 1024 * 1024
    otlp_endpoint: Annotated[
        str, Meta(description="OTLP/gRPC collector that takes logs, such as http://127.0.0.1:4317; empty: none.")
    ] = ""
    bucket_url: Annotated[
        str, Meta(description="S3-compatible bucket, such as s3://name/prefix; an object a batch. Empty: none.")
    ] = ""
    interval_s: Annotated[
        float, Meta(description="Seconds between looks for new events, of file and collector.", ge=0.05, le=3_600)
    ] = 1.0
    bucket_interval_s: Annotated[
        float, Meta(description="The same of the bucket: each look that finds some is an object.", ge=0.05, le=86_400)
    ] = 60.0


class Audit(Section, frozen=True):
    file: Annotated[str, Meta(description="SQLite file of the audit log; empty: <data_dir>/audit.db.")] = ""
    checkpoint_file: Annotated[
        str,
        Meta(description="Signed checkpoints, preferably on another disk; empty: <data_dir>/audit-checkpoints.jsonl."),
    ] = ""
    key_file: Annotated[
        str, Meta(description="Key of the hash chain, created when missing; empty: <data_dir>/audit.key.")
    ] = ""
    keep_days: Annotated[
        float,
        Meta(
            description="Days until an event leaves the log, behind a signed checkpoint, once all places of `export` "
            "have it; 0: never.",
            ge=0,
        ),
    ] = 0.0
    archive_folder: Annotated[
        str, Meta(description="Folder to which those events are moved as JSON lines; empty: they are removed.")
    ] = ""
    export: AuditExport = AuditExport()
