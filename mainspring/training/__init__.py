"""Training's figures, how training fails, and what travels from ranks to engines and trackers."""
