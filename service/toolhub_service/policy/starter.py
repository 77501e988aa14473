"""The policy of a first run: `local` may work with the files of its workspace, and nothing else.

No network, no commands, no deletion; what is refused names the lines of policy.yaml that would allow it.
`local` is the principal of a loopback-only hub without credentials; nobody else is granted anything.
"""

from __future__ import annotations

import msgspec

from toolhub_service.domain.tool import READ_FS, READ_MEMORY, WRITE_FS, WRITE_MEMORY
from toolhub_service.policy.document import Grant, PolicyDocument, Roles

LOCAL = "local"

STARTER = PolicyDocument(
    extends="none",
    grants=(Grant(principals=(LOCAL,), capabilities=(READ_FS, WRITE_FS, READ_MEMORY, WRITE_MEMORY)),),
    roles=(Roles(principals=(LOCAL,), roles=("agent", "operator", "approver", "auditor")),),
)


def complete(document: PolicyDocument) -> PolicyDocument:
    """The document with what it extends written in: its own entries come after the starter's."""
    if document.extends == "none":
        return document
    return msgspec.structs.replace(
        document,
        extends="none",
        # Grants add up, and so do roles: a file that extends the starter can take nothing away but by rules.
        grants=STARTER.grants + document.grants,
        roles=STARTER.roles + document.roles,
    )
