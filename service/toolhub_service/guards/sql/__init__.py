"""SQL statements: read by a parser of their dialect, and compared with what a connection allows."""
