"""Bundles: clients that programs are made of, one folder each, mounted read-only in sandboxes."""
