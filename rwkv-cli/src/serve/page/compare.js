// Small multiples: what the settings cost on this machine, measured when asked.

import { byId, h, setText } from "./dom.js";
import { bytes, percent, short } from "./units.js";

const CHARTS = [
  { id: "budgets", title: "Resident against streamed", says: "One session, decode speed by memory budget.", label: (bar) => (bar.budget_bytes === null ? "all in memory" : bytes(bar.budget_bytes)) },
  { id: "read-ahead", title: "Ways to read ahead", says: "One session, streamed within one budget.", label: (bar) => bar.read_ahead },
  { id: "sessions", title: "Sessions in one sweep", says: "Combined speed, against the same sessions one after another.", label: (bar) => `${bar.sessions} ${bar.sessions === 1 ? "session" : "sessions"}` },
];

export class Compare {
  // `measure(id)` asks for a measurement.
  constructor(measure) {
    this.charts = new Map();
    byId("multiples").replaceChildren(...CHARTS.map((chart) => {
      const bars = h("ol", { class: "bars" });
      const says = h("p", { class: "fine", "aria-live": "polite" }, chart.says);
      const button = h("button", { type: "button", onclick: () => measure(chart.id) }, "Measure");
      this.charts.set(chart.id, { ...chart, bars, note: says, button });
      return h("figure", { class: "multiple" }, h("figcaption", {}, h("h3", {}, chart.title), button), says, bars);
    }));
  }

  show(id, { bars, of, done, message }) {
    const chart = this.charts.get(id);
    if (!chart) return;
    const most = Math.max(1e-9, ...bars.flatMap((bar) => [bar.tokens_per_s, bar.one_by_one ?? 0]));
    chart.bars.replaceChildren(...bars.map((bar) => this.bar(chart, bar, most, bars[0])));
    const next = done ? "" : ` Measuring ${Math.min(bars.length + 1, of)} of ${of}.`;
    setText(chart.note, `${chart.says}${next}${message ? ` ${message}` : ""}`);
    setText(chart.button, done ? "Measure again" : "Measuring");
    this.busy(!done);
  }

  busy(is) {
    for (const { button } of this.charts.values()) button.disabled = is;
  }

  bar(chart, bar, most, first) {
    const track = (value, kind) => {
      const fill = h("span", { class: `fill ${kind}` });
      fill.style.transform = `scaleX(${value / most})`;
      return h("span", { class: "track" }, fill);
    };
    const details = [];
    if (bar.one_by_one !== null && bar.sessions > 1) details.push(`${short(bar.one_by_one)} one after another, ${(bar.tokens_per_s / bar.one_by_one).toFixed(2)} times as fast together`);
    else if (bar !== first && chart.id === "budgets") details.push(`${percent(bar.tokens_per_s / first.tokens_per_s)} of resident`);
    if (bar.read_bytes_per_token > 0) details.push(`reads ${bytes(bar.read_bytes_per_token)} a token, ${percent(bar.wait_share)} waiting`);
    return h("li", {},
      h("div", { class: "bar-line" }, h("span", {}, chart.label(bar)), h("span", { class: "number" }, `${short(bar.tokens_per_s)} tokens/s`)),
      track(bar.tokens_per_s, "together"),
      bar.one_by_one !== null && bar.sessions > 1 ? track(bar.one_by_one, "alone") : null,
      h("p", { class: "fine" }, details.join("; ")));
  }
}
