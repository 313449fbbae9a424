// Which view is shown, the colours, and the key.

import { byId, notice, setText } from "./dom.js";
import { json, onKeyWanted, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { Engine } from "./engine.js";

const RETRY_MS = 1000;

onKeyWanted((wasWrong) => new Promise((resolve) => {
  const dialog = byId("key-dialog");
  byId("key-button").hidden = false;
  setText(byId("key-title"), wasWrong ? "That was not the key" : "API key");
  if (!dialog.open) dialog.showModal();
  dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
}));

byId("key-form").onsubmit = (event) => {
  event.preventDefault();
  setKey(byId("key").value.trim());
  byId("key").value = "";
  byId("key-dialog").close("given");
  // What failed for want of the key is tried again.
  if (failure) greet();
};
byId("key-cancel").onclick = () => byId("key-dialog").close("");
byId("key-button").onclick = () => byId("key-dialog").showModal();

const theme = byId("theme");
theme.value = document.documentElement.dataset.theme ?? "auto";
theme.onchange = () => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("rwkv.theme", theme.value);
  } catch {
    // It holds until the page closes.
  }
  dispatchEvent(new Event("themechange"));
};

const chat = new Chat();
const engine = new Engine(byId("engine"));

function route() {
  const view = location.hash === "#engine" ? "engine" : "chat";
  for (const name of ["chat", "engine"]) {
    byId(name).hidden = name !== view;
    if (name === view) byId(`tab-${name}`).setAttribute("aria-current", "page");
    else byId(`tab-${name}`).removeAttribute("aria-current");
  }
  document.title = view === "engine" ? "Engine · rwkv" : "rwkv";
  engine.show(view === "engine");
}
addEventListener("hashchange", route);
route();

// What says that the model is not known, while it is not.
let failure = null;

// The model's name, as soon as it is loaded.
async function greet() {
  failure?.remove();
  failure = null;
  for (;;) {
    try {
      const health = await fetch("/health", { cache: "no-store" });
      if (health.ok) break;
      setText(byId("model"), health.status === 503 ? "The model is being loaded" : `The server is not well (status ${health.status})`);
    } catch {
      setText(byId("model"), "The server does not answer");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  try {
    const { data } = await json("/v1/models");
    chat.model = data[0].id;
    setText(byId("model"), data[0].id);
    engine.ready();
  } catch (error) {
    setText(byId("model"), "");
    failure = notice(error.message, { action: greet, label: "Try again" });
  }
}
greet();
