"""`kvevents._core.index`: see `kvevents.index`."""
