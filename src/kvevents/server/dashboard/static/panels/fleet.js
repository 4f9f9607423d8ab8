// Every worker: how far its picture can be trusted and why, what it holds, what it has to do.
import { h, keyed, setAttribute, setText, showState, stateWord } from "../dom.js";
import { brief, count, percent, plural, since } from "../format.js";

const TRUTHS = {
  new: "not compared with its answers yet",
  agrees: "its answers agree with its events",
  unknown: "its answers do not say what they found cached",
  stale: "its answers find less cached than its events say",
  missing: "its answers find more cached than its events say",
};
const TIERS = [["GPU", "GPU"], ["CPU_PINNED", "host"], ["DISK", "disk"], ["EXTERNAL", "external"]];

function tierBar() {
  return h("div", { class: "tiers", role: "img" }, TIERS.map(([tier]) => h("i", { "data-tier": tier })));
}

function showTiers(bar, blocks, most) {
  const held = TIERS.map(([tier]) => blocks[tier] ?? 0);
  [...bar.children].forEach((part, place) => part.style.setProperty("flex-basis", `${(100 * held[place]) / Math.max(1, most)}%`));
  setAttribute(bar, "aria-label", TIERS.map(([, name], place) => `${count(held[place])} ${name}`).join(", "));
}

const tiersInWords = (blocks) => TIERS.filter(([tier]) => blocks[tier]).map(([tier, name]) => `${brief(blocks[tier])} ${name}`).join(" · ") || "none";
const sum = (parts, name) => parts.reduce((total, part) => total + (part[name] ?? 0), 0);
const total = (blocks) => TIERS.reduce((all, [tier]) => all + (blocks[tier] ?? 0), 0);

function makeRow(worker) {
  const id = `worker-${worker.id}`;
  const parts = {
    state: h("span"), reason: h("p", { class: "note reason" }), name: h("b", { class: "name" }), url: h("span", { class: "note" }),
    bar: tierBar(), blocks: h("span", { class: "number", "data-cell": "blocks" }), words: h("span", { class: "note" }),
    requests: h("b", { class: "number", "data-cell": "requests" }), queued: h("span", { class: "note" }),
    reported: h("span", { class: "note" }), truth: h("p", { class: "note" }), ranks: h("tbody"), more: null,
  };
  const detail = h("div", { class: "ranks", id: `${id}-ranks`, hidden: true },
    h("table", {}, h("thead", {}, h("tr", {}, ["Rank", "State", "Why", "Blocks", "Open", "Applied", "Gaps", "Lost", "Reconnects"].map((name) => h("th", { scope: "col" }, name)))), parts.ranks), parts.truth);
  parts.more = h("button", { type: "button", class: "quiet more", "aria-expanded": "false", "aria-controls": `${id}-ranks`, onclick: () => {
    detail.hidden = !detail.hidden;
    parts.more.setAttribute("aria-expanded", String(!detail.hidden));
  } });
  const row = h("li", { class: "worker", id, "data-worker": worker.id },
    h("div", { class: "who" }, parts.name, parts.url),
    h("div", { class: "how" }, parts.state, parts.reason),
    h("div", { class: "held" }, h("p", {}, parts.blocks, parts.words), parts.bar),
    h("div", { class: "busy" }, h("p", {}, parts.requests, " open"), parts.queued, parts.reported),
    parts.more, detail);
  row.parts = parts;
  return row;
}

function showRow(row, worker, { most, now }) {
  const { parts } = row;
  setText(parts.name, worker.id);
  setText(parts.url, [worker.role, worker.models.join(", ")].filter(Boolean).join(" · "));
  showState(parts.state, worker.state);
  setAttribute(row, "data-state", worker.state);
  setText(parts.reason, worker.state_reason + (worker.since ? `, for ${since(Math.max(0, now - worker.since))}` : ""));
  setText(parts.blocks, `${brief(total(worker.blocks))} blocks`);
  setText(parts.words, total(worker.blocks) ? ` ${tiersInWords(worker.blocks)}` : "");
  showTiers(parts.bar, worker.blocks, most);
  setText(parts.requests, count(sum(worker.ranks, "requests")));
  const queued = sum(worker.ranks, "queued_tokens");
  setText(parts.queued, queued ? `${brief(queued)} tokens to compute` : "nothing to compute");
  const said = worker.ranks.map((rank) => rank.reported).filter(Boolean);
  setText(parts.reported, said.length ? `it says ${count(sum(said, "running"))} running, ${count(sum(said, "waiting"))} waiting` : "");
  const truth = worker.truth?.verdict ?? "new";
  const error = worker.truth?.judged ? `, on average ${percent(Math.abs(worker.truth.error))} of a prompt ${worker.truth.error < 0 ? "less" : "more"} than expected` : "";
  setText(parts.truth, `Truth: ${TRUTHS[truth] ?? truth}${error}.`);
  setText(parts.more, worker.ranks.length > 1 ? plural(worker.ranks.length, "rank") : "Details");
  keyed(parts.ranks, worker.ranks, (rank) => rank.dp_rank, () => h("tr", {}, Array.from({ length: 9 }, () => h("td"))), (line, rank) => {
    const source = worker.sources.find((one) => (one.dp_rank ?? 0) === rank.dp_rank) ?? worker.sources[0];
    const counters = source?.counters;
    const cells = [rank.dp_rank, source ? stateWord(source.state) : "–", source?.reason ?? worker.events, tiersInWords(rank.blocks), rank.requests,
      count(counters?.applied), count(counters?.gaps), count(counters?.missing), count(counters?.reconnects)];
    cells.forEach((text, place) => setText(line.children[place], String(text)));
  });
}

export function create(root) {
  const body = root.querySelector("#fleet-body");
  const note = root.querySelector("#fleet-note");
  const empty = h("div", { class: "empty", hidden: true }, h("p", {}, "No worker is known yet."),
    h("p", { class: "note" }, "Start the router with ", h("code", {}, "--worker http://host:30000"), ", or add one: ",
      h("code", {}, "POST /workers {\"url\": …}"), "."));
  const list = h("ul", { class: "workers" });
  body.append(empty, list);
  return {
    update({ stats }) {
      const { workers, now } = stats;
      empty.hidden = workers.length > 0;
      const most = Math.max(...workers.map((worker) => total(worker.blocks)), 1);
      keyed(list, workers, (worker) => worker.id, makeRow, (row, worker) => showRow(row, worker, { most, now }));
      const live = workers.filter((worker) => worker.state === "live").length;
      setText(note, workers.length ? `${live} of ${plural(workers.length, "worker")} live` : "");
      setAttribute(note, "data-live", live);
    },
  };
}
