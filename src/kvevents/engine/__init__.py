"""A simulated inference engine: real scheduling, cache, events and HTTP; only the GPU is a timing model."""
