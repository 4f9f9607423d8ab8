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
Where a coalesced block of 16 goes, told by applying what is refused after it was read and hashed (50 of 137 ns, of
which hashing is 12), what is held already (78), and what is new (137): two fifths are the making of new blocks.
Dynamo's tree is handed objects that were read beforehand; what reading a payload costs it is not in its figure, and is
a quarter of ours.

What helped: an event's blocks are hashed before the lock is taken and their entries fetched ahead; blocks of one event
share a set of holders, which changes once; tables grow in parts, whose slots are moved in order.
""",
    "proxy": """
The routers beside ours are Rust and route by a tree of texts of their own. Of ours, a small request's time is some 30
us of system calls, 40 of the data plane in Python (one head each way, the books, the limits), 12 of reading the
prompt and choosing by events and load, 15 of what is told afterwards (ledger, truth, history, metrics), and a share
of following 80 event messages a second, which costs 2 % of a processor and weighs most on paced chunks. A bare splice
on the same event loop takes 16 us; what lies between is the way to go. A burst finds connections that were kept, and
then waits for 64 heads in turn.
""",
    "routing": """
Agents: an engine has room for one or two of the longest prompts, so a queue often waits for memory, not for computing
(the engines compute a tenth of the time). `held_weight` counts the memory that open requests hold, which halved the
p99; `least_loaded`, which counts requests, is still a little below it there, and computes 2.6 times as much. That p99
moves between 12 and 45 s with neighbouring weights: few requests make it.
""",
}


def paragraphs(question: str) -> list[str]:
    """The notes about a question, each on one line."""
    return [" ".join(text.split()) for text in NOTES.get(question, "").split("\n\n") if text.strip()]
