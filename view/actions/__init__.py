"""Actions of the viewer: what a person may do from a page, where that is switched on.

Invariants: nothing is done by a GET, nor without the form of a page that told what would happen; a
form does its work once, however often it is sent. What is done is handed over by the command line
(`protocol`): here is how it is offered, asked and told.
"""
