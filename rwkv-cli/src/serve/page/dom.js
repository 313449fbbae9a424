// Small tools for the document. Text is only ever set as text.

export const byId = (id) => document.getElementById(id);

// An element: `h("p", { class: "fine", onclick: f, "aria-label": "x" }, "text", child)`.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets a text only where it changed, so that nothing is laid out again for nothing.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A short message at the top of the page, such as an error that belongs to no message.
export function notice(text, { action, label } = {}) {
  const place = byId("notices");
  for (const old of place.children) if (old.dataset.text === text) return old;
  const dismiss = h("button", { type: "button", class: "quiet", onclick: () => line.remove() }, "Dismiss");
  const act = action && h("button", { type: "button", class: "quiet", onclick: () => { line.remove(); action(); } }, label);
  const line = h("p", { class: "notice", "data-text": text }, h("span", {}, text), act, dismiss);
  place.append(line);
  return line;
}

export const prefersLessMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
