// How many requests, and how long they take.
import { Chart } from "../chart.js";
import { setText } from "../dom.js";
import { facts, legend } from "../figure.js";
import { brief, duration, rate } from "../format.js";
import { Series } from "../series.js";

const RATES = [
  { name: "answered", colour: "series-1", column: "requests", fill: true, shape: "hv" },
  { name: "failed", colour: "bad", column: "failed_requests", shape: "hv" },
];
const TIMES = [
  { name: "median", colour: "series-1", column: "latency_p50_s" },
  { name: "95 %", colour: "series-2", column: "latency_p95_s", width: 1.5 },
  { name: "99 %", colour: "series-3", column: "latency_p99_s", width: 1.5, dash: "dot" },
];
const FACTS = [
  ["Accepted", "proxy.accepted", brief],
  ["Waiting now", "proxy.waiting", brief],
  ["Had to wait", "proxy.queued", brief],
  ["Tried again", "proxy.retried", brief],
  ["Client left", "proxy.client_left", brief],
  ["No worker for", "unplaced_requests", brief],
];
const WIDTH_S = { 600: 5, 3600: 30, 21600: 60 };

export function create(root) {
  const rates = legend(root.querySelector("#requests-legend"), RATES);
  const times = legend(root.querySelector("#latency-legend"), TIMES);
  const rateChart = new Chart(root.querySelector("#rate-chart"), RATES, { ticksuffix: " /s" });
  const timeChart = new Chart(root.querySelector("#latency-chart"), TIMES.map((line) => ({ ...line, connect: true, hover: ".3~s" })), { tickformat: ".2~s", ticksuffix: "s" });
  const showFacts = facts(root.querySelector("#requests-facts"), FACTS);
  return {
    update({ stats, history, span }) {
      showFacts(stats);
      const series = new Series(history, span, stats);
      rateChart.draw(series.times, RATES.map((line) => series.perSecond(line.column, WIDTH_S[span])), series.range);
      timeChart.draw(series.times, TIMES.map((line) => series.column(line.column)), series.range);
      RATES.forEach((line, place) => setText(rates[place], `${rate((stats.recent[line.column] ?? 0) / stats.recent.seconds)} /s`));
      TIMES.forEach((line, place) => setText(times[place], duration(stats.recent[line.column])));
    },
  };
}
