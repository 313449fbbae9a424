// Part 3: how long each stage took in each layer, and what the cache found. Bars are logarithmic, so that all of them can be seen.

import { byId } from "./dom.js";
import { Canvas } from "./canvas.js";
import { CHECK, COLUMNS, WAIT } from "./pass.js";
import { prefersLessMotion } from "./dom.js";

const FADE_MS = 900;
const SHORTEST_NS = 100;
const LONGEST_NS = 1e9;
const HEAD = 30;
const NAMES = 34;
const MOST_MARKS = 4;

export class GridView {
  constructor(pack) {
    this.pack = pack;
    this.state = null;
    const element = byId("grid");
    element.style.setProperty("--rows", pack.rows.length);
    this.canvas = new Canvas(element, (...all) => this.draw(...all));
  }

  show(state) {
    this.state = state;
    this.canvas.invalidate();
  }

  draw(context, width, height, colours, now) {
    const rows = this.pack.rows.length;
    const rowHeight = (height - HEAD) / rows;
    // Find, bind, save and release are short: the others get the room.
    const weights = COLUMNS.map((_, column) => ([1, 1.0, 1.35, 1, 1.35, 1.35, 1, 1][column]));
    const unit = (width - NAMES) / weights.reduce((a, b) => a + b);
    const lefts = weights.map((_, column) => NAMES + unit * weights.slice(0, column).reduce((a, b) => a + b, 0));
    this.titles(context, lefts, unit, weights, colours);
    let fades = false;
    for (let row = 0; row < rows; row++) {
      const top = HEAD + row * rowHeight;
      context.font = `11px ${colours.mono}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      const isNow = this.state?.current?.row === row;
      context.fillStyle = isNow ? colours.accent : colours.ink_3;
      context.fillText(this.pack.rows[row].name, NAMES - 8, top + rowHeight / 2);
      for (let column = 0; column < COLUMNS.length; column++) {
        const box = [lefts[column], top + 1, unit * weights[column] - 3, rowHeight - 2];
        context.fillStyle = colours.sunken;
        context.fillRect(...box);
        const cell = this.state?.cells[row][column];
        if (!cell || cell.pass < 0) continue;
        const age = prefersLessMotion() ? 1 : Math.min(1, (now - cell.at) / FADE_MS);
        fades ||= age < 1;
        const isCurrent = cell.pass === this.state.pass;
        context.globalAlpha = isCurrent ? 1 - 0.35 * age : 0.35;
        if (column === CHECK) this.found(context, box, cell.found, colours);
        else this.bar(context, box, cell.ns, column === WAIT ? colours.accent : colours.ink_2, colours);
        context.globalAlpha = 1;
        if (isNow && this.state.current.column === column) {
          context.strokeStyle = colours.accent;
          context.lineWidth = 1.5;
          context.strokeRect(box[0] + 0.75, box[1] + 0.75, box[2] - 1.5, box[3] - 1.5);
        }
      }
    }
    return fades;
  }

  titles(context, lefts, unit, weights, colours) {
    context.font = `11px ${colours.sans}`;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillStyle = colours.ink_3;
    COLUMNS.forEach((title, column) => {
      const words = title === "time mix" && this.pack.family === "RWKV-X" ? ["mix or", "attention"] : title.split(" ");
      const narrow = context.measureText(words.join(" ")).width > unit * weights[column] - 4;
      const lines = narrow && words.length > 1 ? [words[0], words.slice(1).join(" ")] : [words.join(" ")];
      lines.forEach((line, index) => context.fillText(line, lefts[column], HEAD - 8 - 12 * (lines.length - 1 - index), unit * weights[column] - 2));
    });
  }

  bar(context, [left, top, width, height], ns, colour, colours) {
    const share = Math.max(0, Math.log(Math.max(ns, SHORTEST_NS) / SHORTEST_NS) / Math.log(LONGEST_NS / SHORTEST_NS));
    const alpha = context.globalAlpha;
    context.fillStyle = colour;
    context.globalAlpha = alpha * 0.55;
    context.fillRect(left, top, Math.max(1, share * width), height);
    context.globalAlpha = alpha;
    if (height < 11 || width < 40 || ns === 0) return;
    context.font = `${Math.min(10, height - 3)}px ${colours.mono}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colours.ink;
    context.fillText(brief(ns), left + width - 4, top + height / 2 + 0.5);
  }

  // A mark for each group of the row: full for pinned, half for ready, a rim for late, a cross for absent. Many are a bar of shares.
  found(context, [left, top, width, height], found, colours) {
    if (found.length > MOST_MARKS) {
      const fills = [colours.ink_2, colours.line_strong, colours.accent_soft, colours.accent];
      let x = left + 3;
      fills.forEach((fill, what) => {
        const share = (found.filter((other) => other === what).length / found.length) * (width - 6);
        context.fillStyle = fill;
        context.fillRect(x, top + height / 2 - 3, share, 6);
        x += share;
      });
      return;
    }
    const size = Math.max(2.5, Math.min(4, height / 3, width / (found.length * 3 + 1)));
    const step = Math.min(size * 2 + 5, width / Math.max(1, found.length));
    const y = top + height / 2;
    found.forEach((what, index) => {
      const x = left + 8 + index * step;
      context.beginPath();
      context.strokeStyle = context.fillStyle = what > 1 ? colours.accent : colours.ink_2;
      context.lineWidth = 1.5;
      if (what === 3) {
        context.moveTo(x - size, y - size);
        context.lineTo(x + size, y + size);
        context.moveTo(x + size, y - size);
        context.lineTo(x - size, y + size);
        context.stroke();
        return;
      }
      context.arc(x, y, size, 0, 2 * Math.PI);
      if (what === 0) context.fill();
      else context.stroke();
      if (what === 1) {
        context.beginPath();
        context.arc(x, y, size, Math.PI / 2, 1.5 * Math.PI);
        context.fill();
      }
    });
  }
}

// A time in two digits, for narrow cells.
function brief(ns) {
  const [value, unit] = ns >= 1e9 ? [ns / 1e9, "s"] : ns >= 1e6 ? [ns / 1e6, "ms"] : [ns / 1e3, "µs"];
  return `${value >= 9.95 ? Math.round(value) : value.toFixed(1)} ${unit}`;
}
