// Puts the page together: one feed, panels that show it, and word of whether the router can be heard.
import { setAttribute, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { brief, since, time } from "./format.js";
import { startTheme } from "./theme.js";
import * as decisions from "./panels/decisions.js";
import * as events from "./panels/events.js";
import * as figures from "./panels/figures.js";
import * as fleet from "./panels/fleet.js";
import * as hits from "./panels/hits.js";
import * as prefixes from "./panels/prefixes.js";
import * as requests from "./panels/requests.js";
import * as timeline from "./panels/timeline.js";

const part = (id) => document.getElementById(id);
const feed = new Feed();
let span = 600;

const panels = {
  figures: figures.create(part("figures")),
  fleet: fleet.create(part("fleet")),
  hits: hits.create(part("hits"), (seconds) => {
    span = seconds;
    show(["hits", "requests", "events", "timeline"]);
  }),
  requests: requests.create(part("requests")),
  events: events.create(part("events")),
  decisions: decisions.create(part("decisions")),
  timeline: timeline.create(part("timeline")),
  prefixes: prefixes.create(part("prefixes")),
};
const CHARTS = ["hits", "requests", "events"];
const SHOWN_BY = {
  snapshot: Object.keys(panels),
  change: ["figures", "fleet", "decisions", "timeline", "prefixes"],
  history: CHARTS,
  decisions: ["decisions"],
  log: ["timeline"],
};

function show(names) {
  if (!feed.stats) return;
  const { stats, history, log } = feed;
  for (const name of names) panels[name].update({ stats, history, log, span, decisions: feed.decisions });
}

function showFooter() {
  const { stats } = feed;
  if (stats) {
    setText(part("footer"), `Policy ${stats.policy} · blocks of ${brief(stats.block_size)} tokens · running for ${since(stats.now - stats.started)} · figures: /stats, as they change: /stream`);
    part("logout").hidden = !stats.login_required;
  }
}

feed.addEventListener("news", ({ detail }) => {
  show(SHOWN_BY[detail] ?? []);
  showFooter();
});

feed.addEventListener("connection", () => {
  const { connection } = feed;
  setAttribute(document.body, "data-connection", connection);
  setText(part("connection"), { live: "live", reconnecting: "reconnecting", closed: "disconnected", loading: "loading" }[connection]);
  const banner = part("banner");
  banner.hidden = connection !== "closed";
  if (connection === "closed") {
    const known = feed.stats ? `The figures are from ${time(feed.lostAt ?? feed.stats.now)}.` : "There are no figures yet.";
    setText(banner, `The router cannot be reached. ${known} Trying again.`);
  }
});

startTheme(part("theme"), () => show(CHARTS));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) show(Object.keys(panels));
});
