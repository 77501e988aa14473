"""Input and output on a terminal: arguments, tables, progress and questions."""
