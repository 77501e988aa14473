"""The activity report: what the audit log says about a span of time, as values and as an HTML page."""
