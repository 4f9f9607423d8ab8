// What happened to each source of events: its states over time, gaps, restarts, and how they were mended.
import { h, keyed, setAttribute, setText, stateWord } from "../dom.js";
import { duration, plural, time } from "../format.js";

const MOST = 40;
const MARKS = { gaps: "gap", missing: "lost", restarts: "restart", expired: "expired", refused: "refused" };
const WORDS = {
  gaps: "a number was skipped in the stream", missing: "batches given up for lost", restarts: "the engine was started anew",
  reconnects: "connected again", expired: "forgotten, since it was lost for too long", snapshots: "a snapshot was put in place",
  refused: "a broken batch was refused", skipped: "something in a batch could not be used", joined: "joined the fleet", left: "left the fleet",
};

const nameOf = (worker, rank) => worker + (rank ? ` rank ${rank}` : "");

function sentence(entry) {
  if (entry.kind === "state") return `${stateWord(entry.before)} → ${stateWord(entry.after)}${entry.count > 1 ? `, ${entry.count} times` : ""}`;
  if (entry.kind === "up" || entry.kind === "down") return entry.kind === "up" ? "takes requests again" : "takes no requests";
  return (WORDS[entry.kind] ?? entry.kind) + (entry.count > 1 ? ` (${entry.count})` : "");
}

// Stretches of one state within the time shown.
function segments(entries, state, from, now) {
  const moves = entries.filter((entry) => entry.kind === "state");
  const parts = [];
  let at = from;
  let current = moves.find((entry) => entry.at >= from)?.before ?? moves.at(-1)?.after ?? state;
  for (const move of moves) {
    if (move.at > from) {
      if (move.at > at) parts.push({ from: at, to: move.at, state: current });
      at = move.at;
    }
    if (move.at >= from) current = move.after;
  }
  parts.push({ from: at, to: now, state });
  return parts;
}

export function create(root) {
  const body = root.querySelector("#timeline-body");
  const note = root.querySelector("#timeline-note");
  const lanes = h("ul", { class: "lanes" });
  const scale = h("p", { class: "scale note", "aria-hidden": "true" }, h("span"), h("span"), h("span", {}, "now"));
  const empty = h("p", { class: "empty", hidden: true }, "No engine's events are received yet.");
  const list = h("ol", { class: "log", "aria-label": "What happened, newest first" });
  body.append(empty, lanes, scale, list);

  const makeLane = () => h("li", { class: "lane" }, h("span", { class: "name" }), h("div", { class: "track", role: "img" }, h("div", { class: "states" }), h("div", { class: "marks" })));

  return {
    update({ stats, log, span }) {
      const now = stats.now;
      const from = Math.max(now - span, stats.started);
      const place = (at) => `${(100 * (at - from)) / Math.max(1, now - from)}%`;
      const sources = stats.workers.flatMap((worker) => worker.sources.map((source) => ({ worker: worker.id, rank: source.dp_rank, state: source.state })));
      empty.hidden = sources.length > 0;
      lanes.hidden = scale.hidden = sources.length === 0;
      keyed(lanes, sources, (one) => `${one.worker} ${one.rank}`, makeLane, (lane, one) => {
        const [name, track] = lane.children;
        const [states, marks] = track.children;
        const entries = log.filter((entry) => entry.worker === one.worker && (entry.dp_rank ?? null) === (one.rank ?? null));
        const parts = segments(entries, one.state, from, now);
        setText(name, nameOf(one.worker, one.rank));
        keyed(states, parts.map((part, number) => ({ ...part, number })), (part) => part.number, () => h("i"), (element, part) => {
          setAttribute(element, "data-state", part.state);
          setAttribute(element, "title", `${stateWord(part.state)} for ${duration(part.to - part.from)}`);
          element.style.setProperty("left", place(part.from));
          element.style.setProperty("right", `calc(100% - ${place(part.to)})`);
        });
        keyed(marks, entries.filter((entry) => entry.kind in MARKS && entry.at >= from), (entry) => entry.id,
          (entry) => h("i", { "data-kind": entry.kind, title: `${time(entry.at)}: ${sentence(entry)}` }),
          (element, entry) => element.style.setProperty("left", place(entry.at)));
        setAttribute(track, "aria-label", `${nameOf(one.worker, one.rank)}: ${parts.map((part) => `${stateWord(part.state)} for ${duration(part.to - part.from)}`).slice(-6).join(", then ")}`);
      });
      const [first, middle] = scale.children;
      setText(first, time(from));
      setText(middle, time((from + now) / 2));
      keyed(list, log.slice(-MOST).reverse(), (entry) => entry.id,
        (entry) => h("li", { "data-kind": entry.kind, "data-state": entry.after }, h("time", {}, time(entry.at)), h("b", {}, nameOf(entry.worker, entry.dp_rank)),
          h("span", {}, sentence(entry), entry.reason ? h("span", { class: "note" }, ` ${entry.reason}`) : entry.code ? h("span", { class: "note" }, ` ${entry.code}`) : null)),
        () => {});
      setText(note, log.length ? `${plural(log.length, "entry", "entries")} kept` : "nothing happened yet");
    },
  };
}
