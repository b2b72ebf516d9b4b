"""Stand-ins of benches for policy, sandbox and program, which take no time."""
