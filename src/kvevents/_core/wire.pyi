"""`kvevents._core.wire`: see `kvevents.wire`."""
