"""Parsers: the text of a sampled reply becomes what a program takes, a file for each format."""
