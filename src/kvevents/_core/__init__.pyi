"""The Rust core of kvevents; use it through the typed modules of the package."""

__version__: str
BUILD_PROFILE: str
"""`release` or `debug`."""
