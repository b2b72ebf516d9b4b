"""The program that is every sandbox's first process, and how a node talks to it."""
