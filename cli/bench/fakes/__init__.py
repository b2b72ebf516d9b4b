"""What benches put in the place of policy, sandbox and program: it takes no time."""
