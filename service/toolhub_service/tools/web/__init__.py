"""The web as an agent reads it: the text of pages, a search engine's results, and what a browser shows.

`fetch.py`, `search.py` and `screenshot.py` are the tools. `page_reader.py` holds the processes in which
`page_worker.py` takes hostile pages apart; `page_text.py` turns HTML into text there.
"""
