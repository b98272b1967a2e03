/** Dead letters: look, give back, discard. */

import { ask, get, path } from "../api.js";
import { confirmed } from "../ask.js";
import { badge, facts, fill, h, head } from "../dom.js";
import { ago, bytes, moment, number } from "../format.js";
import { RemoteTable } from "../table.js";

const STATES = { open: ["bad", "open"], giving_back: ["warn", "outcome unknown"], given_back: ["ok", "given back"], discarded: ["off", "discarded"] };

export async function letters(main, params, signal) {
  if (params.get("letter")) return oneLetter(main, params.get("letter"), signal);
  let state = params.get("state") ?? "open";
  const choice = h("label", { class: "field" }, h("span", { class: "visually-hidden" }, "State"), h("select", {
    onchange: (event) => { state = event.target.value; history.replaceState(null, "", `#/letters?state=${state}`); table.restart(); },
  }, [["open", "Open"], ["", "All"], ["giving_back", "Outcome unknown"], ["given_back", "Given back"], ["discarded", "Discarded"]]
    .map(([value, title]) => h("option", { value, selected: value === state }, title))));
  const table = new RemoteTable({
    caption: "Dead letters, the newest first", search: "Topic, role, cause, key …", tools: [choice],
    columns: [
      { title: "When", cell: (row) => h("span", { class: "nowrap", title: moment(row.at_ms) }, ago(row.at_ms)) },
      { title: "Record", cell: (row) => [h("a", { href: `#/letters?letter=${row.id}` }, `${row.topic}[${row.partition}]`), h("div", { class: "dim" }, `offset ${number(row.offset)}`)] },
      { title: "Role", cell: (row) => row.role },
      { title: "Cause", cell: (row) => h("div", { class: "cause" }, row.message, h("div", { class: "dim" }, row.cause)) },
      { title: "Size", num: true, cell: (row) => bytes(row.value_bytes) },
      { title: "State", cell: (row) => badge(...STATES[row.state] ?? ["off", row.state]) },
      { title: "", cell: (row) => actions(row, () => table.show()) },
    ],
    empty: ["No dead letter", "Every record could be processed. Letters stay here for 30 days."],
    load: async ({ cursor, search, limit }, ends) => {
      const page = await get("dead-letters", { cursor, limit, state, contains: search }, ends);
      return { rows: page.letters, next: page.next_cursor };
    },
  }, signal);
  fill(main, head("Dead letters", "Records that a role could not process. Nothing else waits for them. What to do: docs/runbooks/QimDeadLetters.md."), table.element);
  await table.show();
}

function actions(row, done) {
  if (!["open", "giving_back"].includes(row.state)) return h("span", { class: "dim" }, row.state_at_ms ? ago(row.state_at_ms) : "–");
  return h("div", { class: "row" },
    h("button", { type: "button", class: "small", disabled: !row.may_give_back, title: row.why_not ?? null, onclick: () => giveBack(row).then((made) => made && done()) }, "Give back"),
    h("button", { type: "button", class: "small danger", onclick: () => discard(row).then((made) => made && done()) }, "Discard"));
}

function giveBack(row) {
  return confirmed({
    title: "Give this record back?", text: `It is appended to ${row.topic}[${row.partition}] once more, and ${row.role} tries again. Do it after the cause is mended: “${row.message}”.`, action: "Give back",
    doing: () => ask("POST", path`dead-letters/${row.id}/give-back`), done: `Given back to ${row.topic}[${row.partition}]`,
  });
}

function discard(row) {
  return confirmed({
    title: "Discard this letter?", text: "It is put aside as dealt with: what the record carried is not delivered. It stays in the log of dead letters until its retention.", action: "Discard", danger: true,
    doing: () => ask("POST", path`dead-letters/${row.id}/discard`), done: "Discarded",
  });
}

async function oneLetter(main, id, signal) {
  const one = await get(path`dead-letters/${id}`, null, signal);
  fill(main, head(`Dead letter ${id}`, one.message, badge(...STATES[one.state] ?? ["off", one.state]), h("a", { class: "button", href: "#/letters" }, "All letters"),
    actions(one, () => oneLetter(main, id, signal))),
  one.why_not ? h("p", { class: "note" }, h("strong", {}, "Not to be given back"), one.why_not) : null,
  h("section", { class: "card" }, facts([["Record", `${one.topic}[${one.partition}]`], ["Offset", number(one.offset)], ["Role", one.role], ["Cause", one.cause], ["When", moment(one.at_ms)],
    ["Key", one.key === null ? "none" : h("code", {}, one.key)], ["Value", `${bytes(one.value_bytes)}${one.truncated ? ", cut" : ""}`]])),
  h("section", { class: "card" }, h("h2", {}, `Value, first ${bytes(one.value_shown)}`), h("p", { class: "dim" }, "Bytes as they were; they may hold what users wrote."),
    h("details", {}, h("summary", {}, "Show the bytes"), h("pre", { class: "hex" }, hex(one.value_hex)))));
}

function hex(text) {
  const lines = [];
  for (let at = 0; at < text.length; at += 32) {
    const part = text.slice(at, at + 32).match(/../g) || [];
    const shown = part.map((two) => { const code = parseInt(two, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${part.join(" ").padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}
