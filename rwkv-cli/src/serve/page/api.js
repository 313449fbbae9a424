// The server: requests with the key, errors in words, and streams of events.

const KEY = "rwkv.key";

let key = read();
let askForKey = null;

function read() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function setKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // The key lives as long as the page then.
  }
}

// `ask` returns a promise of whether a key was given.
export function onKeyWanted(ask) {
  askForKey = ask;
}

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

// A response with a status of success. Asks for the key and tries again where the server wants one.
export async function request(path, { method = "GET", body, signal } = {}) {
  for (;;) {
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      const data = body === undefined ? undefined : JSON.stringify(body);
      response = await fetch(path, { method, headers, body: data, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is rwkv serve still running?");
    }
    if (response.ok) return response;
    if (response.status === 401 && askForKey && (await askForKey(key !== ""))) continue;
    throw new ApiError(await messageOf(response), response.status);
  }
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

async function messageOf(response) {
  let text = "";
  try {
    text = await response.text();
    const message = JSON.parse(text)?.error?.message;
    if (message) return message;
  } catch {
    // Not JSON: what came is shown.
  }
  const short = text.trim().slice(0, 200);
  if (short && !short.startsWith("<")) return `${short} (status ${response.status})`;
  return `The server answered with status ${response.status} ${response.statusText}`.trimEnd() + ".";
}

// The events of a text/event-stream, as `{ event, data }`. Comments are passed over.
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      buffer += decoder.decode(value, { stream: !done });
      let end;
      while ((end = /\r?\n\r?\n/.exec(buffer))) {
        const event = parse(buffer.slice(0, end.index));
        buffer = buffer.slice(end.index + end[0].length);
        if (event) yield event;
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    else if (field === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
