"""Whether a campaign fits, from its file and the model's config.json alone.

Pure arithmetic: no torch, no services, no GPU, and no file but config.json. Invariants: bytes and
tokens are whole numbers; every number that is not in the file is an assumption with a name and a
source. Imported by `mainspring campaign plan`; nothing that trains or serves imports it.
"""
