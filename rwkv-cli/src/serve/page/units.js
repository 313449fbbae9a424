// Numbers as people read them.

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toPrecision(2 + (n >= 10))} ${units[unit]}`;
}

export function time(ns) {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${short(ns / 1e3)} µs`;
  if (ns < 1e9) return `${short(ns / 1e6)} ms`;
  return `${short(ns / 1e9)} s`;
}

export const short = (n) => (n >= 100 ? String(Math.round(n)) : n >= 10 ? n.toFixed(1) : n.toFixed(2));

export const count = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");

export const percent = (share) => `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : Math.round(100 * share)} %`;

// A token as one can see it.
export const visible = (text) => (text === "" ? "(end)" : text.replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5").replaceAll(" ", "\u00b7"));
