// What engines tell, and how well it was coalesced on the way.
import { Chart } from "../chart.js";
import { setText } from "../dom.js";
import { facts, legend } from "../figure.js";
import { brief, decimal, rate } from "../format.js";
import { Series } from "../series.js";

const LINES = [
  { name: "blocks stored", colour: "series-1", column: "blocks_stored", fill: true, shape: "hv" },
  { name: "blocks removed", colour: "series-3", column: "blocks_removed", shape: "hv" },
  { name: "events", colour: "series-2", column: "events", shape: "hv" },
];
const FACTS = [
  ["Blocks per event", "events.blocks_per_event", decimal],
  ["Events", "events.events", brief],
  ["Blocks stored", "events.blocks_stored", brief],
  ["Blocks removed", "events.blocks_removed", brief],
  ["Batches applied", "events.applied", brief],
  ["Gaps", "events.gaps", brief],
  ["Batches replayed", "events.replayed", brief],
  ["Batches lost", "events.missing", brief],
  ["Events skipped", "events.events_skipped", brief],
];
const WIDTH_S = { 600: 5, 3600: 30, 21600: 60 };

export function create(root) {
  const values = legend(root.querySelector("#events-legend"), LINES);
  const chart = new Chart(root.querySelector("#events-chart"), LINES, { ticksuffix: " /s" });
  const showFacts = facts(root.querySelector("#events-facts"), FACTS);
  return {
    update({ stats, history, span }) {
      const series = new Series(history, span, stats);
      chart.draw(series.times, LINES.map((line) => series.perSecond(line.column, WIDTH_S[span])), series.range);
      LINES.forEach((line, place) => setText(values[place], `${rate((stats.recent[line.column] ?? 0) / stats.recent.seconds)} /s`));
      showFacts(stats);
    },
  };
}
