// One answer: the request, its stream, and what is measured on the way.

import { ApiError, events, request } from "./api.js";

// A page that goes away breaks off its answers, and the browser calls that a network error.
const LEAVING_MS = 2000;
let leaving = false;
addEventListener("beforeunload", () => {
  leaving = true;
  setTimeout(() => (leaving = false), LEAVING_MS);
});

// What a conversation asks of the server. Empty settings are left out, so the server's own defaults hold.
function body(chat, model) {
  const { system, stop, ...numbers } = chat.settings;
  const messages = chat.messages
    .filter(({ role, content }) => role === "user" || content !== "")
    .map(({ role, content }) => ({ role, content }));
  if (system?.trim()) messages.unshift({ role: "system", content: system });
  const given = Object.entries(numbers).filter(([, value]) => value !== "" && value !== undefined);
  const stops = (stop ?? "").split("\n").filter((line) => line !== "");
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...Object.fromEntries(given.map(([name, value]) => [name, Number(value)])),
    ...(stops.length ? { stop: stops } : {}),
  };
}

// Streams an answer into `message`, calling `onChange` after each piece of it.
export async function answer(chat, message, model, { signal, onChange }) {
  const begin = performance.now();
  let first = 0;
  let last = 0;
  let pieces = 0;
  try {
    const response = await request("/v1/chat/completions", { method: "POST", body: body(chat, model), signal });
    let done = false;
    for await (const { data } of events(response)) {
      if (data === "[DONE]") {
        done = true;
        break;
      }
      const part = JSON.parse(data);
      if (part.error) throw new ApiError(part.error.message ?? "The server broke off.");
      const choice = part.choices?.[0];
      if (choice?.delta?.content) {
        last = performance.now();
        first ||= last;
        pieces++;
        message.content += choice.delta.content;
      }
      if (choice?.finish_reason) message.finish = choice.finish_reason;
      if (part.usage) message.usage = part.usage;
      onChange();
    }
    if (!done && !message.finish) throw new ApiError("The connection ended before the answer did.");
  } catch (error) {
    if (error.name === "AbortError" || leaving) message.finish = "stopped";
    else message.error = error instanceof ApiError ? error.message : "The connection was lost.";
  }
  const tokens = message.usage?.completion_tokens ?? pieces;
  message.stats = {
    tokens,
    exact: message.usage !== undefined,
    reused: message.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    prompt: message.usage?.prompt_tokens,
    first_ms: first ? first - begin : null,
    per_second: last > first && tokens > 1 ? ((tokens - 1) * 1000) / (last - first) : null,
  };
  delete message.usage;
  onChange();
}

// Thoughts that stand before the answer, between `<think>` and `</think>`; the template may have written the beginning.
export function split(content) {
  const found = /^\s*(?:<think)?>?([\s\S]*?)<\/think>\s*/.exec(content);
  if (found && content.indexOf("</think>") >= 0) return { thoughts: found[1].trim(), text: content.slice(found[0].length) };
  if (/^\s*<think>?/.test(content)) return { thoughts: content.replace(/^\s*<think>?/, "").trim(), text: "", open: true };
  return { thoughts: "", text: content };
}

const FINISH = { stop: "", length: "reached the most tokens", stopped: "stopped", content_filter: "filtered" };

// What stands under an answer.
export function statistics({ stats, finish }) {
  if (!stats) return "";
  const parts = [];
  if (stats.per_second !== null) parts.push(`${stats.per_second.toFixed(1)} tokens/s`);
  if (stats.first_ms !== null) {
    const ms = stats.first_ms;
    parts.push(`first token after ${ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`}`);
  }
  if (stats.tokens) parts.push(`${stats.exact ? "" : "about "}${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.prompt) parts.push(`prompt ${stats.prompt}${stats.reused ? `, ${stats.reused} of them known` : ""}`);
  if (FINISH[finish] ?? finish) parts.push(FINISH[finish] ?? finish);
  return parts.join("  ·  ");
}
