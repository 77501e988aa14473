"""Programs: code that an agent sends in place of many calls. What of it runs is interpreted in a process of its own."""
