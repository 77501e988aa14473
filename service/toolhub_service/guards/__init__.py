"""Pure checks of dangerous arguments. Policy decides with the same functions with which tools enforce."""
