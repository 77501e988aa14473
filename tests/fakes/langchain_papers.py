"""Tools of langchain-community that work without a network."""

from __future__ import annotations

from langchain_community.tools.json.tool import JsonGetValueTool, JsonListKeysTool, JsonSpec
from langchain_core.tools import BaseTool


def json_tools() -> list[BaseTool]:
    spec = JsonSpec(dict_={"paper": {"title": "Attention", "year": 2017}})
    return [JsonGetValueTool(spec=spec), JsonListKeysTool(spec=spec)]
