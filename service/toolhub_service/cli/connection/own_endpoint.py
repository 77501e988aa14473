"""The endpoint of the hub that a configuration describes, for commands about the hub of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.connection.channel import Endpoint, endpoint
from toolhub_service.cli.terminal.output import explaining

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings


def own_endpoint(settings: Settings, options: Mapping[str, Any]) -> Endpoint:
    """Return the hub of the settings.

    It is recognised by its certificate itself, which needs neither a CA nor the right name; if it requires client
    certificates, its own is presented, which is mostly from the same CA.
    """
    from toolhub_service.app.listening import ListenRefused
    from toolhub_service.app.own_hub import certified_names, own_address

    with explaining(ListenRefused):
        address = own_address(settings)
    if address.endswith(":0"):
        raise click.UsageError("server.listen has port 0, which a hub chooses anew at each start: give --address.")
    tls = settings.server.tls
    if not settings.has_tls:
        return endpoint(address)
    if not tls.certificate_file:
        if options["ca_file"] is None:
            raise click.UsageError("The hub's certificate is its SVID: give --ca-file, --cert-file and --key-file.")
        return endpoint(address, **{name: options[name] for name in ("ca_file", "cert_file", "key_file")})
    own = [tls.certificate_file, tls.key_file] if settings.asks_clients else ["", ""]
    certificate, key = (Path(file).expanduser() if file else None for file in own)
    # The hub's own certificate as the CA: only this hub is accepted, whoever signed its certificate.
    hub = endpoint(
        address,
        ca_file=options["ca_file"] or Path(tls.certificate_file).expanduser(),
        cert_file=options["cert_file"] or certificate,
        key_file=options["key_file"] or key,
    )
    names = certified_names(settings)
    return hub if hub.host in names else dataclasses.replace(hub, certified_name=names[0] if names else "")
