"""Guards of an honest verdict: files that may not stand in for tests, proofs, known exploits."""
