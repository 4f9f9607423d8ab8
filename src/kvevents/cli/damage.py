"""What of a capture could not be read."""

from kvevents.cli.output import note
from kvevents.transport import CaptureReader


def note_damage(reader: CaptureReader) -> None:
    """A line on stderr for each file that was not read to its end."""
    for damage in reader.damage:
        left_out = f"{damage.size_bytes:,} bytes from byte {damage.offset:,} on are left out"
        note(f"{damage.path}: {left_out}: {damage.reason}")
