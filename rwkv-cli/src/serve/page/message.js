// A message as elements. A view knows how to show itself again when its message changes.

import { h, setText } from "./dom.js";
import { copyText, render } from "./markdown.js";
import { split, statistics } from "./answer.js";

export class MessageView {
  // `actions` are `retry`, `edit(text)` and `isBusy`.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = h("div", { class: "text" });
    this.foot = h("p", { class: "foot" });
    this.buttons = h("div", { class: "buttons" });
    const who = message.role === "user" ? "You" : "Model";
    this.element = h("li", { class: `message ${message.role}` }, h("h2", { class: "who" }, who), this.body, this.foot, this.buttons);
    const button = (label, onclick) => h("button", { type: "button", class: "quiet", onclick }, label);
    const copy = button("Copy", () => copyText(this.message.content, copy));
    if (message.role === "user") this.buttons.append(button("Edit", () => this.edit()), copy);
    else this.buttons.append(button("Retry", () => actions.retry(this)), copy);
    this.show();
  }

  show(streaming = false) {
    const { message } = this;
    this.element.classList.toggle("streaming", streaming);
    if (message.role === "user") {
      setText(this.body, message.content);
      return;
    }
    const { thoughts, text, open } = split(message.content);
    this.showThoughts(thoughts, open && streaming);
    this.answer ??= this.body.appendChild(h("div", { class: "prose" }));
    render(this.answer, text);
    if (message.error) {
      this.error ??= this.body.appendChild(h("p", { class: "error", role: "alert" }));
      setText(this.error, message.error);
    }
    const waits = streaming && message.content === "";
    setText(this.foot, waits ? "Reading" : message.finish && !message.content && !message.error ? emptyLine(message) : statistics(message));
  }

  showThoughts(thoughts, open) {
    if (!thoughts) return;
    if (!this.thoughts) {
      this.thoughts = h("div", { class: "prose" });
      this.details = h("details", { class: "thoughts" }, h("summary", {}, "Thoughts"), this.thoughts);
      this.body.prepend(this.details);
    }
    render(this.thoughts, thoughts);
    setText(this.details.firstChild, open ? "Thinking" : "Thoughts");
  }

  edit() {
    if (this.editor || this.actions.isBusy()) return;
    const area = h("textarea", { "aria-label": "Edit the message", value: this.message.content, rows: Math.min(12, this.message.content.split("\n").length + 1) });
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.body.hidden = this.buttons.hidden = false;
    };
    const send = () => {
      if (area.value.trim() === "") return;
      close();
      this.actions.edit(this, area.value);
    };
    const cancel = h("button", { type: "button", class: "quiet", onclick: close }, "Cancel");
    const submit = h("button", { type: "button", class: "primary", onclick: send }, "Send again");
    this.editor = h("div", { class: "editor" }, area, h("p", { class: "fine" }, "What was said after this message is dropped."), h("p", { class: "actions" }, cancel, submit));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else return;
      event.stopPropagation();
    });
    this.body.hidden = this.buttons.hidden = true;
    this.body.after(this.editor);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

function emptyLine(message) {
  return message.finish === "stopped" ? "stopped before the first token" : "The model ended its answer at once.";
}
