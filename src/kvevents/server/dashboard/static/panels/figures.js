// The figures at a glance. Each names where in the document of `/stats` it stands.
import { h, setAttribute, setText } from "../dom.js";
import { lookUp } from "../feed.js";
import { brief, bytes, decimal, duration, percent, rate } from "../format.js";

const TILES = [
  { label: "Reported hit rate", path: "recent.reported_hit_rate", show: percent, note: "of prompt tokens, last minute" },
  { label: "Expected hit rate", path: "recent.expected_hit_rate", show: percent, note: "by the index, last minute" },
  { label: "Requests", path: "recent.requests", show: (sum) => rate(sum / 60), unit: "/s", note: "answered, last minute" },
  { label: "Time to answer", path: "recent.latency_p50_s", show: duration, note: "median, last minute" },
  { label: "Blocks known", path: "index.blocks", show: brief, note: "distinct, over all tiers" },
  { label: "Blocks per event", path: "events.blocks_per_event", show: decimal, note: "how well events coalesce" },
  { label: "Answered", path: "totals.requests", show: brief, note: "requests since the start" },
  { label: "Index", path: "index.memory_bytes", show: bytes, note: "of memory, estimated" },
];

export function create(root) {
  const values = TILES.map((tile) => {
    const value = h("b", { "data-figure": tile.path });
    root.append(h("div", { class: "tile" }, h("span", { class: "label" }, tile.label),
      h("p", {}, value, tile.unit ? h("span", { class: "unit" }, ` ${tile.unit}`) : null),
      h("span", { class: "note" }, tile.note)));
    return value;
  });
  return {
    update({ stats }) {
      TILES.forEach((tile, place) => {
        const value = lookUp(stats, tile.path);
        setAttribute(values[place], "data-value", JSON.stringify(value ?? null));
        setText(values[place], tile.show(value));
      });
    },
  };
}
