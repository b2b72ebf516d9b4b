"""The demo's half that needs torch: the bundled model, its warm start, Muon.

The product's trainer works without any of it; `mainspring.bundled` has the demo's tasks.
"""
