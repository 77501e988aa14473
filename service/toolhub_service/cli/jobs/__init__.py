"""`toolhub jobs`: long-running calls."""
