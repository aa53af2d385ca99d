"""Kubernetes: manifests for every engine, without importing a Kubernetes client."""
