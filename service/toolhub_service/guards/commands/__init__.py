"""Commands: split into words without a shell, checked by a grammar for each binary, and against a list of dangers."""
