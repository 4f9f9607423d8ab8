"""What benchmarks measure the package against; nothing else uses it."""

from _typeshed import ReadableBuffer

def sha256_floor(tokens: ReadableBuffer, page_size: int) -> bytes:
    """The floor of recording: the SHA-256 digests that a chain of pages needs, in one loop, and nothing else.

    The same implementation of SHA-256 that `kvevents.hashing` uses, called once a page over the bytes that the page's
    digest takes: the digest before, then the ids with 32 bits each.

    Args:
        tokens: a buffer of 32-bit ids; what is left after the last whole page is not hashed.
        page_size: tokens in a page.

    Returns:
        The last page's digest.

    Raises:
        ValueError: other ids, or the page size is 0.
    """
