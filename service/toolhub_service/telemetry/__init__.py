"""Telemetry: audit events, metrics, traces and logs. All of them share one redactor."""
