"""What the hub tells about itself: the audit log, metrics, traces and logs. All of them share one redactor."""
