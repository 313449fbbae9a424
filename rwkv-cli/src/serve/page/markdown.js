// A small part of Markdown, made into elements. Everything that a model wrote becomes text nodes, never markup.

import { h } from "./dom.js";

// Splits a text into blocks: `{ kind, source, ... }`. A fence that is still open is a code block already.
function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let i = 0;
  const push = (kind, begin, more) => found.push({ kind, source: lines.slice(begin, i).join("\n"), ...more });
  while (i < lines.length) {
    const line = lines[i];
    const begin = i;
    const fence = /^\s{0,3}(```+|~~~+)\s*([^`]*)$/.exec(line);
    if (line.trim() === "") {
      i++;
    } else if (fence) {
      const close = new RegExp(`^\\s{0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      for (i++; i < lines.length && !close.test(lines[i]); ) i++;
      const code = lines.slice(begin + 1, i).join("\n");
      i++;
      push("code", begin, { code, language: fence[2].trim().split(/\s/)[0] });
    } else if (/^#{1,6}\s/.test(line)) {
      i++;
      push("heading", begin, { level: /^#+/.exec(line)[0].length, text: line.replace(/^#+\s+|\s+#+\s*$/g, "") });
    } else if (/^\s{0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) {
      i++;
      push("rule", begin);
    } else if (item(line)) {
      const items = [];
      const { ordered, number } = item(line);
      for (; i < lines.length; i++) {
        const next = item(lines[i]);
        if (next && next.ordered === ordered) items.push(next);
        else if (items.length && /^\s+\S/.test(lines[i])) items.at(-1).text += `\n${lines[i].trim()}`;
        else if (lines[i].trim() !== "" || !item(lines[i + 1] ?? "") ) break;
      }
      push("list", begin, { ordered, start: number, items });
    } else if (/^\s{0,3}>/.test(line)) {
      for (; i < lines.length && /^\s{0,3}>/.test(lines[i]); ) i++;
      push("quote", begin, { text: lines.slice(begin, i).map((quoted) => quoted.replace(/^\s{0,3}>\s?/, "")).join("\n") });
    } else {
      const ends = (next) => next.trim() === "" || /^\s{0,3}(```|~~~|#{1,6}\s|>)/.test(next) || item(next);
      for (i++; i < lines.length && !ends(lines[i]); ) i++;
      push("paragraph", begin, { text: lines.slice(begin, i).join("\n") });
    }
  }
  return found;
}

function item(line) {
  const found = /^(\s*)([-*+]|(\d{1,9})[.)])\s+(.*)$/.exec(line);
  if (!found) return null;
  const [, indent, , digits, text] = found;
  return { depth: Math.min(3, indent.length >> 1), ordered: digits !== undefined, number: Number(digits), text };
}

const INLINE = /(`+)([\s\S]+?)\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|(?<![\w*])\*([^\s*](?:[^*]*?[^\s*])?)\*(?![\w*])|\[([^\][]+)\]\((https?:\/\/[^\s()]+)\)/g;

// Code, strong and emphasised words, and links that lead to the web; all else is text.
function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, , code, strong, emphasis, label, address] = found;
    nodes.push(text.slice(end, found.index));
    end = found.index + all.length;
    if (code !== undefined) nodes.push(h("code", {}, code));
    else if (strong !== undefined) nodes.push(h("strong", {}, ...inline(strong)));
    else if (emphasis !== undefined) nodes.push(h("em", {}, ...inline(emphasis)));
    else nodes.push(h("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" }, label));
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

function element(block) {
  switch (block.kind) {
    case "code": {
      const copy = h("button", { type: "button", class: "quiet copy" }, "Copy");
      copy.addEventListener("click", () => copyText(block.code, copy));
      const head = h("figcaption", {}, h("span", {}, block.language || "code"), copy);
      return h("figure", { class: "code" }, head, h("pre", { tabindex: "0" }, h("code", {}, block.code)));
    }
    case "heading":
      return h(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.text));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, ...inline(block.text));
    case "list": {
      const list = h(block.ordered ? "ol" : "ul", block.ordered ? { start: block.start } : {});
      for (const { depth, text } of block.items) list.append(h("li", { class: depth ? `depth-${depth}` : null }, ...inline(text)));
      return list;
    }
    default:
      return h("p", {}, ...inline(block.text));
  }
}

// Shows a text in `place`. What a growing text has in common with what was shown stays as it is.
export function render(place, text) {
  const next = blocks(text);
  const shown = place.blocks ?? [];
  let same = 0;
  while (same < next.length && same < shown.length && shown[same] === next[same].kind + next[same].source) same++;
  while (place.childNodes.length > same) place.lastChild.remove();
  for (const block of next.slice(same)) place.append(element(block));
  place.blocks = next.map((block) => block.kind + block.source);
}

export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
