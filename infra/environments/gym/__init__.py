"""Environments that are services over HTTP: their requests, their worlds, their processes."""
