"""acme/text.sign: a custom tool that asks a person before it does its work."""

from __future__ import annotations

from toolhub_service.domain.json import JsonObject
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

SIGNATURE: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}},
    "required": ["name"],
}


class SignIn(ToolInput, frozen=True):
    text: str


class SignOut(ToolOutput, frozen=True):
    signed: str


class SignText(Tool[SignIn, SignOut]):
    name = "acme/text.sign"
    description = "Put a person's name under a text, once that person has agreed to it."
    In, Out = SignIn, SignOut

    async def run(self, args: SignIn, context: ToolContext) -> SignOut:
        answer = context.ask(f"Do you sign this text? {args.text}", SIGNATURE)
        return SignOut(signed=f"{args.text}\n{answer['name']}")
