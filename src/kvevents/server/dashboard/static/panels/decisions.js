// Where requests went, and why; opened, what every candidate would have cost.
import { h, keyed, setAttribute, setText } from "../dom.js";
import { brief, count, duration, percent, plural, time } from "../format.js";

const MOST = 40;
const OUTCOMES = { ok: "answered", refused: "refused by the engine", client_left: "client left", broken: "broken off", unanswered: "not answered" };

function explained(explanation) {
  const { candidates } = explanation;
  const most = Math.max(...candidates.map((one) => one.cost), 1e-9);
  const terms = [...new Set(candidates.flatMap((one) => Object.keys(one.terms)))];
  const head = ["Candidate", "Blocks held", "To compute", "Queued", "Holding", "Open", "Cost"];
  return [
    h("p", { class: "why" }, explanation.reason),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidates" },
      h("table", { class: "candidates" },
        h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, candidates.map((one) => h("tr", { "data-chosen": String(one.chosen) },
          h("th", { scope: "row" }, one.chosen ? "→ " : "", one.worker, one.dp_rank ? ` rank ${one.dp_rank}` : ""),
          h("td", {}, count(one.blocks.usable), one.source_state && one.source_state !== "live" ? ` (${one.source_state})` : ""),
          h("td", {}, brief(one.tokens.to_compute)), h("td", {}, brief(one.load.queued_tokens)), h("td", {}, brief(one.load.held_tokens)),
          h("td", {}, count(one.load.requests)),
          h("td", { class: "cost", title: terms.map((name) => `${name} ${brief(one.terms[name])}`).join(" + ") },
            h("i", { style: { width: `${Math.max(1, (64 * one.cost) / most)}px` } }), brief(one.cost))))))),
    explanation.excluded?.length ? h("p", { class: "note" }, `Not asked: ${explanation.excluded.map((one) => `${one.worker} (${one.why})`).join(", ")}`) : null,
    h("p", { class: "note" }, `Policy ${explanation.policy}. Cost = ${terms.join(" + ") || "a draw"}. ` +
      `Expected ${count(explanation.expected_cached_tokens)} of ${plural(explanation.prompt_tokens, "token")} cached; the best candidate for that has ${count(explanation.best_cached_tokens)}.`),
  ];
}

function make(decision) {
  const parts = { at: h("time"), worker: h("b"), tokens: h("span"), bar: h("span", { class: "split", role: "img" }, h("i"), h("i")), outcome: h("span", { class: "outcome" }) };
  const detail = h("div", { class: "detail" });
  const element = h("details", { class: "decision", "data-id": decision.id }, h("summary", {}, parts.at, parts.worker, parts.tokens, parts.bar, parts.outcome), detail);
  element.addEventListener("toggle", () => {
    if (element.open && !detail.hasChildNodes()) {
      detail.append(...explained(decision.explanation).filter(Boolean));
      if (decision.candidates_left_out) detail.append(h("p", { class: "note" }, `${plural(decision.candidates_left_out, "candidate")} more that cost more.`));
    }
  });
  element.parts = parts;
  return element;
}

function show(element, decision) {
  const { parts } = element;
  const { explanation } = decision;
  setText(parts.at, time(decision.at));
  setText(parts.worker, explanation.worker + (explanation.dp_rank ? ` rank ${explanation.dp_rank}` : ""));
  setText(parts.tokens, plural(explanation.prompt_tokens, "token"));
  const share = (part) => (explanation.prompt_tokens ? part / explanation.prompt_tokens : 0);
  const expected = share(explanation.expected_cached_tokens);
  const reported = decision.reported_cached_tokens === null ? null : share(decision.reported_cached_tokens);
  parts.bar.children[0].style.setProperty("width", `${100 * expected}%`);
  parts.bar.children[1].style.setProperty("width", `${100 * (reported ?? 0)}%`);
  setAttribute(parts.bar, "aria-label", `expected ${percent(expected)} cached, reported ${percent(reported)}`);
  setAttribute(parts.bar, "title", `expected ${percent(expected)} cached, reported ${percent(reported)}`);
  const ended = decision.outcome !== null;
  setText(parts.outcome, ended ? `${OUTCOMES[decision.outcome] ?? decision.outcome}${decision.duration_s === null ? "" : ` in ${duration(decision.duration_s)}`}` : "open");
  setAttribute(parts.outcome, "data-outcome", decision.outcome ?? "open");
}

export function create(root) {
  const body = root.querySelector("#decisions-body");
  const note = root.querySelector("#decisions-note");
  const pause = root.querySelector("#decisions-pause");
  const empty = h("div", { class: "empty" }, h("p", {}, "No request was placed yet."),
    h("p", { class: "note" }, "Send one to ", h("code", {}, "/v1/completions"), " or ", h("code", {}, "/v1/chat/completions"), "."));
  const list = h("div", { class: "decisions" });
  const key = h("p", { class: "legend" }, [["expected", "series-1"], ["reported", "series-2"]].map(([name, colour]) =>
    h("span", {}, h("i", { class: "key", "data-colour": colour }), `${name} share of the prompt cached`)));
  body.append(empty, key, list);
  let held = null;
  pause.addEventListener("click", () => {
    held = held === null ? new Set() : null;
    setAttribute(pause, "aria-pressed", String(held !== null));
    setText(pause, held === null ? "Pause" : "Go on");
  });
  return {
    update({ stats, decisions }) {
      const all = [...decisions.values()];
      if (held?.size === 0 && list.known) for (const id of list.known.keys()) held.add(id);
      const shown = (held ? all.filter((one) => held.has(one.id)) : all.slice(-MOST)).reverse();
      empty.hidden = shown.length > 0;
      key.hidden = shown.length === 0;
      keyed(list, shown, (one) => one.id, make, show);
      setText(note, stats.decisions_taken ? `${count(stats.decisions_taken)} taken; shown is a sample` : "");
    },
  };
}
