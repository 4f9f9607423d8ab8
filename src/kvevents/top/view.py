"""The full-screen view; needs the extra `top`."""

import asyncio
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from kvevents.errors import KVEventsError
from kvevents.top.picture import TIERS, Feed, Picture, Shown, Trend

COLUMNS = (
    "worker",
    "rank",
    "state",
    *TIERS,
    "events/s",
    "blocks/s",
    "blocks/event",
    "gaps",
    "missing",
    "seq",
    "reason",
)
COLOURS = {"live": "green", "recovering": "cyan", "connecting": "cyan", "degraded": "yellow", "draining": "yellow"}
"""Of states; every other one is red."""

LOG_LINES = 1_000

HELP = """\
[b]kvevents top[/b]

s  sort by the next column        r  turn the order round
f  show only what contains a text (worker, state or reason); empty shows all
p  pause: what is shown stays as it is
h  this help                      q  quit

[b]blocks/event[/b]  blocks that one event tells of: 1 is no coalescing at all
[b]gaps[/b]          times numbers were skipped; [b]missing[/b]: batches that are lost for good

Any key goes back.
"""


class HelpScreen(ModalScreen[None]):
    """The keys."""

    CSS = "HelpScreen { align: center middle; } #help { width: 84; height: auto; border: round $accent; padding: 1 2; }"

    def compose(self) -> ComposeResult:
        yield Static(HELP, id="help")

    def on_key(self) -> None:
        self.dismiss()


class TopApp(App[None]):
    """Shows a feed's pictures as they come.

    Args:
        feed: what is looked at; closed by who made it.
        interval_s: between two looks.

    Attributes:
        shown: rows of the last picture with their rates.
        problem: why there was no picture at the last look; empty if there was.
    """

    TITLE = "kvevents top"
    CSS = """
    #summary { height: 1; background: $boost; }
    #rows { height: 2fr; }
    #filter { display: none; }
    #filter.is-open { display: block; }
    #news { height: 1fr; border-top: solid $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("f,slash", "filter", "filter", key_display="f"),
        Binding("p", "pause", "pause"),
        Binding("h,question_mark", "help", "help", key_display="h"),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, feed: Feed, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._feed = feed
        self._interval_s = interval_s
        self._trend = Trend()
        self._is_paused = False
        self._sorted_by = 0
        self._is_reversed = False
        self._wanted = ""
        self.shown: list[Shown] = []
        self.problem = ""

    def compose(self) -> ComposeResult:
        yield Static(id="summary")
        with Vertical():
            yield DataTable[Text](id="rows", cursor_type="row", zebra_stripes=True)
            yield Input(placeholder="worker, state or reason", id="filter")
            yield RichLog(id="news", max_lines=LOG_LINES, wrap=False)
        yield Footer()

    def on_mount(self) -> None:
        self._draw()
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        while True:
            if not self._is_paused:
                await self._look()
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> None:
        try:
            picture = await asyncio.to_thread(self._feed.look)
        except KVEventsError as error:
            self.problem = str(error)
            self._draw()
            return
        self.problem = ""
        if not self._is_paused:
            self._take(picture)

    def _take(self, picture: Picture) -> None:
        self.shown = self._trend.of(picture)
        log = self.query_one("#news", RichLog)
        for line in picture.news:
            log.write(Text(line))
        self._draw()

    def _draw(self) -> None:
        table = self.query_one("#rows", DataTable)
        where = table.cursor_row
        table.clear(columns=True)
        for place, column in enumerate(COLUMNS):
            mark = ("▼" if self._is_reversed else "▲") if place == self._sorted_by else ""
            table.add_column(f"{column}{mark}", key=column)
        for one in self.rows():
            table.add_row(*_cells(one))
        table.move_cursor(row=min(where, max(table.row_count - 1, 0)))
        self.query_one("#summary", Static).update(self._summary())

    def rows(self) -> list[Shown]:
        """The rows that are shown, in their order."""
        wanted = self._wanted.lower()
        chosen = [
            one
            for one in self.shown
            if any(wanted in text.lower() for text in (one.row.worker, one.row.state, one.row.reason))
        ]
        return sorted(chosen, key=lambda one: _values(one)[self._sorted_by], reverse=self._is_reversed)

    def _summary(self) -> Text:
        events, blocks = (sum(getattr(one, name) for one in self.shown) for name in ("events_per_s", "blocks_per_s"))
        live = sum(one.row.state == "live" for one in self.shown)
        text = Text(
            f" {self._feed.name}  {live} of {len(self.shown)} live  {events:,.1f} events/s  {blocks:,.1f} blocks/s"
        )
        if self._wanted:
            text.append(f"  only: {self._wanted}", style="bold")
        if self._is_paused:
            text.append("  paused", style="bold yellow")
        if self.problem:
            text.append(f"  {self.problem}", style="bold red")
        return text

    def action_sort(self) -> None:
        self._sorted_by = (self._sorted_by + 1) % len(COLUMNS)
        self._draw()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._draw()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._draw()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("is-open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).remove_class("is-open")
        self.query_one("#rows", DataTable).focus()


def _values(one: Shown) -> tuple[str | float, ...]:
    """What each column is sorted by."""
    row = one.row
    return (
        row.worker,
        row.dp_rank,
        row.state,
        *(row.tiers.get(tier, 0) for tier in TIERS),
        one.events_per_s,
        one.blocks_per_s,
        one.blocks_per_event or 0.0,
        row.gaps,
        row.missing,
        -1 if row.last_sequence is None else row.last_sequence,
        row.reason,
    )


def _cells(one: Shown) -> list[Text]:
    cells = []
    for column, value in zip(COLUMNS, _values(one), strict=True):
        if isinstance(value, str):
            style = COLOURS.get(value, "bold red") if column == "state" else ""
            cells.append(Text(value, style=style))
            continue
        is_unknown = (column == "seq" and value < 0) or (column == "blocks/event" and one.blocks_per_event is None)
        is_loss = column == "missing" and value > 0
        shown = "-" if is_unknown else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        cells.append(Text(shown, style="bold red" if is_loss else "", justify="right"))
    return cells
