"""Captures: what engines publish, in files, to be read, replayed and examined later and elsewhere."""

from kvevents.transport.capture.layout import Damage, Head, Privacy
from kvevents.transport.capture.reader import CaptureReader
from kvevents.transport.capture.recorder import Recorder
from kvevents.transport.capture.records import (
    CapturedBatch,
    CapturedRefusal,
    CapturedReset,
    CapturedState,
    CaptureRecord,
    CaptureSource,
)
from kvevents.transport.capture.replayer import PlayedWorker, Replayer, ReplayStats
from kvevents.transport.capture.writer import CaptureStats, CaptureWriter, WrittenBatch

__all__ = [
    "CaptureReader",
    "CaptureRecord",
    "CaptureSource",
    "CaptureStats",
    "CaptureWriter",
    "CapturedBatch",
    "CapturedRefusal",
    "CapturedReset",
    "CapturedState",
    "Damage",
    "Head",
    "PlayedWorker",
    "Privacy",
    "Recorder",
    "ReplayStats",
    "Replayer",
    "WrittenBatch",
]
