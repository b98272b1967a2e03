/** Asking before something is changed. */

import { fill, h, problem, toast } from "./dom.js";

const dialog = document.getElementById("ask");

/**
 * Ask, then do. `doing(fields)` is called once with the form's fields when it is confirmed; while it runs nothing
 * can be pressed; an error is shown in the dialog, which stays open. `word`: to be typed before it may go on.
 * Resolves with what `doing` gave, or undefined when it was called off.
 */
export function confirmed({ title, text, action, danger = false, fields = [], word = null, doing, done = null }) {
  return new Promise((resolve) => {
    const said = h("div", { "aria-live": "polite" });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: word !== null }, action);
    const back = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const typed = word === null ? null : h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, word), " to go on"),
      h("input", { autocomplete: "off", spellcheck: "false", oninput: (event) => { go.disabled = event.target.value !== word; } }));
    let result;
    const form = h("form", {
      method: "dialog", onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = back.disabled = true;
        try {
          result = (await doing(Object.fromEntries(new FormData(form)))) ?? null;
          dialog.close();
          if (done) toast(typeof done === "function" ? done(result) : done);
        } catch (error) {
          fill(said, problem(error));
          go.disabled = back.disabled = false;
        }
      },
    }, h("h2", { id: "ask-title" }, title), text ? h("p", {}, text) : null, fields, typed, said, h("div", { class: "row" }, back, go));
    fill(dialog, form);
    dialog.addEventListener("close", () => resolve(result), { once: true });
    dialog.showModal();
    (form.querySelector("input, select") ?? back).focus();
  });
}
