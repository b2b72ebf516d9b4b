"""Sessions of agents outside: their routes, their store, and wrong keys."""
