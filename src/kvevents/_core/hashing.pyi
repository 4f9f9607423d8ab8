"""`kvevents._core.hashing`: see `kvevents.hashing`."""
