"""Walks the road of the events of one engine, hop by hop, and names what is wrong."""

from kvevents.doctor.examination import examine
from kvevents.doctor.expectations import Expectations
from kvevents.doctor.report import Diagnosis, Finding, Hop, Verdict

__all__ = ["Diagnosis", "Expectations", "Finding", "Hop", "Verdict", "examine"]
