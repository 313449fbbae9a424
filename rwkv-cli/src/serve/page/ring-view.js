// Part 2: what is in memory: pinned groups, the slots of the ring, and what is read ahead.

import { byId, h, setText } from "./dom.js";
import { bytes } from "./units.js";

const SAYS = { empty: "empty", ready: "ready", leased: "in use" };

export class RingView {
  constructor(pack) {
    this.pack = pack;
    this.slots = [];
    this.pinnedCount = h("span", {});
    this.pinnedList = h("div", { class: "pinned", role: "img" });
    this.ring = h("ol", { class: "slots" });
    this.queue = h("ol", { class: "queue" });
    this.bar = h("div", { class: "memory-bar", role: "img" });
    this.used = h("p", { class: "fine number" });
    byId("ring").replaceChildren(
      h("h3", {}, "Pinned ", this.pinnedCount), this.pinnedList,
      h("h3", {}, "Ring"), this.ring,
      h("h3", {}, "Read-ahead queue"), this.queue,
      h("h3", {}, "Weight memory in use"), this.bar, this.used,
    );
  }

  // The engine was opened: this is where it keeps what.
  configure(memory, settings) {
    const { pack } = this;
    this.memory = memory;
    this.pinned = new Set(memory.pinned);
    this.streaming = pack.swept.filter((group) => !this.pinned.has(group));
    const kept = pack.swept.length - this.streaming.length;
    setText(this.pinnedCount, `${kept} of ${pack.swept.length} groups, ${bytes(memory.pinned_bytes)} with the vectors`);
    this.pinnedList.setAttribute("aria-label", `${kept} groups stay in memory`);
    this.pinnedList.replaceChildren(...pack.swept.map((group) => h("span", { class: this.pinned.has(group) ? "in" : "", title: pack.groups[group].name })));
    this.slots = Array.from({ length: memory.slots }, (_, index) => this.slot(index));
    this.ring.replaceChildren(...this.slots.map(({ element }) => element));
    if (memory.slots === 0) this.ring.append(h("li", { class: "none fine" }, "No slots: all weights stay in memory."));
    const ring = memory.slots * memory.slot_bytes;
    setText(byId("ring-caption"), memory.slots === 0
      ? "Everything fits. The pack was read once and no token waits for it."
      : `${bytes(memory.pinned_bytes)} stay, ${memory.slots === 1 ? "one slot" : `${memory.slots} slots`} of ${bytes(memory.slot_bytes)} ${memory.slots === 1 ? "takes all else in turn" : "take turns"}. A token reads ${bytes(memory.read_bytes_per_token)}, in mode ${memory.source}.`);
    const all = this.pack.groups.reduce((sum, group) => sum + group.bytes, 0);
    const part = (kind, size, label) => {
      const element = h("span", { class: kind, title: `${label}, ${bytes(size)}` });
      element.style.flexGrow = size / all;
      return element;
    };
    this.bar.replaceChildren(part("pinned", memory.pinned_bytes, "pinned"), part("ring", ring, "ring"), part("away", Math.max(0, all - memory.pinned_bytes - ring), "on the SSD"));
    const budget = settings?.budget_bytes ? `, budget ${bytes(settings.budget_bytes)}` : "";
    setText(this.used, `${bytes(memory.pinned_bytes + ring)} of ${bytes(all)}; with states and buffers ${bytes(memory.memory_bytes)}${budget}`);
    this.bar.setAttribute("aria-label", this.used.textContent);
  }

  slot(index) {
    const name = h("span", { class: "slot-name" });
    const says = h("span", { class: "slot-says" });
    const fill = h("span", { class: "fill" });
    const element = h("li", { class: "slot empty" }, h("span", { class: "slot-index" }, String(index)), h("div", { class: "slot-body" }, h("div", { class: "slot-line" }, name, says), h("div", { class: "track" }, fill)));
    return { element, name, says, fill };
  }

  show(state, depth) {
    if (!this.memory) return;
    for (const [index, view] of this.slots.entries()) {
      const { group, state: what, bytes: there } = state.slots[index] ?? { group: null, state: "empty", bytes: 0 };
      const is = group === null ? "empty" : what;
      const share = group === null ? 0 : Math.min(1, there / this.pack.groups[group].bytes);
      const name = `slot ${is}`;
      if (view.element.className !== name) view.element.className = name;
      setText(view.name, group === null ? "" : this.pack.groups[group].name);
      setText(view.says, is === "loading" ? `read to ${Math.round(100 * share)} %` : SAYS[is]);
      view.fill.style.transform = `scaleX(${share})`;
    }
    this.showQueue(state, depth);
  }

  showQueue(state, depth) {
    const { streaming, pack } = this;
    if (!streaming.length || depth === 0) {
      const line = !streaming.length ? "Nothing is read any more." : "Off: a group is read when it is needed.";
      if (this.queueText !== line) this.queue.replaceChildren(h("li", { class: "none fine" }, line));
      this.queueText = line;
      return;
    }
    const at = streaming.findIndex((group) => group > state.group);
    const ahead = Array.from({ length: Math.min(depth, streaming.length) }, (_, index) => streaming[(Math.max(0, at) + index) % streaming.length]);
    const items = ahead.map((group) => [pack.groups[group].name, state.where(group, this.pinned)]);
    const text = items.join();
    if (text === this.queueText) return;
    this.queueText = text;
    const says = { loading: "being read", ready: "there", leased: "in use", away: "next" };
    this.queue.replaceChildren(...items.map(([name, where]) => h("li", { class: where }, h("span", {}, name), h("span", { class: "fine" }, says[where] ?? where))));
  }
}
