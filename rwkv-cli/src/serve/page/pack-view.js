// Part 1: the pack on the SSD, a row for each layer, and the manifest entry of the group that was chosen.

import { byId, h, setText } from "./dom.js";
import { bytes, count } from "./units.js";

export class PackView {
  constructor(pack) {
    this.pack = pack;
    this.buttons = [];
    const place = byId("pack");
    const rows = pack.rows.map(() => []);
    pack.groups.forEach((_, index) => rows[pack.rowOfGroup[index]].push(index));
    const most = Math.max(...rows.slice(1, -1).map((row) => row.reduce((sum, group) => sum + pack.groups[group].bytes, 0)));
    place.replaceChildren(...rows.map((groups, row) => this.row(pack.rows[row], groups, most)));
    place.style.setProperty("--rows", rows.length);
    place.onkeydown = (event) => this.move(event);
    setText(byId("pack-caption"), `${pack.name}: ${bytes(pack.file_bytes)}, ${count(Math.round(pack.parameters / 1e6))} million weights, ${pack.swept.length} groups that every token needs. Choose one to see its entry.`);
    this.choose(pack.swept[0], false);
  }

  row({ name }, groups, most) {
    const sum = groups.reduce((sum, group) => sum + this.pack.groups[group].bytes, 0);
    const bar = h("div", { class: "segments" });
    // Rows of the global tensors may be far larger than a layer's: they are drawn to their own scale.
    const scale = Math.max(sum, most);
    for (const group of groups) {
      const { name: full, bytes: size } = this.pack.groups[group];
      const button = h("button", { type: "button", class: "segment away", tabindex: "-1", title: `${full}, ${bytes(size)}`, "aria-label": `${full}, ${bytes(size)}`, onclick: () => this.choose(group) });
      button.style.flexGrow = size / scale;
      this.buttons[group] = button;
      bar.append(button);
    }
    const rest = h("span", { class: "rest" });
    rest.style.flexGrow = Math.max(0, 1 - sum / scale);
    bar.append(rest);
    return h("div", { class: "pack-row" }, h("span", { class: "row-name", "aria-hidden": "true" }, name), bar);
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const order = this.pack.groups.map((_, index) => index).sort((a, b) => this.pack.rowOfGroup[a] - this.pack.rowOfGroup[b] || a - b);
    const at = order.indexOf(this.chosen);
    let next = null;
    if (step) next = order[at + step];
    else if (event.key === "Home") next = order[0];
    else if (event.key === "End") next = order.at(-1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const row = this.pack.rowOfGroup[this.chosen] + (event.key === "ArrowDown" ? 1 : -1);
      next = order.find((group) => this.pack.rowOfGroup[group] === row);
    } else return;
    event.preventDefault();
    if (next !== undefined && next !== null) {
      this.choose(next);
      this.buttons[next].focus();
    }
  }

  choose(group) {
    for (const [index, button] of this.buttons.entries()) {
      button.tabIndex = index === group ? 0 : -1;
      button.setAttribute("aria-pressed", index === group);
    }
    this.chosen = group;
    const { name, offset, bytes: size, checksum, swept, tensors } = this.pack.groups[group];
    const needed = swept ? "every token needs it whole" : name === "emb" ? "a token needs one row of it" : "always in memory";
    setText(byId("entry-caption"), `${name}: ${bytes(size)} from offset ${count(offset)}, XXH3 ${checksum}, ${tensors.length} ${tensors.length === 1 ? "tensor" : "tensors"}; ${needed}.`);
    const cell = (text, number) => h("td", number ? { class: "number" } : {}, text);
    const row = (tensor) => h("tr", {}, h("th", { scope: "row" }, tensor.name), cell(tensor.codec), cell(tensor.layout), cell(tensor.shape.join(" \u00d7 "), true), cell(count(tensor.offset), true), cell(count(tensor.bytes), true));
    const head = h("thead", {}, h("tr", {}, ...["tensor", "codec", "layout", "shape", "offset", "bytes"].map((title, index) => h("th", { scope: "col", class: index > 2 ? "number" : null }, title))));
    byId("entry").replaceChildren(head, h("tbody", {}, ...tensors.map(row)));
  }

  show(state, pinned) {
    const inSlots = new Map(state.slots.filter(({ group }) => group !== null).map((slot) => [slot.group, slot]));
    for (const [group, button] of this.buttons.entries()) {
      const slot = inSlots.get(group);
      const where = pinned.has(group) ? "pinned" : slot && slot.state !== "empty" ? slot.state : "away";
      const now = state.current?.group === group ? " now" : "";
      const name = `segment ${where}${now}`;
      if (button.className !== name) button.className = name;
    }
  }
}
