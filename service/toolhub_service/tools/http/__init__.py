"""The HTTP tools, core/http.*."""
