"""What every program needs of Temporal: the connection, failures by kind, heartbeats, its log."""
