"""Manifests of a job for every engine: plain dicts, rendered to commented YAML."""
