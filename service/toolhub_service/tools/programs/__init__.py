"""Programs: code that an agent sends in place of many calls, interpreted in a separate process."""
