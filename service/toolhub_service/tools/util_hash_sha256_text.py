"""core/util.hash.sha256Text: the SHA-256 of a text."""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class HashSha256Text(Tool["HashSha256Text.In", "HashSha256Text.Out"]):
    name = "core/util.hash.sha256Text"
    description = (
        "Return the SHA-256 of a text (of its UTF-8 bytes) as 64 lower-case hex digits: to compare, deduplicate or "
        "cite content. For a file use core/fs.sha256."
    )
    tags = ("hash", "sha256", "checksum", "digest", "util")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Hash a word", {"text": "hello"}),)

    class In(ToolInput, frozen=True):
        text: Annotated[str, Meta(description="What to hash; may be empty.")]

    class Out(ToolOutput, frozen=True):
        sha256: str

    async def run(self, args: HashSha256Text.In, context: ToolContext) -> HashSha256Text.Out:
        data = args.text.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(data).hexdigest()
        context.proves(EvidenceType.TEXT, "text", f"Hashed {len(data)} bytes.", sha256=digest)
        return self.Out(sha256=digest)
