"""Kinds of data sets' rows: how the tests of each are run, and what its rows must have."""
