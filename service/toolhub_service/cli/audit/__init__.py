"""`toolhub audit`: read, report and verify the audit log."""
