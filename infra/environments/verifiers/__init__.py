"""Environments of the package verifiers as a service, run by a Python that has the package."""
