// Beside the picture: the token's time, the counters, and the events of the last pass along its time.

import { byId, h, setText } from "./dom.js";
import { Canvas } from "./canvas.js";
import { FOUND, KIND, isStage } from "./pass.js";
import { bytes, count, percent, short, time } from "./units.js";

const HISTORY = 80;
const RECENT = 7;
const WINDOW_MS = 2000;
// Numbers and lines that change more often than this cannot be read.
const READABLE_MS = 200;

const COUNTERS = [
  ["speed", "tokens/s"], ["tokens", "tokens"], ["sweeps", "sweeps"], ["reads", "pack reads"], ["read_bytes", "bytes read"], ["rate", "reading, /s"],
  ["pinned", "hits, pinned"], ["ready", "read ahead, ready"], ["late", "read ahead, late"], ["absent", "misses, absent"], ["depth", "read-ahead depth"], ["row_reads", "embedding rows read"],
];

export class Meters {
  constructor(pack) {
    this.pack = pack;
    this.passes = [];
    this.last = null;
    this.writes = new Map();
    this.values = new Map();
    byId("counters").replaceChildren(...COUNTERS.map(([name, label]) => {
      const value = h("dd", { class: "number" }, "–");
      this.values.set(name, value);
      return h("div", {}, h("dt", {}, label), value);
    }));
    this.wait = h("span", { class: "wait" });
    this.compute = h("span", { class: "compute" });
    this.splitText = h("p", { class: "number" }, "–");
    byId("split").replaceChildren(h("div", { class: "split-bar", role: "img", "aria-label": "Waiting against computing" }, this.wait, this.compute), this.splitText);
    this.history = new Canvas(byId("history"), (...all) => this.drawHistory(...all));
    this.strip = new Canvas(byId("strip"), (...all) => this.drawStrip(...all));
    this.reset();
  }

  reset() {
    this.window = [];
    this.passes = [];
    this.history.invalidate();
  }

  // The counters of a tick, and how fast they grow.
  count(at, counters) {
    this.window.push([at, counters]);
    while (this.window.length > 2 && at - this.window[0][0] > WINDOW_MS) this.window.shift();
    const [since, before] = this.window[0];
    const seconds = (at - since) / 1000;
    const grows = (name) => (seconds > 0 ? (counters[name] - before[name]) / seconds : 0);
    this.soon("counters", () => {
      const say = (name, text) => setText(this.values.get(name), text);
      for (const name of ["tokens", "sweeps", "reads", "pinned", "ready", "late", "absent"]) say(name, count(counters[name]));
      say("read_bytes", bytes(counters.read_bytes));
      say("speed", short(grows("tokens")));
      say("rate", bytes(grows("read_bytes")));
    });
  }

  // Writes texts, the latest ones, when there was time to read the last ones.
  soon(what, write) {
    if (!this.writes.has(what)) {
      setTimeout(() => {
        this.writes.get(what)();
        this.writes.delete(what);
      }, READABLE_MS);
    }
    this.writes.set(what, write);
  }

  depth(depth, rows) {
    setText(this.values.get("depth"), String(depth));
    setText(this.values.get("row_reads"), count(rows));
  }

  // A pass has come to its end.
  passed(notes, end, waited) {
    this.last = { notes, end, cursor: null };
    this.passes.push([waited, end - waited]);
    if (this.passes.length > HISTORY) this.passes.shift();
    this.split(waited, end);
    this.history.invalidate();
    this.strip.invalidate();
  }

  split(waited, end) {
    this.soon("split", () => this.showSplit(waited, end));
  }

  showSplit(waited, end) {
    const share = end > 0 ? waited / end : 0;
    this.wait.style.flexGrow = share;
    this.compute.style.flexGrow = 1 - share;
    setText(this.splitText, `${time(waited)} waiting, ${time(Math.max(0, end - waited))} computing (${percent(share)} waiting)`);
  }

  // While a pass is played back, how far it has come.
  playing(notes, end, cursor) {
    this.last = { notes, end, cursor };
    this.strip.invalidate();
  }

  recent(notes) {
    const latest = notes.slice(-RECENT);
    this.soon("recent", () => this.showRecent(latest));
  }

  showRecent(notes) {
    const list = byId("recent");
    const lines = notes.map((note) => this.describe(note));
    while (list.children.length < lines.length) list.append(h("li", {}));
    while (list.children.length > lines.length) list.lastChild.remove();
    lines.forEach((line, index) => setText(list.children[index], line));
  }

  describe(note) {
    const [kind, begin, duration, block, group, place, size] = note;
    const at = `${time(begin)}`.padStart(8, "\u2007");
    const name = group >= 0 ? this.pack.groups[group].name : "";
    const where = block >= 0 ? `block ${block}` : block < -1 ? `attention ${-2 - block}` : "";
    const slot = place >= 0 ? `slot ${place}` : "its place";
    const took = time(duration);
    switch (kind) {
      case KIND.EMBED: return `${at}  embedding rows, ${took}`;
      case KIND.NORM: return `${at}  ${where || "head"}: norm, ${took}`;
      case KIND.FIND: return `${at}  ${name}: ${FOUND[place] ?? "found"}`;
      case KIND.WAIT: return `${at}  ${name}: waited ${took}`;
      case KIND.BIND: return `${at}  ${name}: bound`;
      case KIND.TIME_MIX: return `${at}  ${where}: time mix, ${took}`;
      case KIND.ATTENTION: return `${at}  ${where}: attention, ${took}`;
      case KIND.CHANNEL_MIX: return `${at}  ${where}: channel mix, ${took}`;
      case KIND.HEAD: return `${at}  ${name}: logits, ${took}`;
      case KIND.SAVE_STATE: return `${at}  ${where}: state saved`;
      case KIND.RELEASE: return `${at}  ${name}: released`;
      case KIND.READ_BEGIN: return `${at}  ${name}: read ${bytes(size)} into ${slot}`;
      case KIND.READ_END: return `${at}  ${name}: ${bytes(size)} are there`;
      case KIND.READ_FAILED: return `${at}  ${name}: a read failed`;
      case KIND.WAIT_BEGIN: return `${at}  ${name}: begins to wait`;
      case KIND.LEASE: return `${at}  ${name}: leased in ${slot}`;
      case KIND.FREE: return `${at}  ${slot} is free`;
      default: return `${at}  ${name || where}`;
    }
  }

  drawHistory(context, width, height, colours) {
    if (!this.passes.length) return;
    const most = Math.max(...this.passes.map(([wait, compute]) => wait + compute));
    const step = width / HISTORY;
    this.passes.forEach(([wait, compute], index) => {
      const x = width - (this.passes.length - index) * step;
      const [w, c] = [(wait / most) * (height - 14), (compute / most) * (height - 14)];
      context.fillStyle = colours.ink_3;
      context.fillRect(x, height - c, step - 1, c);
      context.fillStyle = colours.accent;
      context.fillRect(x, height - c - w, step - 1, w);
    });
    context.fillStyle = colours.ink_3;
    context.font = `11px ${colours.mono}`;
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(time(most), width, 0);
  }

  // The engine's stages in the first lane, and the reads into each slot in one of its own below.
  drawStrip(context, width, height, colours) {
    if (!this.last) return;
    const { notes, end, cursor } = this.last;
    const slots = notes.reduce((most, [kind, , , , , place]) => (kind >= 20 ? Math.max(most, place + 1) : most), 0);
    const label = 46;
    const lanes = 1 + slots;
    const axis = 15;
    const laneHeight = Math.min(26, (height - axis) / lanes);
    const x = (ns) => label + (ns / end) * (width - label);
    context.font = `11px ${colours.mono}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (let lane = 0; lane < lanes; lane++) {
      context.fillStyle = colours.sunken;
      context.fillRect(label, lane * laneHeight, width - label, laneHeight - 2);
      context.fillStyle = colours.ink_3;
      context.fillText(lane === 0 ? "engine" : `slot ${lane - 1}`, 0, lane * laneHeight + laneHeight / 2 - 1);
    }
    const begun = new Map();
    for (const note of notes) {
      const [kind, begin, duration, , , place] = note;
      // Reads have an offset where stages have a duration.
      const offset = duration;
      if (cursor !== null && begin > cursor) continue;
      if (isStage(note)) {
        if (kind === KIND.FIND || kind === KIND.RELEASE || kind === KIND.BIND) continue;
        const until = cursor === null ? begin + duration : Math.min(cursor, begin + duration);
        context.fillStyle = kind === KIND.WAIT ? colours.accent : kind === KIND.TIME_MIX || kind === KIND.ATTENTION ? colours.ink_2 : kind === KIND.CHANNEL_MIX ? colours.ink_3 : colours.line_strong;
        context.fillRect(x(begin), 0, Math.max(0.5, x(until) - x(begin)), laneHeight - 2);
      } else if (place >= 0 && kind === KIND.READ_BEGIN) {
        begun.set(offset, begin);
      } else if (place >= 0 && kind === KIND.READ_END) {
        const since = begun.get(offset) ?? 0;
        const top = (1 + place) * laneHeight;
        context.fillStyle = colours.accent;
        context.globalAlpha = 0.5;
        context.fillRect(x(since), top, Math.max(0.75, x(begin) - x(since) - 0.5), laneHeight - 2);
        context.globalAlpha = 1;
      }
    }
    context.fillStyle = colours.ink_3;
    context.textBaseline = "alphabetic";
    const base = lanes * laneHeight + 11;
    context.fillText("0", label, base);
    context.textAlign = "right";
    context.fillText(time(end), width, base);
    if (cursor !== null) {
      context.fillStyle = colours.accent;
      context.fillRect(x(cursor), 0, 1.5, lanes * laneHeight);
    }
  }
}
