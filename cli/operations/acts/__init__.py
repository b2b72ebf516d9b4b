"""Actions of the viewer, done by the functions that the commands call.

Invariants: a preview reads the store alone and changes nothing; what is done is told by an event
with who asked, as a command tells it. Imported by `mainspring view`.
"""
