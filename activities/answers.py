"""Replies to programs: render what was asked, ask the policy, store the reply.

Safe to run twice: the first stored reply stands. Nothing here decides whether a program may ask:
the workflow does, and calls this once for each request.
"""
