"""The built-in core/* tools, one file a family: typed input, typed output, one async function."""
