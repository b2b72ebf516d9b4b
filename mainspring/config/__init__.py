"""Campaign files: every section a model, what a wrong one prints, presets, stored ones."""
