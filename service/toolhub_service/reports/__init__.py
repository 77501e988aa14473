"""What the audit log says about a span of time, as values and as a page: for the command line and for a console."""
