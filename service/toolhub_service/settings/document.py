"""Every knob: name, unit, default. Read by app and the command line only.

One YAML file, overridden by the environment: `server.listen` is `TOOLHUB_SERVER_LISTEN`. Each has a good default,
so that no file is needed for a first run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.sections.source_config import Section
from toolhub_service.settings.audit_section import Audit
from toolhub_service.settings.auth_section import Auth
from toolhub_service.settings.credentials_section import Credentials
from toolhub_service.settings.server_section import Server
from toolhub_service.settings.tool_sections import (
    Agent,
    Browser,
    Channel,
    DatabaseSettings,
    Desktop,
    Faces,
    Memory,
    Programs,
    Sandbox,
    Skills,
    Web,
)


class Policy(Section, frozen=True):
    file: Annotated[
        str, Meta(description="policy.yaml; empty: <data_dir>/policy.yaml when it exists, else the built-in starter.")
    ] = ""
    shadow_file: Annotated[
        str, Meta(description="Candidate policy, evaluated beside the active one and logged; empty: none.")
    ] = ""
    reload_s: Annotated[
        float,
        Meta(
            description="Seconds between checks of policy, API keys and sources for changes; 0: on SIGHUP only.", ge=0
        ),
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
    quota_bytes: Annotated[
        int,
        Meta(
            description="Total bytes of the workspaces of one principal, or of the one that all share; policy.yaml may "
            "set others (`storage`).",
            ge=1,
        ),
    ] = 10 * 1024 * 1024 * 1024


class Storage(Section, frozen=True):
    reserve_bytes: Annotated[
        int,
        Meta(
            description="Bytes of each disk, at most a tenth of it, that callers may not use: below it they store "
            "nothing, while reads and the audit log go on; 0: none.",
            ge=0,
        ),
    ] = 256 * 1024 * 1024
    soft_ratio: Annotated[
        float,
        Meta(
            description="Share of a bound of bytes from which on results, whoami and the log report its use.",
            gt=0,
            le=1,
        ),
    ] = 0.8
    recount_s: Annotated[float, Meta(description="Seconds between recounts of the files of all workspaces.", ge=60)] = (
        3_600.0
    )


class Metrics(Section, frozen=True):
    listen: Annotated[str, Meta(description="host:port of the Prometheus endpoint; empty: none.")] = "127.0.0.1:9464"
    # Against DNS rebinding: a web page may reach this port by a name that its owner resolves to it.
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Accepted values of the Host header, besides addresses, `localhost` and that of `listen`; "
            "`*`: any."
        ),
    ] = ()
    max_principals: Annotated[
        int,
        Meta(
            description="Number of principals, or of tenants where there are any, that get their own label in "
            "toolhub_tool_invocations_total, the rest `other`; 0: none.",
            ge=0,
            le=10_000,
        ),
    ] = 0


class Tracing(Section, frozen=True):
    otlp_endpoint: Annotated[
        str, Meta(description="OTLP/gRPC collector, such as http://127.0.0.1:4317; empty: no traces.")
    ] = ""
    sample_ratio: Annotated[
        float, Meta(description="Share of traces started by the hub that are sampled.", ge=0, le=1)
    ] = 1.0
    service_name: Annotated[str, Meta(description="service.name of the spans.")] = "tool-hub"


class Logs(Section, frozen=True):
    format: Annotated[
        Literal["auto", "json", "console"], Meta(description="auto: console on a terminal, else JSON.")
    ] = "auto"
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")] = (
        "info"
    )
    calls: Annotated[bool, Meta(description="Log every call, in addition to the audit log.")] = False


class CustomTool(Section, frozen=True):
    tool: Annotated[
        str, Meta(description="package.module:ClassName, below a trusted namespace; either this or type.")
    ] = ""
    type: Annotated[
        Literal["", "bash", "file_copy", "database_query", "custom"],
        Meta(description="A built-in type, made with `config` under `name` (docs/custom-tools.md)."),
    ] = ""
    name: Annotated[str, Meta(description="Full name of a tool of a built-in type, such as acme/sales.query.")] = ""
    config: Annotated[dict[str, Any], Meta(description="What the type takes.")] = msgspec.field(default_factory=dict)
    args: Annotated[dict[str, str | int | float | bool | None], Meta(description="Constructor arguments.")] = (
        msgspec.field(default_factory=dict)
    )


class Tools(Section, frozen=True):
    disabled: Annotated[tuple[str, ...], Meta(description="Names or globs of tools that are not offered.")] = ()
    trusted_namespaces: Annotated[tuple[str, ...], Meta(description="Packages that custom tools may come from.")] = ()
    custom: Annotated[tuple[CustomTool, ...], Meta(description="Custom tools to load.")] = ()
    # Named one by one: that a package is installed, perhaps as another's dependency, must not load its code.
    entry_points: Annotated[
        tuple[str, ...], Meta(description="Names of `toolhub.tools` entry points to load; `*`: all that are installed.")
    ] = ()
    user_agent: Annotated[str, Meta(description="User-Agent of core/http.*; empty: tool-hub/<version>.")] = ""
    http_connections: Annotated[int, Meta(description="Pooled connections of core/http.*.", ge=1, le=10_000)] = 100
    bubblewrap: Annotated[
        str, Meta(description="bwrap binary for core/exec.run and workers; empty: searched for; `off`: not used.")
    ] = ""
    unconfined_workers: Annotated[
        bool,
        Meta(description="Let workers of LangChain sources read the data folder; otherwise it is hidden from them."),
    ] = False


class Budget(Section, frozen=True):
    max_timeout_s: Annotated[float, Meta(description="Longest time any call may take, seconds.", gt=0)] = 600.0
    upstream_concurrency: Annotated[int, Meta(description="Calls in flight per upstream.", ge=1, le=100_000)] = 64
    breaker_window_s: Annotated[
        float, Meta(description="Window over which a circuit breaker counts, seconds.", gt=0)
    ] = 30.0
    breaker_min_calls: Annotated[
        int, Meta(description="Calls in the window before a circuit breaker may open.", ge=1)
    ] = 10
    breaker_failure_ratio: Annotated[
        float, Meta(description="Share of failures that opens a circuit breaker.", gt=0, le=1)
    ] = 0.5
    breaker_cooldown_s: Annotated[float, Meta(description="First pause of an open circuit breaker, seconds.", gt=0)] = (
        5.0
    )


class Idempotency(Section, frozen=True):
    ttl_s: Annotated[float, Meta(description="Seconds for which the result of an idempotency key is stored.", gt=0)] = (
        86_400.0
    )
    max_keys: Annotated[
        int,
        Meta(
            description="Maximum number of stored keys; new ones are refused beyond it. One principal gets "
            "at most half.",
            ge=1,
        ),
    ] = 100_000
    max_bytes: Annotated[
        int,
        Meta(
            description="Maximum bytes of stored results; new keys are refused beyond it. One principal gets at "
            "most half of those free.",
            ge=1,
        ),
    ] = 256 * 1024 * 1024


class Stores(Section, frozen=True):
    kind: Annotated[
        Literal["sqlite", "memory", "postgres"],
        Meta(
            description="Store of all state that has no URL of its own; postgres: everything, in postgres_url; "
            "memory: lost at exit."
        ),
    ] = "sqlite"
    file: Annotated[str, Meta(description="SQLite file of the embedded stores; empty: <data_dir>/hub.db.")] = ""
    redis_url: Annotated[
        str,
        Meta(description="Redis that several hubs share (jobs, keys, approvals, artifact records); empty: none."),
    ] = ""
    redis_prefix: Annotated[str, Meta(description="Prefix of every key in Redis.", min_length=1)] = "toolhub:"
    postgres_url: Annotated[
        str,
        Meta(description="PostgreSQL for jobs and the audit log, with kind postgres for everything; empty: none."),
    ] = ""


class Jobs(Section, frozen=True):
    engine: Annotated[
        Literal["inprocess", "docket"],
        Meta(description="What delivers jobs; docket: any replica on the same Redis can take any job."),
    ] = "inprocess"
    max_running: Annotated[int, Meta(description="Jobs that run at once per process.", ge=1, le=100_000)] = 2_048
    max_open: Annotated[int, Meta(description="Unfinished jobs in the whole store; more are refused.", ge=1)] = 50_000
    default_timeout_s: Annotated[
        float, Meta(description="Time limit in seconds of a job whose budget names no timeout.", gt=0)
    ] = 3_600.0
    max_timeout_s: Annotated[float, Meta(description="Longest time any job may take, seconds.", gt=0)] = 86_400.0
    keep_s: Annotated[float, Meta(description="Seconds for which a finished job is stored.", gt=0)] = 604_800.0
    heartbeat_s: Annotated[float, Meta(description="Seconds between heartbeats of a process.", gt=0, le=60)] = 1.0
    dead_after_s: Annotated[
        float,
        Meta(description="Seconds without a heartbeat after which another process takes over its jobs.", gt=0, le=600),
    ] = 5.0


class Approvals(Section, frozen=True):
    default_expires_s: Annotated[
        float, Meta(description="Seconds until an approval expires when its rule names no time.", gt=0, le=2_592_000)
    ] = 3_600.0
    keep_s: Annotated[float, Meta(description="Seconds for which an ended approval is stored.", gt=0)] = 2_592_000.0
    max_pending: Annotated[int, Meta(description="Maximum number of undecided approvals of one principal.", ge=1)] = 256
    webhook_url: Annotated[
        str, Meta(description="URL that is notified by POST when an approval is requested; empty: none.")
    ] = ""
    webhook_secret_file: Annotated[
        str, Meta(description="Secret that signs the webhook; required with webhook_url.")
    ] = ""


class Artifacts(Section, frozen=True):
    folder: Annotated[str, Meta(description="Folder of the artifacts; empty: <data_dir>/artifacts.")] = ""
    bucket_url: Annotated[
        str, Meta(description="S3-compatible bucket instead of a folder, such as s3://name/prefix; empty: none.")
    ] = ""
    ttl_s: Annotated[float, Meta(description="Seconds until an artifact expires.", gt=0)] = 604_800.0
    max_bytes: Annotated[int, Meta(description="Largest artifact.", ge=1)] = 1024 * 1024 * 1024
    quota_bytes: Annotated[int, Meta(description="Total bytes of artifacts of one principal.", ge=1)] = (
        10 * 1024 * 1024 * 1024
    )
    argument_max_bytes: Annotated[
        int, Meta(description="Total bytes of artifacts that one call's arguments may refer to.", ge=1)
    ] = 4 * 1024 * 1024


class Session(Section, frozen=True):
    max_in_flight: Annotated[
        int, Meta(description="Calls in flight per session; beyond, the hub stops reading from it.", ge=1)
    ] = 256


class Sources(Section, frozen=True):
    file: Annotated[
        str, Meta(description="sources.yaml; empty: <data_dir>/sources.yaml when it exists. Followed while serving.")
    ] = ""


class Search(Section, frozen=True):
    learn: Annotated[
        bool, Meta(description="Whether purposes of successful calls improve the same principal's searches.")
    ] = True
    embedder: Annotated[
        str, Meta(description="package.module:name below a trusted namespace that embeds texts; empty: words only.")
    ] = ""


class Arguments(Section, frozen=True):
    repair_texts: Annotated[
        bool,
        Meta(
            description='Whether an argument that is a text of JSON, such as `"[1, 2]"`, is read as JSON where the '
            "tool's schema accepts no text and then accepts the arguments. The result says what was read."
        ),
    ] = False


class Results(Section, frozen=True):
    show_raw: Annotated[bool, Meta(description="Results carry the upstream's own answer (debugging).")] = False


class Settings(Section, frozen=True):
    data_dir: Annotated[
        str,
        Meta(
            description="Folder of everything the hub keeps; empty: $XDG_DATA_HOME/toolhub or ~/.local/share/toolhub."
        ),
    ] = ""
    # Anyone who can write these files decides what the hub does, so it refuses to serve with them (decision 0030).
    loose_files: Annotated[
        Literal["refuse", "warn"],
        Meta(
            description="What to do when other users can write policy, keys, sources, databases or a folder above "
            "them: do not start, or warn (for file systems without modes)."
        ),
    ] = "refuse"
    databases: Annotated[
        tuple[DatabaseSettings, ...],
        Meta(description="Databases of core/db.*, by name; see [databases](databases.md)."),
    ] = ()
    agents: Annotated[tuple[Agent, ...], Meta(description="Models that core/agent.spawn may give tasks to.")] = ()
    channels: Annotated[tuple[Channel, ...], Meta(description="Where core/media.send may send messages to.")] = ()
    server: Server = Server()
    auth: Auth = Auth()
    credentials: Credentials = Credentials()
    policy: Policy = Policy()
    workspace: Workspace = Workspace()
    storage: Storage = Storage()
    audit: Audit = Audit()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    logs: Logs = Logs()
    tools: Tools = Tools()
    web: Web = Web()
    browser: Browser = Browser()
    desktop: Desktop = Desktop()
    sandbox: Sandbox = Sandbox()
    skills: Skills = Skills()
    sources: Sources = Sources()
    search: Search = Search()
    budget: Budget = Budget()
    idempotency: Idempotency = Idempotency()
    arguments: Arguments = Arguments()
    results: Results = Results()
    stores: Stores = Stores()
    jobs: Jobs = Jobs()
    approvals: Approvals = Approvals()
    artifacts: Artifacts = Artifacts()
    memory: Memory = Memory()
    programs: Programs = Programs()
    session: Session = Session()
    faces: Faces = Faces()

    @property
    def has_tls(self) -> bool:
        """Return whether its listeners have a certificate: from files, or from the Workload API."""
        return bool(self.server.tls.certificate_file or self.auth.spiffe.workload_api)

    @property
    def asks_clients(self) -> bool:
        """Return whether gRPC clients must present a certificate."""
        spiffe = self.auth.spiffe
        return bool(self.server.tls.client_ca_file or spiffe.trust_domains or spiffe.workload_api)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        # Models choose one by its name, so that a name must stand for one thing.
        for key, named in (("databases", self.databases), ("agents", self.agents), ("channels", self.channels)):
            names = [each.name for each in named]
            if len(set(names)) < len(names):
                raise ValueError(f"{key}: two have the same name")
