"""docs/capture.md names what there is."""

import re
from pathlib import Path

import msgspec

from kvevents.transport.capture.layout import VERSION
from kvevents.transport.capture.records import Line

DOCS = (Path(__file__).parents[2] / "docs" / "capture.md").read_text(encoding="utf-8")


def test_the_table_of_records_is_that_of_the_code() -> None:
    kinds = {kind.__struct_config__.tag: kind for kind in Line.__args__}
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCS, re.MULTILINE))
    assert rows.keys() == kinds.keys()
    for name, kind in kinds.items():
        described = rows[name].partition(":")[0] if name == "reset" else rows[name]
        elements = re.sub(r"\{.*?\}", "", described).count(",") + 1
        assert elements == len(msgspec.structs.fields(kind)), name
    assert f"Version {VERSION}." in DOCS
