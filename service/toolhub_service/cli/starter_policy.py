"""What `toolhub policy init` writes: the starter policy and, commented out, what most people add first.

Lines `# Words` are prose; lines `#key` and `#  - entry` are examples that are valid when the `#` is taken away.
"""

from __future__ import annotations

STARTER_POLICY = """\
# Who may do what. `toolhub policy check` judges this file; a running hub follows it within seconds, and keeps the
# old policy when the new one is not valid. Every key: docs/policy.md and `toolhub policy schema`.

# `starter` lets `local` (whoever is on this machine) work with files and memory of its workspace. `none` lets nobody.
extends: starter

# Capabilities by principal; a principal is the name of an API key, or `local`. No star covers danger:destructive.
#grants:
#  - principals: [research-agent]
#    capabilities: [read:fs, write:fs, network]
#  - principals: [local]
#    capabilities: [danger:destructive]   # core/fs.deletePath, after a dry run

# Who may use which services besides calling tools: operator, approver, auditor.
#roles:
#  - principals: [ops]
#    roles: [operator, auditor]

# Exceptions: DENY, REQUIRE_APPROVAL, REQUIRE_PLAN, or ALLOW (which spares a destructive tool its dry run).
#rules:
#  - id: no-secrets
#    effect: DENY
#    tools: ["core/fs.*"]
#    when: has(args.path) && args.path.startsWith("secrets/")
#    reason: The folder secrets/ is not for agents.

# Hosts that may be dialled; none: no network.
#egress:
#  - principals: [research-agent]
#    hosts: [api.example.com, "*.wikipedia.org"]
#    paths: [/v1, /wiki]                  # without it: any path

# Commands that core/exec.run may run; none: no commands. (Needs the capability execute:command, too.)
#commands:
#  - preset: safe

# Rates and quotas.
#limits:
#  - id: per-agent
#    rate_per_s: 20
#    burst: 40
#    per: principal
"""
