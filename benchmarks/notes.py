"""What is known about the figures that are lost or missed: a paragraph each, by question."""

NOTES = {
    "end_to_end": """
Coalesced blocks of 16, by the profile: half of the processor time is the index (ids decoded, hashed, planted), a fifth
libzmq's I/O thread (the kernel's copy and its own, 8 KiB at a time), a tenth the copy of what that thread left in
another core's cache, the rest Python and the message's digest.

What helped, in microseconds for a message of one event: frames read without asking after each whether more follow, and
batches that go on taken in one go (9.1 to 5.1); no exception made on the way into the index (0.7 less); batches that
came together applied in one call (4.4 to 3.5). What did not: 16 or 64 messages a turn in place of 256. Larger socket
buffers are 5 to 10 % better here, but switch off the kernel's own tuning. Bare `recv` in Python, the floor, is 1.0.
""",
    "apply": """
Dynamo's tree is handed hashes that were made beforehand; ours are made of the tokens while it applies. Dynamo's own
function hashes 60 to 80 million tokens a second, which is another 270 ns for a block of 16 and 820 ns for one of 64.
""",
    "query": """
Over HTTP the match is a small part: the body's ids become Python integers before they become a buffer, and each answer
passes the layers of ASGI. A reader from JSON straight into a buffer is the next step.
""",
}


def paragraphs(question: str) -> list[str]:
    """The notes about a question, each on one line."""
    return [" ".join(text.split()) for text in NOTES.get(question, "").split("\n\n") if text.strip()]
