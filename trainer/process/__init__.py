"""The processes of a trainer: ranks, the Ray actors they run in, and the driver that moves them.

The top of the trainer: `workers` and the command line enter here.
"""
