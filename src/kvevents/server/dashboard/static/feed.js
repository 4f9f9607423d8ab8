// The one source of what the page shows: `/stream`, which begins with everything and goes on with what changes.
// A broken connection is made again with the last id that was seen, so that nothing is missed or told twice.

const RETRY_S = [0.5, 1, 2, 3];
const SILENCE_S = 40; // the router says that it is alive more often than that
const KEPT_DECISIONS = 100;
const KEPT_ENTRIES = 500;

export class Feed extends EventTarget {
  constructor() {
    super();
    this.stats = null;
    this.history = null;
    this.decisions = new Map();
    this.log = [];
    this.connection = "loading"; // then live, reconnecting, closed
    this.lostAt = null;
    this.attempts = 0;
    this.lastId = "";
    this.connect();
  }

  async connect() {
    const control = new AbortController();
    let alive = performance.now();
    const watch = setInterval(() => {
      if (performance.now() - alive > 1000 * SILENCE_S) control.abort();
    }, 5000);
    try {
      const headers = this.lastId ? { "last-event-id": this.lastId } : {};
      const response = await fetch("/stream", { headers, signal: control.signal, cache: "no-store" });
      if (response.status === 401) {
        location.reload(); // the session has ended: the router answers with its login page
        return;
      }
      if (!response.ok) throw new Error(`the router answered ${response.status}`);
      this.attempts = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        alive = performance.now();
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) this.read(part);
      }
      setTimeout(() => this.connect(), 100); // it ends from time to time, to ask again who may read it
    } catch (error) {
      this.lose(error);
    } finally {
      clearInterval(watch);
    }
  }

  lose(error) {
    if (this.connection === "live" || this.lostAt === null) this.lostAt = Date.now() / 1000;
    this.reason = error.message;
    const wait = RETRY_S[Math.min(this.attempts, RETRY_S.length - 1)];
    this.attempts += 1;
    this.setConnection(this.attempts > 1 ? "closed" : "reconnecting");
    setTimeout(() => this.connect(), 1000 * wait);
  }

  setConnection(connection) {
    if (this.connection === connection && connection === "live") return;
    this.connection = connection;
    this.dispatchEvent(new Event("connection"));
  }

  read(part) {
    const fields = {};
    for (const line of part.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (!fields.data) return;
    this.lastId = fields.id ?? this.lastId;
    this.apply(fields.event, JSON.parse(fields.data));
  }

  apply(event, data) {
    switch (event) {
      case "snapshot":
        this.stats = data.stats;
        this.history = data.history;
        this.decisions = new Map(data.decisions.map((one) => [one.id, one]));
        this.log = data.log;
        break;
      case "change":
        for (const [path, value] of data.changes) this.set(path, value);
        break;
      case "history":
        this.addRows(data.rows);
        break;
      case "decisions":
        for (const one of data.shown) this.decisions.set(one.id, one);
        while (this.decisions.size > KEPT_DECISIONS) this.decisions.delete(this.decisions.keys().next().value);
        break;
      case "log": {
        const last = this.log.at(-1)?.id ?? 0;
        this.log.push(...data.entries.filter((entry) => entry.id > last));
        this.log.splice(0, this.log.length - KEPT_ENTRIES);
        break;
      }
      case "bye":
        return;
    }
    this.lostAt = null;
    this.setConnection("live");
    this.dispatchEvent(new CustomEvent("news", { detail: event }));
  }

  set(path, value) {
    if (path.length === 0) {
      this.stats = value;
      return;
    }
    const parent = path.slice(0, -1).reduce((part, key) => part[key], this.stats);
    parent[path.at(-1)] = value;
  }

  // Seconds that are over; a bucket of the long view is added up from them.
  addRows(rows) {
    const { fine, coarse, columns } = this.history;
    const last = fine.rows.at(-1)?.[0] ?? 0;
    const fresh = rows.filter((row) => row[0] > last);
    fine.rows.push(...fresh);
    fine.rows.splice(0, fine.rows.length - 600);
    for (const row of fresh) {
      const at = Math.floor(row[0] / coarse.step_s) * coarse.step_s;
      const open = coarse.rows.at(-1);
      if (open && open[0] >= at) {
        columns.forEach((name, place) => {
          if (place === 0) return;
          open[place] = name.startsWith("latency") ? Math.max(open[place] ?? 0, row[place] ?? 0) || null : open[place] + row[place];
        });
      } else {
        coarse.rows.push([at, ...row.slice(1)]);
      }
    }
    coarse.rows.splice(0, coarse.rows.length - 2160);
  }
}

export const lookUp = (document, path) => path.split(".").reduce((part, key) => part?.[key], document);
