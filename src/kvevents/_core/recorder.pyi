"""`kvevents._core.recorder`: see `kvevents.recorder`."""
