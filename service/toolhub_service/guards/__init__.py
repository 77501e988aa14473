"""Pure judgements on dangerous arguments. Policy decides with the very functions with which tools enforce."""
