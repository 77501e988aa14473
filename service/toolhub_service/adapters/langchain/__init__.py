"""LangChain tools as a source: loaded from trusted code, described, called and confined.

`source.LangChainToolSource` and `adapter.LangChainAdapter` are what the composition uses. LangChain itself is imported
in a thread when a source is first read, never by importing these two.
"""
