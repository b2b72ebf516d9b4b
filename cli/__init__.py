"""The command line, and under `operations` what its commands do, callable from Python.

The roof: nothing imports it. Command modules import heavy things inside their commands only, so
that importing the command line stays under half a second.
"""
