"""The built-in core/* tools, one file a tool: typed input, typed output, one async function."""
