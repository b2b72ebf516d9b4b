"""A trainer's work for a campaign or a supervised run, and how engines get its weights."""
