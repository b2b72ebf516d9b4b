"""What keeps a verdict honest: files that may not stand in for tests, proofs, known exploits."""
