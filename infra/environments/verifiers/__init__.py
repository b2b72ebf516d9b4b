"""Environments of the package `verifiers` as a service in AgentGym's form, in a Python of its own."""
