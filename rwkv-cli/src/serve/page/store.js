// Conversations and settings, in the browser's storage: one entry for each conversation, and their order.

const PREFIX = "rwkv.chat.";
const SETTINGS = "rwkv.settings";

let failure = null;

// `report` is told, in words, when something cannot be kept.
export function onFailure(report) {
  failure = report;
}

function get(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function set(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch (error) {
    const full = error.name === "QuotaExceededError" || error.name === "NS_ERROR_DOM_QUOTA_REACHED";
    failure?.(full
      ? "The browser's storage for this page is full: what is said now is lost when the page closes. Delete a conversation to make room."
      : "The browser does not let this page store anything: conversations are lost when it closes.");
    return false;
  }
}

function isMessage(message) {
  return message && ["user", "assistant"].includes(message.role) && typeof message.content === "string";
}

// All conversations that can be read, the latest first.
export function load() {
  const found = [];
  try {
    for (let i = 0; i < localStorage.length; i++) {
      const name = localStorage.key(i);
      if (!name.startsWith(PREFIX)) continue;
      const chat = get(name);
      if (chat && PREFIX + chat.id === name && Array.isArray(chat.messages) && chat.messages.every(isMessage)) {
        found.push(chat);
      }
    }
  } catch {
    // Storage is forbidden; `save` says so.
  }
  return found.sort((a, b) => b.updated - a.updated);
}

export const save = (chat) => set(PREFIX + chat.id, chat);

export function remove(chat) {
  try {
    localStorage.removeItem(PREFIX + chat.id);
  } catch {
    // It was never stored.
  }
}

export const isConversation = (name) => name === null || name.startsWith(PREFIX);

export const loadSettings = () => get(SETTINGS) ?? {};
export const saveSettings = (settings) => set(SETTINGS, settings);

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(36).padStart(2, "0")).join("");
