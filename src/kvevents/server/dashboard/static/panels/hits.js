// How much of the prompts was found cached: expected by the index, reported by engines, and what a cache that forgets
// nothing and is everywhere would have reached.
import { Chart } from "../chart.js";
import { choice, setText } from "../dom.js";
import { legend } from "../figure.js";
import { percent } from "../format.js";
import { Series, SPANS } from "../series.js";

const LINES = [
  { name: "all-knowing", colour: "series-3", dash: "dot", part: "all_knowing_cached_tokens", whole: "prompt_tokens", hint: "if nothing were ever forgotten and any worker counted" },
  { name: "expected", colour: "series-1", part: "expected_cached_tokens", whole: "prompt_tokens", hint: "by the index when the worker was chosen" },
  { name: "reported", colour: "series-2", part: "reported_cached_tokens", whole: "reported_prompt_tokens", hint: "by the engines" },
];
const WIDTH_S = { 600: 10, 3600: 60, 21600: 120 };

export function create(root, onSpan) {
  const values = legend(root.querySelector("#hits-legend"), LINES);
  const element = root.querySelector("#hits-chart");
  const chart = new Chart(element, LINES.map((line) => ({ ...line, hover: ".1%", connect: true })), { tickformat: ".0%", range: [0, 1.02], rangemode: "normal" });
  choice(root.querySelector("#span"), Object.entries(SPANS), "600", (span) => onSpan(Number(span)));
  return {
    update({ stats, history, span }) {
      const series = new Series(history, span, stats);
      const columns = LINES.map((line) => series.share(line.part, line.whole, WIDTH_S[span]));
      chart.draw(series.times, columns, series.range);
      const recent = ["all_knowing", "expected", "reported"].map((name) => stats.recent[`${name}_hit_rate`]);
      values.forEach((value, place) => setText(value, percent(recent[place])));
      element.setAttribute("aria-label", `Hit rate of the last minute: ${LINES.map((line, place) => `${line.name} ${percent(recent[place])}`).join(", ")}`);
    },
  };
}
