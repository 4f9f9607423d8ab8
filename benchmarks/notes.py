"""What is known about the figures that are lost or missed: a paragraph each, by question."""

NOTES = {
    "end_to_end": """
Coalesced blocks of 16, by the profile: half of the processor time is the index (ids decoded, hashed, planted), a fifth
libzmq's I/O thread (the kernel's copy and its own, 8 KiB at a time), a tenth the copy of what that thread left in
another core's cache, the rest Python. Of a message with one event, 4 us in all, the index is 1.3 us, its three frames
0.7 us, the rest Python and the I/O thread; bare `recv` in Python, the floor, is 3.3 us.

What helped: frames read without asking after each whether more follow, and batches that go on taken in one go (9.1 us a
message of one event before, 5.1 us after); no exception made on the way into the index (0.7 us). What did not: 16 or 64
messages a turn in place of 256. Larger socket buffers are 5 to 10 % better here, but switch off the kernel's own
tuning. Less takes a receiver that is not Python.
""",
    "query": """
Over HTTP the match is a small part: the body's ids become Python integers before they become a buffer, and each answer
passes the layers of ASGI. A reader from JSON straight into a buffer is the next step.
""",
}


def paragraphs(question: str) -> list[str]:
    """The notes about a question, each on one line."""
    return [" ".join(text.split()) for text in NOTES.get(question, "").split("\n\n") if text.strip()]
