"""Verdicts by programs that others keep: today SWE-bench's own log parsers."""
