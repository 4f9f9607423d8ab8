"""What a stream of KV cache events promises its consumers, checked: every finding has a stable code."""

from kvevents.lint.codes import CODES, Code, Severity
from kvevents.lint.linter import StreamLinter
from kvevents.lint.live import lint_live
from kvevents.lint.report import Finding, LintReport, Place, StreamFacts

__all__ = [
    "CODES",
    "Code",
    "Finding",
    "LintReport",
    "Place",
    "Severity",
    "StreamFacts",
    "StreamLinter",
    "lint_live",
]
