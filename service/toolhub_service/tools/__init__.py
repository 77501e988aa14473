"""The built-in core/* tools, one file for each family: typed input, typed output, one async function."""
