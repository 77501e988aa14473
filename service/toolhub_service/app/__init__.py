"""The composition root: the only place that names concrete classes and reads settings."""
