// The tree of prompts as an icicle: each row lies one level deeper, each stretch is as wide as what it stands for.
// Press a stretch to look down from it, to any depth. Arrows move between stretches, Backspace goes back up.
import { choice, h, keyed, setAttribute, setText } from "../dom.js";
import { brief, count, percent, plural } from "../format.js";

const LEVELS = 6;
const MOST = 240;
const EVERY_MS = 4000;
const TIER_NAMES = { GPU: "GPU", CPU_PINNED: "host", DISK: "disk", EXTERNAL: "external" };
const WEIGHTS = { blocks: (one) => one.blocks + one.below, requests: (one) => one.hits };

const short = (id) => id.slice(0, 6);
const said = (one) => `${plural(one.blocks, "block")} held by ${plural(one.held_by, "rank")}, in ${plural(one.hits, "recent request")}`;

// Places in a row, as shares of the whole: children share the width of their parent by weight.
function arrange(stretches, weigh) {
  const placed = stretches.map((one) => ({ one, children: [], x: 0, width: 0, level: 0 }));
  const tops = [];
  placed.forEach((place) => (place.one.parent === null ? tops : placed[place.one.parent].children).push(place));
  const sum = (places) => places.reduce((total, place) => total + weigh(place.one), 0);
  const share = (places, x, width, level, whole) => {
    let at = x;
    for (const place of places) {
      place.x = at;
      place.width = whole > 0 ? (width * weigh(place.one)) / whole : 0;
      place.level = level;
      at += place.width;
      const below = sum(place.children);
      share(place.children, place.x, place.width, level + 1, Math.max(below, weigh(place.one) - (weigh === WEIGHTS.blocks ? place.one.blocks : 0)));
    }
  };
  share(tops, 0, 1, 0, sum(tops));
  return placed.filter((place) => place.width > 0.002);
}

export function create(root) {
  const body = root.querySelector("#prefixes-body");
  const crumbs = h("ol", { class: "crumbs", "aria-label": "Path" });
  const icicle = h("div", { class: "icicle", role: "tree", "aria-label": "Shared prefixes; arrows move, Enter looks down, Backspace goes up" });
  const note = h("p", { class: "note" }, "looking…");
  const empty = h("div", { class: "empty", hidden: true }, h("p", {}, "No engine holds a block yet."),
    h("p", { class: "note" }, "Prefixes appear here as engines announce what they hold."));
  const key = h("p", { class: "legend" },
    h("span", {}, h("i", { class: "swatch heat" }), "the deeper, the more recent requests"),
    h("span", {}, h("i", { class: "swatch shared" }), "held by several ranks"),
    h("span", {}, h("i", { class: "swatch hole" }), "held by nobody"));
  const detail = h("div", { class: "about" });
  body.append(crumbs, h("div", { class: "explorer" }, h("div", { class: "canvas" }, icicle, empty, key, note), detail));

  let at = null;
  let path = []; // ids from the first block down to `at`
  let answer = null;
  let weight = "requests";
  let chosen = null;
  let busy = false;
  let wanted = false;
  let visible = true;
  let timer = null;
  let everyone = 1;

  choice(root.querySelector("#weight"), [["requests", "by requests"], ["blocks", "by blocks"]], weight, (value) => {
    weight = value;
    draw();
  });
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    if (visible) look();
  }).observe(root);

  function go(id, above) {
    at = id;
    path = above;
    chosen = id;
    look();
  }

  function up() {
    if (at === null) return;
    const above = answer?.path ?? path.slice(0, -1);
    go(above.at(-1) ?? null, above);
  }

  async function look() {
    clearTimeout(timer);
    if (busy) {
      wanted = true;
      return;
    }
    busy = true;
    const asked = at;
    try {
      const query = new URLSearchParams({ depth: LEVELS, limit: MOST, ...(asked === null ? {} : { at: asked }) });
      const response = await fetch(`/prefixes?${query}`);
      if (response.status === 404 && asked !== null) {
        setText(note, "Nobody holds that prefix any more; looking from one above.");
        go(path.at(-2) ?? null, path.slice(0, -1));
      } else if (!response.ok) {
        throw new Error(`the router answered ${response.status}`);
      } else {
        const news = await response.json();
        if (asked === at) {
          answer = news;
          draw();
        }
      }
    } catch (error) {
      setText(note, `Prefixes cannot be shown: ${error.message}.`);
      root.classList.add("failed");
    } finally {
      busy = false;
      if (wanted) {
        wanted = false;
        look();
      } else {
        timer = setTimeout(() => visible && !document.hidden && look(), EVERY_MS);
      }
    }
  }

  function draw() {
    if (!answer) return;
    root.classList.remove("failed");
    const { stretches } = answer;
    const isHot = stretches.some((one) => one.hits > 0);
    const weigh = WEIGHTS[isHot ? weight : "blocks"];
    const placed = arrange(stretches, weigh);
    const hottest = Math.max(...stretches.map((one) => one.hits), 1);
    const levels = Math.max(1, ...placed.map((place) => place.level + 1));
    icicle.style.setProperty("--levels", levels);
    empty.hidden = stretches.length > 0;
    icicle.hidden = key.hidden = stretches.length === 0;
    if (!stretches.some((one) => one.id === chosen)) chosen = at ?? stretches[0]?.id ?? null;
    keyed(icicle, placed, (place) => place.one.id, makeNode, (node, place) => showNode(node, place, hottest));
    roam();
    showCrumbs();
    showDetail();
    const hidden = stretches.length - placed.length;
    const parts = [`${plural(answer.total_stretches, "stretch", "stretches")} of ${plural(answer.total_blocks, "block")} in all`,
      `${plural(answer.requests_followed, "recent request")} followed`];
    if (hidden > 0) parts.push(`${plural(hidden, "stretch", "stretches")} too narrow to draw`);
    if (stretches.length) setText(note, `${parts.join(" · ")}.`);
    else setText(note, "");
  }

  function makeNode(place) {
    const node = h("button", { type: "button", role: "treeitem", class: "stretch" }, 
      h("span", { class: "main" }, h("span"), h("span", { class: "long" }, " blocks")),
      h("span", { class: "sub" }, h("span", { class: "long" }), h("span", { class: "short" })));
    node.addEventListener("click", () => open(node.place.one));
    const preview = () => {
      chosen = node.place.one.id;
      roam();
      showDetail();
    };
    node.addEventListener("focus", preview);
    node.addEventListener("pointerenter", preview);
    return node;
  }

  function showNode(node, place, hottest) {
    const { one } = place;
    node.place = place;
    node.style.setProperty("left", `${100 * place.x}%`);
    node.style.setProperty("width", `${100 * place.width}%`);
    node.style.setProperty("--level", place.level);
    node.style.setProperty("--heat", Math.sqrt(one.hits / hottest).toFixed(3));
    setAttribute(node, "data-id", one.id);
    setAttribute(node, "data-shared", one.held_by > 1);
    setAttribute(node, "data-hole", one.held_by === 0);
    setAttribute(node, "aria-level", place.level + 1);
    setAttribute(node, "aria-label", said(one) + (one.children ? `, ${plural(one.children, "branch", "branches")}` : ""));
    const [main, sub] = node.children;
    setText(main.children[0], brief(one.blocks));
    setText(main.children[1], one.blocks === 1 ? " block" : " blocks");
    setText(sub.children[0], one.held_by === 0 ? "held by nobody" : `on ${plural(one.held_by, "rank")}`);
    setText(sub.children[1], one.held_by === 0 ? "hole" : `×${one.held_by}`);
  }

  function open(one) {
    if (one.id === at) up();
    else go(one.id, [...pathTo(one), one.id]);
  }

  // Ids above a stretch that is shown.
  function pathTo(one) {
    const above = [];
    for (let place = one.parent; place !== null; place = answer.stretches[place].parent) above.unshift(answer.stretches[place].id);
    return [...answer.path, ...above];
  }

  function showCrumbs() {
    const steps = [{ id: null, label: "All prompts" }, ...answer.path.map((id) => ({ id, label: short(id) }))];
    if (at !== null) steps.push({ id: at, label: short(at) });
    crumbs.replaceChildren(...steps.map((step, place) => h("li", {}, place === steps.length - 1
      ? h("span", { "aria-current": "location" }, step.label)
      : h("button", { type: "button", class: "quiet", onclick: () => go(step.id, answer.path.slice(0, place)) }, step.label))));
  }

  function showDetail() {
    const one = answer?.stretches.find((candidate) => candidate.id === chosen);
    setAttribute(detail, "data-id", one?.id);
    const print = JSON.stringify([one, answer?.requests_followed]);
    if (detail.print === print) return;
    detail.print = print;
    if (!one) {
      detail.replaceChildren();
      return;
    }
    const facts = [
      ["Length", `${plural(one.blocks, "block")} of ${plural(one.block_size, "token")}`],
      ["Above it", plural(one.depth, "block")],
      ["Below it", `${plural(one.below, "block")} in ${plural(one.children, "branch", "branches")}`],
      ["Recent requests", `${count(one.hits)} (${percent(answer.requests_followed ? one.hits / answer.requests_followed : null)})`],
      ["Held by", one.held_by ? `${count(one.held_by)} of ${plural(everyone, "rank")}` : "nobody: a hole above blocks that are held"],
    ];
    const rows = one.holders.map((holder) => h("tr", {}, h("th", { scope: "row" }, holder.worker + (holder.dp_rank ? ` rank ${holder.dp_rank}` : "")),
      h("td", {}, holder.tiers.map((tier) => h("span", { class: "tier", "data-tier": tier }, TIER_NAMES[tier] ?? tier)))));
    const more = one.held_by - one.holders.length;
    detail.replaceChildren(
      h("h3", {}, "Stretch ", h("code", {}, short(one.id))),
      h("dl", { class: "facts" }, facts.map(([label, text]) => h("div", {}, h("dt", {}, label), h("dd", {}, text)))),
      rows.length ? h("table", { class: "holders" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Worker"), h("th", { scope: "col" }, "Tiers"))), h("tbody", {}, rows)) : "",
      more > 0 ? h("p", { class: "note" }, `and ${plural(more, "rank")} more`) : "",
    );
  }

  // One stretch is in the order of Tab; arrows go from there.
  function roam() {
    for (const node of icicle.children) {
      setAttribute(node, "tabindex", node.place?.one.id === chosen ? 0 : -1);
      setAttribute(node, "aria-selected", node.place?.one.id === chosen);
    }
    if (!icicle.querySelector('[tabindex="0"]')) icicle.firstElementChild?.setAttribute("tabindex", "0");
  }

  icicle.addEventListener("keydown", (event) => {
    const from = event.target.place;
    if (!from) return;
    const places = [...icicle.children].map((node) => node.place);
    const level = (offset) => places.filter((place) => place.level === from.level + offset).sort((one, other) => one.x - other.x);
    const middle = from.x + from.width / 2;
    const closest = (row) => row.reduce((best, place) => {
      const distance = Math.abs(place.x + place.width / 2 - middle);
      return best && Math.abs(best.x + best.width / 2 - middle) <= distance ? best : place;
    }, null);
    const row = level(0);
    const to = {
      ArrowRight: () => row[row.indexOf(from) + 1],
      ArrowLeft: () => row[row.indexOf(from) - 1],
      ArrowDown: () => closest(level(1).filter((place) => place.x >= from.x - 1e-9 && place.x < from.x + from.width)) ?? closest(level(1)),
      ArrowUp: () => closest(level(-1)),
      Home: () => row[0],
      End: () => row.at(-1),
    }[event.key];
    if (event.key === "Backspace" || event.key === "Escape") {
      event.preventDefault();
      up();
    } else if (to) {
      event.preventDefault();
      const target = to();
      if (target) icicle.querySelector(`[data-id="${target.one.id}"]`).focus();
    }
  });

  look();
  return {
    update({ stats }) {
      everyone = stats.workers.reduce((total, worker) => total + worker.ranks.length, 0);
    },
  };
}
