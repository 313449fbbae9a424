// Part 4: the sessions' texts and states, and the logits at the end of a pass.

import { byId, h, setText } from "./dom.js";
import { Canvas } from "./canvas.js";
import { percent, visible } from "./units.js";

export class SessionsView {
  constructor(pack) {
    this.pack = pack;
    this.views = [];
    this.norms = [];
    this.likely = h("ol", { class: "likely" });
    this.list = h("div", { class: "texts" });
    byId("texts").replaceChildren(this.list, h("h3", {}, "Logits of session 1, as probabilities"), this.likely);
    setText(byId("state-caption"), `Each session remembers ${pack.layers} × ${pack.heads} matrices of ${pack.head_size} × ${pack.head_size}. A square is the norm of one.`);
  }

  show(sessions) {
    while (this.views.length > sessions.length) this.views.pop().element.remove();
    while (this.views.length < sessions.length) this.views.push(this.view(this.views.length));
    this.list.classList.toggle("many", sessions.length > 1);
    sessions.forEach((session, index) => {
      const { opening, text, said, canvas } = this.views[index];
      // Only the end fits: the latest words matter.
      setText(opening, session.tokens < 60 ? session.opening : "\u2026");
      setText(text, session.text);
      setText(said, `session ${index + 1}, token ${session.tokens}`);
      canvas.element.setAttribute("aria-label", `State norms of session ${index + 1}`);
    });
    this.showLikely(sessions[0]);
  }

  view(index) {
    const opening = h("span", { class: "opening" });
    const text = h("span", {});
    const said = h("p", { class: "fine number" });
    const element = h("canvas", { class: "heat", role: "img" });
    element.style.setProperty("--layers", this.pack.layers);
    const canvas = new Canvas(element, (...all) => this.heat(index, ...all));
    const view = { opening, text, said, canvas, element: h("figure", { class: "session" }, said, element, h("p", { class: "said" }, opening, text)) };
    this.list.append(view.element);
    return view;
  }

  states({ norms }) {
    this.norms = norms;
    for (const { canvas } of this.views) canvas.invalidate();
  }

  heat(index, context, width, height, colours) {
    const norms = this.norms[index];
    if (!norms) return;
    const { layers, heads } = this.pack;
    const logs = norms.map((norm) => Math.log(norm + 1e-6));
    const least = Math.min(...logs);
    const most = Math.max(...logs, least + 1e-3);
    context.fillStyle = colours.ink;
    const [w, hgt] = [width / heads, height / layers];
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        const share = (logs[layer * heads + head] - least) / (most - least);
        context.globalAlpha = 0.05 + 0.9 * share * share;
        context.fillRect(head * w, layer * hgt, Math.max(0.5, w - 0.75), Math.max(0.5, hgt - 0.75));
      }
    }
    context.globalAlpha = 1;
  }

  showLikely({ likely, chosen }) {
    while (this.likely.children.length < likely.length) this.likely.append(h("li", {}, h("span", { class: "token" }), h("span", { class: "share" }, h("span", { class: "fill" })), h("span", { class: "number" })));
    while (this.likely.children.length > likely.length) this.likely.lastChild.remove();
    likely.forEach(({ id, text, probability }, index) => {
      const row = this.likely.children[index];
      row.classList.toggle("chosen", id === chosen);
      setText(row.children[0], visible(text));
      row.children[1].firstChild.style.transform = `scaleX(${probability})`;
      setText(row.children[2], percent(probability));
    });
  }
}
