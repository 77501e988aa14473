"""Ranked search: by words, by past use and by meaning, for tools and for remembered items."""
