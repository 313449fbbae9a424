// The chat view: conversations, the one that is open, and the composer.

import { byId, h, notice, prefersLessMotion, setText } from "./dom.js";
import { answer } from "./answer.js";
import { MessageView } from "./message.js";
import * as store from "./store.js";

const NEAR_END = 80;
const SAVE_EVERY_MS = 1500;
const TITLE_LENGTH = 60;

export class Chat {
  constructor() {
    this.chats = store.load();
    this.views = [];
    // Conversation id to the abort controller of the answer that it waits for.
    this.running = new Map();
    this.model = "rwkv";
    store.onFailure((text) => notice(text));
    this.listen();
    this.open(this.chats[0] ?? this.fresh());
  }

  fresh() {
    const settings = this.chat?.settings ?? store.loadSettings();
    return { id: store.newId(), title: "", updated: Date.now(), settings: { ...settings }, messages: [] };
  }

  listen() {
    const prompt = byId("prompt");
    const scroll = byId("scroll");
    byId("new-chat").onclick = () => {
      this.open(this.chat.messages.length ? this.fresh() : this.chat);
      this.togglePanels();
      prompt.focus();
    };
    byId("composer").onsubmit = (event) => {
      event.preventDefault();
      this.send();
    };
    byId("stop").onclick = () => this.stop();
    prompt.addEventListener("input", () => this.fit());
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      } else if (event.key === "ArrowUp" && prompt.value === "") {
        const last = this.views.findLast((view) => view.message.role === "user");
        if (last) {
          event.preventDefault();
          last.edit();
        }
      }
    });
    byId("chat").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.togglePanels()) this.stop();
    });
    scroll.addEventListener("scroll", () => {
      this.follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END;
      byId("jump").hidden = this.follows;
    });
    byId("jump").onclick = () => this.toEnd(true);
    for (const name of ["conversations", "settings"]) byId(`show-${name}`).onclick = () => this.togglePanels(name);
    byId("shade").onclick = () => this.togglePanels();
    byId("close-settings").onclick = () => this.togglePanels();
    const form = byId("settings-form");
    form.addEventListener("input", (event) => this.changeSetting(event.target));
    form.onsubmit = (event) => event.preventDefault();
    byId("reset-settings").onclick = () => {
      for (const field of form.elements) if (field.name) field.value = "";
      for (const field of form.elements) if (field.name) this.changeSetting(field);
    };
    addEventListener("storage", ({ key }) => {
      if (this.running.size || !store.isConversation(key)) return;
      this.chats = store.load();
      const again = this.chats.find(({ id }) => id === this.chat.id);
      if (again || this.chat.messages.length) this.open(again ?? this.chats[0] ?? this.fresh());
      else this.list();
    });
    addEventListener("pagehide", () => this.chats.filter(({ id }) => this.running.has(id)).forEach(store.save));
  }

  // Opens a panel, or closes what is open; says whether there was something to close.
  togglePanels(name) {
    let closed = false;
    for (const panel of ["conversations", "settings"]) {
      const button = byId(`show-${panel}`);
      const open = panel === name && button.getAttribute("aria-expanded") !== "true";
      closed ||= button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", open);
      byId(panel).classList.toggle("open", open);
      if (panel === "settings") byId(panel).hidden = !open;
      if (open) byId(panel).querySelector("button, textarea")?.focus();
    }
    byId("shade").hidden = byId("show-conversations").getAttribute("aria-expanded") !== "true" && byId("settings").hidden;
    return closed;
  }

  open(chat) {
    this.chat = chat;
    const form = byId("settings-form");
    for (const field of form.elements) {
      if (!field.name) continue;
      field.value = chat.settings[field.name] ?? "";
      field.removeAttribute("aria-invalid");
    }
    this.views = chat.messages.map((message) => this.view(message));
    byId("messages").replaceChildren(...this.views.map(({ element }) => element));
    byId("messages").classList.toggle("empty", chat.messages.length === 0);
    this.list();
    this.showRunning();
    this.toEnd(true);
  }

  view(message) {
    return new MessageView(message, {
      retry: (view) => this.retry(view),
      edit: (view, text) => this.say(text, this.views.indexOf(view)),
      isBusy: () => this.running.has(this.chat.id),
    });
  }

  list() {
    setText(byId("chat-title"), this.chat.title || "New conversation");
    const row = (chat) => {
      const open = () => {
        this.open(chat);
        this.togglePanels();
      };
      const name = chat.title || "New conversation";
      return h("li", {},
        h("button", { type: "button", class: "entry", "aria-current": chat === this.chat ? "true" : null, onclick: open }, name),
        h("button", { type: "button", class: "quiet remove", "aria-label": `Delete ${name}`, title: "Delete", onclick: (event) => this.confirmRemoval(chat, event.target) }, "\u00d7"));
    };
    byId("conversation-list").replaceChildren(...this.chats.map(row));
  }

  // The first press asks, the second deletes.
  confirmRemoval(chat, button) {
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = "Delete";
      button.addEventListener("blur", () => { button.classList.remove("sure"); button.textContent = "\u00d7"; }, { once: true });
      return;
    }
    this.running.get(chat.id)?.abort();
    store.remove(chat);
    this.chats = this.chats.filter((other) => other !== chat);
    if (chat === this.chat) this.open(this.chats[0] ?? this.fresh());
    else this.list();
  }

  changeSetting(field) {
    const fits = field.validity.valid;
    field.setAttribute("aria-invalid", !fits);
    if (!fits) return;
    this.chat.settings[field.name] = field.value;
    store.saveSettings(this.chat.settings);
    if (this.chat.messages.length) store.save(this.chat);
  }

  send() {
    const prompt = byId("prompt");
    const text = prompt.value.trim();
    if (text === "" || this.running.has(this.chat.id)) return;
    const wrong = [...byId("settings-form").elements].find((field) => field.name && !field.validity.valid);
    if (wrong) {
      if (byId("settings").hidden) this.togglePanels("settings");
      wrong.reportValidity();
      return;
    }
    prompt.value = "";
    this.fit();
    this.say(text, this.chat.messages.length);
  }

  // Puts a message of the user in place `index`, drops what came after, and asks for an answer.
  say(content, index) {
    const { chat } = this;
    chat.messages.splice(index, Infinity, { role: "user", content });
    if (index === 0) chat.title = title(content);
    this.ask();
  }

  retry(view) {
    if (this.running.has(this.chat.id)) return;
    this.chat.messages.splice(this.views.indexOf(view), Infinity);
    this.ask();
  }

  async ask() {
    const { chat } = this;
    const message = { role: "assistant", content: "" };
    const abort = new AbortController();
    this.running.set(chat.id, abort);
    chat.messages.push(message);
    chat.updated = Date.now();
    this.chats = [chat, ...this.chats.filter((other) => other !== chat)];
    this.open(chat);
    let saved = performance.now();
    let frame = 0;
    const show = () => {
      frame = 0;
      if (chat !== this.chat) return;
      this.views.at(-1).show(this.running.has(chat.id));
      this.toEnd();
    };
    const onChange = () => {
      frame ||= requestAnimationFrame(show);
      if (performance.now() - saved > SAVE_EVERY_MS) {
        saved = performance.now();
        store.save(chat);
      }
    };
    setText(byId("said"), "The model reads and answers.");
    await answer({ ...chat, messages: chat.messages.slice(0, -1) }, message, this.model, { signal: abort.signal, onChange });
    this.running.delete(chat.id);
    cancelAnimationFrame(frame);
    show();
    if (this.chats.includes(chat)) store.save(chat);
    this.showRunning();
    setText(byId("said"), message.error ? `No answer: ${message.error}` : `Answered. ${message.content}`.slice(0, 2000));
  }

  stop() {
    this.running.get(this.chat.id)?.abort();
  }

  showRunning() {
    const busy = this.running.has(this.chat.id);
    const stopped = document.activeElement === byId("stop");
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("chat").classList.toggle("busy", busy);
    if (busy) this.views.at(-1)?.show(true);
    else if (stopped) byId("prompt").focus();
  }

  fit() {
    const prompt = byId("prompt");
    prompt.style.height = "auto";
    prompt.style.height = `${Math.min(prompt.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  toEnd(always = false) {
    if (!always && !this.follows) return;
    const scroll = byId("scroll");
    const behavior = always && this.views.length && !prefersLessMotion() && !this.running.has(this.chat.id) ? "smooth" : "instant";
    scroll.scrollTo({ top: scroll.scrollHeight, behavior });
    this.follows = true;
    byId("jump").hidden = true;
  }
}

function title(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}\u2026` : line;
}
