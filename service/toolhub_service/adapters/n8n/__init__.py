"""Workflows of n8n servers as tools: called by their webhooks, followed, looked up and stopped by the public API."""
