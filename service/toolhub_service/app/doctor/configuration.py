"""Checks whether a hub with these settings would start, and what it would lack. None changes anything or raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from toolhub_service.adapters.core import CORE_SOURCE
from toolhub_service.app.doctor import Finding, fail, ok, warn
from toolhub_service.app.doctor.credentials import auth_check, certificate_checks, credential_checks
from toolhub_service.app.doctor.kept import file_checks, kept_checks, retention_checks
from toolhub_service.app.doctor.ports import mcp_checks, port_checks
from toolhub_service.app.doctor.remote import database_checks, issuer_checks, server_checks, store_checks
from toolhub_service.app.doctor.sources import source_checks
from toolhub_service.app.doctor.start import start_findings
from toolhub_service.app.offline import OfflineRefused, configured_tools, policy_file_of, policy_of
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.tool import ToolState
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.settings.document import Settings
from toolhub_service.tools.web.screenshot import find_browser


async def settings_checks(settings: Settings, config_file: Path | None = None) -> list[Finding]:
    """Every check of this folder but those of the machine, in the order in which `toolhub doctor` prints them.

    `config_file` is the file of the settings; its mode is checked, too.
    """
    refused = await start_findings(settings)
    subjects = {finding.name for finding in refused}
    others = [
        *port_checks(settings),
        *[finding async for finding in mcp_checks(settings)],
        *_policy(settings),
        *auth_check(settings),
        *certificate_checks(settings),
        *file_checks(settings, config_file),
        *kept_checks(settings),
        *retention_checks(settings),
        ok("tracing", settings.tracing.otlp_endpoint or "off: tracing.otlp_endpoint is empty"),
        *store_checks(settings),
        *credential_checks(settings),
        *server_checks(settings),
        *[finding async for finding in issuer_checks(settings)],
        *[finding async for finding in database_checks(settings)],
        *await _tools(settings),
        *_browser(settings),
        *source_checks(settings),
    ]
    return [*refused, *(finding for finding in others if finding.name not in subjects)]


def _policy(settings: Settings) -> Iterator[Finding]:
    """Say which policy a hub would start with; one that cannot be read keeps it from starting."""
    file = policy_file_of(settings)
    with suppress(InvalidPolicy, OfflineRefused):
        revision = policy_of(file).revision[:12]
        if file is None:
            yield ok("policy", f"the built-in starter, revision {revision}; `toolhub policy init` begins your own")
        else:
            yield ok("policy", f"{file}, revision {revision}")


def _browser(settings: Settings) -> Iterator[Finding]:
    """Check the sandbox of the pages that core/web.screenshot shows; the tools' own check says why they are
    UNAVAILABLE."""
    browser = find_browser(settings.browser.executable, settings.browser.sandbox)
    if browser.lacking:
        return
    if browser.has_sandbox:
        yield ok("browser", f"{browser.executable}, with its sandbox")
        return
    why = "for root there is none" if settings.browser.sandbox != "off" else "browser.sandbox is off"
    text = f"{browser.executable} shows pages WITHOUT ITS SANDBOX ({why})"
    advice = "Run the hub as another user, or set browser.sandbox to `required`."
    yield warn("browser", text, advice, "core/web.screenshot")


async def _tools(settings: Settings) -> list[Finding]:
    try:
        tools = await configured_tools(settings)
    except ToolFailure as refused:
        return [fail("tools", refused.error.message, "Correct tools.custom or tools.trusted_namespaces.")]
    lacking = [tool for tool in tools if tool.state is ToolState.UNAVAILABLE]
    own = sorted((tool.state_reason, tool.name) for tool in lacking if tool.source != CORE_SOURCE)
    findings = [
        warn("custom tools", reason, "Fix this, or leave these tools out.", *(name for _, name in group))
        for reason, group in groupby(own, key=lambda each: each[0])
    ]
    # A hub is healthy without them: each needs a library or a configuration that only some hubs have.
    waiting = sorted((tool.state_reason, tool.name) for tool in lacking if tool.source == CORE_SOURCE)
    findings += [
        ok("optional", f"not set up: {', '.join(name for _, name in group)}: {reason}")
        for reason, group in groupby(waiting, key=lambda each: each[0])
    ]
    active = sum(tool.state is ToolState.ACTIVE for tool in tools)
    have = f"{active} of {len(tools)} built-in and custom tools have what they need on this machine"
    return [ok("tools", f"{have} (the policy is not considered)"), *findings]
