"""The APIs that clients speak, a file each: requests to `ModelRequest`, answers and errors back.

Pure: no I/O, no clock. Imported by the gateway's HTTP side.
"""
