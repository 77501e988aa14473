"""The web tools: the text of pages, a search engine's results, and pictures by a browser.

`fetch.py`, `search.py` and `screenshot.py` are the tools. `page_reader.py` manages the processes in which
`page_worker.py` parses untrusted pages; `page_text.py` converts HTML to text there.
"""
