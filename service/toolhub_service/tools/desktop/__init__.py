"""core/desktop.screenshot: pictures of a configured display."""
