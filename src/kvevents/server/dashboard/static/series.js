// Figures over time for the charts: a second is too short to look at, so each point stands for the seconds before it.

export const SPANS = { 600: "10 min", 3600: "1 h", 21600: "6 h" };

export class Series {
  // From when the router started, if that was within the time shown, but a minute at least.
  constructor(history, span, { now, started }) {
    const ring = span <= 600 ? history.fine : history.coarse;
    this.step = ring.step_s;
    this.place = Object.fromEntries(history.columns.map((name, place) => [name, place]));
    this.range = [Math.max(now - span, Math.min(started, now - 60)), now];
    this.rows = ring.rows.filter((row) => row[0] >= now - span - 60);
    this.times = this.rows.map((row) => row[0]);
  }

  column(name) {
    return this.rows.map((row) => row[this.place[name]]);
  }

  // Sum over the last `seconds` at every point.
  running(name, seconds) {
    const width = Math.max(1, Math.round(seconds / this.step));
    let sum = 0;
    const column = this.column(name);
    return column.map((value, at) => {
      sum += value - (at >= width ? column[at - width] : 0);
      return sum;
    });
  }

  // A share of sums over the last `seconds`; nothing where there is nothing to divide by.
  share(part, whole, seconds) {
    const parts = this.running(part, seconds);
    return this.running(whole, seconds).map((total, at) => (total > 0 ? parts[at] / total : null));
  }

  perSecond(name, seconds) {
    const width = Math.max(1, Math.round(seconds / this.step)) * this.step;
    return this.running(name, seconds).map((sum) => sum / width);
  }
}
