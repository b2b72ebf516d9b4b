"""Programs: agents that run by themselves in the sandbox and ask the policy over HTTP."""
