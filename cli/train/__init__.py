"""`mainspring train`, `quickstart` and `sft`: whole runs on this machine."""
