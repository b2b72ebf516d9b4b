"""Commands for services, hosts and processes: up, down, status, doctor, db, temporal, node, serve,
worker."""
