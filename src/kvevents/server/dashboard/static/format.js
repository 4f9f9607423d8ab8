// Figures as people read them. Nothing to divide by is a dash, never a zero.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const DASH = "–";

const known = (value) => value !== null && value !== undefined;

export const count = (value) => (known(value) ? whole.format(value) : DASH);
export const brief = (value) => (!known(value) ? DASH : Math.abs(value) < 10000 ? whole.format(value) : short.format(value));
export const percent = (value) => (known(value) ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : DASH);
export const decimal = (value) => (known(value) ? (value >= 100 ? whole.format(value) : value.toFixed(value >= 10 ? 1 : 2)) : DASH);
export const rate = (value) => (known(value) ? (value === 0 ? "0" : decimal(value)) : DASH);
export const time = (seconds) => clock.format(new Date(1000 * seconds));

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 0.001) return `${(1e6 * seconds).toFixed(0)} µs`;
  if (seconds < 1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// A time that is still going on: whole seconds are enough.
export const since = (seconds) => duration(known(seconds) && seconds < 10 ? Math.round(seconds) : seconds).replace(".00", "").replace("0 µs", "0 s");

export function bytes(value) {
  if (!known(value)) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
