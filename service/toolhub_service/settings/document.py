"""Every knob: name, unit, default. Read by app and the command line only.

One YAML file, overridden by the environment: `server.listen` is `TOOLHUB_SERVER_LISTEN`. Each has a good default,
so that no file is needed for a first run.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from toolhub_service.adapters.source_config import Section


class Tls(Section, frozen=True):
    certificate_file: Annotated[str, Meta(description="PEM certificate chain; empty: plaintext.")] = ""
    key_file: Annotated[str, Meta(description="PEM private key of the certificate.")] = ""
    client_ca_file: Annotated[str, Meta(description="PEM CAs; set: clients must show a certificate (mTLS).")] = ""


class Server(Section, frozen=True):
    listen: Annotated[str, Meta(description="host:port, or unix:/path; port 0 picks a free one.")] = "127.0.0.1:50051"
    workers: Annotated[int, Meta(description="Processes on the port (SO_REUSEPORT).", ge=1, le=256)] = 1
    max_in_flight: Annotated[
        int, Meta(description="RPCs, and calls in sessions, in flight a process; more are shed.", ge=1, le=100_000)
    ] = 1_000
    max_watches: Annotated[
        int,
        Meta(
            description="Streams that follow something (jobs, approvals), a process; one principal gets half at most.",
            ge=1,
            le=1_000_000,
        ),
    ] = 10_000
    drain_s: Annotated[float, Meta(description="Seconds that running work gets on SIGTERM.", ge=0, le=3_600)] = 10.0
    drain_notice_s: Annotated[
        float, Meta(description="Seconds between NOT_SERVING and refusing work, for a mesh to notice.", ge=0, le=60)
    ] = 0.0
    max_connection_age_s: Annotated[
        float,
        Meta(description="Seconds after which clients are told to reconnect, so that load spreads; 0: never.", ge=0),
    ] = 0.0
    max_connection_idle_s: Annotated[
        float, Meta(description="Seconds after which a connection without RPCs is closed.", ge=1, le=86_400)
    ] = 300.0
    max_connections: Annotated[
        int,
        Meta(description="Connections a process; fewer where the limit on open files is lower.", ge=1, le=1_000_000),
    ] = 10_000
    reflection: Annotated[bool, Meta(description="Serve gRPC reflection v1 and v1alpha.")] = True
    allow_plaintext: Annotated[
        bool, Meta(description="Take API keys without TLS beyond loopback: only where a mesh or proxy encrypts.")
    ] = False
    tls: Tls = Tls()


class Auth(Section, frozen=True):
    modes: Annotated[
        tuple[Literal["insecure-local", "api-key"], ...],
        Meta(description="Which credentials are accepted, tried in this order; insecure-local only on loopback."),
    ] = ("insecure-local",)
    api_keys_file: Annotated[str, Meta(description="Hashed API keys; empty: <data_dir>/api-keys.yaml.")] = ""


class Policy(Section, frozen=True):
    file: Annotated[
        str, Meta(description="policy.yaml; empty: <data_dir>/policy.yaml when it exists, else the built-in starter.")
    ] = ""
    shadow_file: Annotated[
        str, Meta(description="Candidate policy, judged beside the live one and logged; empty: none.")
    ] = ""
    reload_s: Annotated[
        float, Meta(description="Seconds between looks at policy, API keys and sources; 0: on SIGHUP only.", ge=0)
    ] = 2.0
    plan_ttl_s: Annotated[float, Meta(description="Seconds for which a plan can be committed.", gt=0, le=86_400)] = (
        600.0
    )


class Workspace(Section, frozen=True):
    root: Annotated[str, Meta(description="Folder of all workspaces; empty: <data_dir>/workspaces.")] = ""
    per: Annotated[
        Literal["request", "session", "principal", "shared"], Meta(description="Which calls share a workspace.")
    ] = "request"
    keep_days: Annotated[
        float,
        Meta(
            description="Days after its last change until a workspace of a request or session is removed, with all its "
            "files; 0: never. At least 1, the longest that a job may take.",
            ge=0,
        ),
    ] = 0.0


class Audit(Section, frozen=True):
    file: Annotated[str, Meta(description="SQLite file of the audit log; empty: <data_dir>/audit.db.")] = ""
    checkpoint_file: Annotated[
        str, Meta(description="Signed checkpoints, best on another disk; empty: <data_dir>/audit-checkpoints.jsonl.")
    ] = ""
    key_file: Annotated[str, Meta(description="Key of the chain, made when missing; empty: <data_dir>/audit.key.")] = ""


class Metrics(Section, frozen=True):
    listen: Annotated[str, Meta(description="host:port of the Prometheus endpoint; empty: none.")] = "127.0.0.1:9464"
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Names by which it may be asked, besides addresses, `localhost` and that of `listen`; `*`: any."
        ),
    ] = ()
    max_principals: Annotated[
        int,
        Meta(
            description="Principals that toolhub_tool_invocations_total names, the rest as `other`; 0: none.",
            ge=0,
            le=10_000,
        ),
    ] = 0
    old_names: Annotated[
        bool,
        Meta(description="Serve metrics under their former names, such as tool_latency_ms, too; for one version."),
    ] = False


class Tracing(Section, frozen=True):
    otlp_endpoint: Annotated[
        str, Meta(description="OTLP/gRPC collector, such as http://127.0.0.1:4317; empty: no traces.")
    ] = ""
    sample_ratio: Annotated[float, Meta(description="Share of traces begun here that are kept.", ge=0, le=1)] = 1.0
    service_name: Annotated[str, Meta(description="service.name of the spans.")] = "tool-hub"


class Logs(Section, frozen=True):
    format: Annotated[
        Literal["auto", "json", "console"], Meta(description="auto: console on a terminal, else JSON.")
    ] = "auto"
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Least level shown.")] = "info"
    calls: Annotated[bool, Meta(description="A log line for every call, besides the audit log.")] = False


class CustomTool(Section, frozen=True):
    tool: Annotated[str, Meta(description="package.module:ClassName, below a trusted namespace.")]
    args: Annotated[dict[str, str | int | float | bool | None], Meta(description="Constructor arguments.")] = (
        msgspec.field(default_factory=dict)
    )


class Tools(Section, frozen=True):
    disabled: Annotated[tuple[str, ...], Meta(description="Names or globs of tools that are not offered.")] = ()
    trusted_namespaces: Annotated[tuple[str, ...], Meta(description="Packages that custom tools may come from.")] = ()
    custom: Annotated[tuple[CustomTool, ...], Meta(description="Custom tools to load.")] = ()
    entry_points: Annotated[
        tuple[str, ...], Meta(description="Names of `toolhub.tools` entry points to load; `*`: all that are installed.")
    ] = ()
    user_agent: Annotated[str, Meta(description="User-Agent of core/http.*; empty: tool-hub/<version>.")] = ""
    http_connections: Annotated[int, Meta(description="Pooled connections of core/http.*.", ge=1, le=10_000)] = 100
    bubblewrap: Annotated[
        str, Meta(description="bwrap binary for core/exec.run and workers; empty: looked for; `off`: not used.")
    ] = ""
    unconfined_workers: Annotated[
        bool, Meta(description="Let workers of LangChain sources see the data folder; else it is hidden from them.")
    ] = False


class Budget(Section, frozen=True):
    max_timeout_s: Annotated[float, Meta(description="Longest time any call may take, seconds.", gt=0)] = 600.0
    upstream_concurrency: Annotated[int, Meta(description="Calls in flight an upstream.", ge=1, le=100_000)] = 64
    breaker_window_s: Annotated[float, Meta(description="Window over which a breaker counts, seconds.", gt=0)] = 30.0
    breaker_min_calls: Annotated[int, Meta(description="Calls in the window before a breaker may open.", ge=1)] = 10
    breaker_failure_ratio: Annotated[float, Meta(description="Share of failures that opens a breaker.", gt=0, le=1)] = (
        0.5
    )
    breaker_cooldown_s: Annotated[float, Meta(description="First rest of an open breaker, seconds.", gt=0)] = 5.0


class Idempotency(Section, frozen=True):
    ttl_s: Annotated[
        float, Meta(description="Seconds for which the answer to an idempotency key is remembered.", gt=0)
    ] = 86_400.0
    max_keys: Annotated[
        int, Meta(description="Keys remembered; beyond, new ones are refused. One principal gets half at most.", ge=1)
    ] = 100_000
    max_bytes: Annotated[
        int,
        Meta(description="Bytes of remembered answers; beyond, new keys are refused. One principal gets half.", ge=1),
    ] = 256 * 1024 * 1024


class Stores(Section, frozen=True):
    kind: Annotated[
        Literal["sqlite", "memory", "postgres"],
        Meta(
            description="Where what hubs share lies: postgres (of postgres_url), all of it; else what no URL names; "
            "memory: lost."
        ),
    ] = "sqlite"
    file: Annotated[str, Meta(description="SQLite file of the embedded stores; empty: <data_dir>/hub.db.")] = ""
    redis_url: Annotated[
        str,
        Meta(description="Redis that several hubs share (jobs, keys, approvals, artifact records); empty: none."),
    ] = ""
    redis_prefix: Annotated[str, Meta(description="What every key in Redis begins with.", min_length=1)] = "toolhub:"
    postgres_url: Annotated[
        str,
        Meta(description="PostgreSQL that keeps jobs and the audit log, with kind postgres all the rest; empty: none."),
    ] = ""


class Jobs(Section, frozen=True):
    engine: Annotated[
        Literal["inprocess", "docket"],
        Meta(description="Who delivers jobs; docket: any replica on the same Redis takes any job."),
    ] = "inprocess"
    max_running: Annotated[int, Meta(description="Jobs that run at once a process.", ge=1, le=100_000)] = 2_048
    max_open: Annotated[
        int, Meta(description="Jobs not finished in the whole store; beyond, new ones are shed.", ge=1)
    ] = 50_000
    default_timeout_s: Annotated[
        float, Meta(description="Seconds a job gets when its call's budget names no timeout.", gt=0)
    ] = 3_600.0
    max_timeout_s: Annotated[float, Meta(description="Longest time any job may take, seconds.", gt=0)] = 86_400.0
    keep_s: Annotated[float, Meta(description="Seconds for which a finished job is remembered.", gt=0)] = 604_800.0
    heartbeat_s: Annotated[float, Meta(description="Seconds between a process's signs of life.", gt=0, le=60)] = 1.0
    dead_after_s: Annotated[
        float, Meta(description="Seconds without a sign of life until another process takes its jobs.", gt=0, le=600)
    ] = 5.0


class Approvals(Section, frozen=True):
    default_expires_s: Annotated[
        float, Meta(description="Seconds an approval lives when its rule names no time.", gt=0, le=2_592_000)
    ] = 3_600.0
    keep_s: Annotated[float, Meta(description="Seconds for which an ended approval is remembered.", gt=0)] = 2_592_000.0
    max_pending: Annotated[int, Meta(description="Undecided approvals of one principal; beyond, no more.", ge=1)] = 256
    webhook_url: Annotated[str, Meta(description="Told by POST when an approval is asked for; empty: nobody.")] = ""
    webhook_secret_file: Annotated[
        str, Meta(description="Secret that signs the webhook; needed when webhook_url is set.")
    ] = ""


class Artifacts(Section, frozen=True):
    folder: Annotated[str, Meta(description="Folder of the bytes; empty: <data_dir>/artifacts.")] = ""
    bucket_url: Annotated[
        str, Meta(description="S3-compatible bucket instead of a folder, such as s3://name/prefix; empty: none.")
    ] = ""
    ttl_s: Annotated[float, Meta(description="Seconds an artifact lives.", gt=0)] = 604_800.0
    max_bytes: Annotated[int, Meta(description="Largest artifact.", ge=1)] = 1024 * 1024 * 1024
    quota_bytes: Annotated[int, Meta(description="What one principal may own in all.", ge=1)] = 10 * 1024 * 1024 * 1024
    argument_max_bytes: Annotated[
        int, Meta(description="What references in one call's arguments may bring in.", ge=1)
    ] = 4 * 1024 * 1024


class Session(Section, frozen=True):
    max_in_flight: Annotated[int, Meta(description="Calls at once a session; beyond, reading waits.", ge=1)] = 256


class Sources(Section, frozen=True):
    file: Annotated[
        str, Meta(description="sources.yaml; empty: <data_dir>/sources.yaml when it exists. Followed while serving.")
    ] = ""


class Search(Section, frozen=True):
    learn: Annotated[
        bool, Meta(description="Whether purposes of calls that succeeded help the same principal's searches.")
    ] = True
    embedder: Annotated[
        str, Meta(description="package.module:name below a trusted namespace that embeds texts; empty: words only.")
    ] = ""


class Results(Section, frozen=True):
    show_raw: Annotated[bool, Meta(description="Results carry the upstream's own answer (debugging).")] = False


class Settings(Section, frozen=True):
    data_dir: Annotated[
        str,
        Meta(
            description="Folder of everything the hub keeps; empty: $XDG_DATA_HOME/toolhub or ~/.local/share/toolhub."
        ),
    ] = ""
    loose_files: Annotated[
        Literal["refuse", "warn"],
        Meta(
            description="Where others may write policy, keys, sources, databases or a folder above them: do not start, "
            "or warn, for file systems that know no modes."
        ),
    ] = "refuse"
    server: Server = Server()
    auth: Auth = Auth()
    policy: Policy = Policy()
    workspace: Workspace = Workspace()
    audit: Audit = Audit()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    logs: Logs = Logs()
    tools: Tools = Tools()
    sources: Sources = Sources()
    search: Search = Search()
    budget: Budget = Budget()
    idempotency: Idempotency = Idempotency()
    results: Results = Results()
    stores: Stores = Stores()
    jobs: Jobs = Jobs()
    approvals: Approvals = Approvals()
    artifacts: Artifacts = Artifacts()
    session: Session = Session()
