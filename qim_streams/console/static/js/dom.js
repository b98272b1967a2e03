/** Making elements. Text is always text: nothing here, and nothing in this console, parses markup. */

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "selected", "readOnly"]);

/**
 * An element. `attributes`: `on<event>` functions become listeners, `class` and others attributes; null and
 * false are left out. Children may be nodes, strings, numbers, arrays of them, or null.
 */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false)
    .map((one) => (one instanceof Node ? one : document.createTextNode(String(one))));
}

/** Replace what is in `element`. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A state as a badge; the word is always there, the colour only helps. */
export function badge(state, text = state) {
  const known = ["ok", "warn", "bad"].includes(state) ? state : "";
  return h("span", { class: `badge ${known}` }, text);
}

/** The head of a page. */
export function head(title, lead, ...tools) {
  document.title = `${title} – Q-IM streams console`;
  return h("div", { class: "page-head" }, h("h1", {}, title), h("div", { class: "row" }, tools),
    lead ? h("p", { class: "lead" }, words(lead)) : null);
}

/** Text whose parts between backquotes are code. */
export function words(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
}

/** Term and value pairs. */
export function facts(pairs) {
  return h("dl", { class: "facts" },
    pairs.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value ?? "–"))));
}

/** What is wrong and what to do about it. */
export function problem(error, again = null) {
  return h("div", { class: "note bad", role: "alert" },
    h("strong", {}, error.title || "That did not work"), h("p", {}, error.message),
    error.remedy ? h("p", {}, words(error.remedy)) : null,
    again ? h("p", {}, h("button", { type: "button", class: "small", onclick: again }, "Try again")) : null);
}

/** A short message that goes by itself. */
export function toast(text) {
  const one = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), 6000);
}
