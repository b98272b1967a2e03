/** A message's way through all levels. */

import { ask, path } from "../api.js";
import { badge, facts, fill, h, head } from "../dom.js";
import { bytes, count, moment, number } from "../format.js";
import { tenantField, tenantOf } from "../tenant.js";

const TRACE_MS = 120000; // a search through logs may take its time

export async function trace(main, params, signal) {
  const tenant = tenantOf(params);
  const message = params.get("message") || "";
  const conversation = params.get("conversation") || "";
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const form = h("form", {
    class: "form card", onsubmit: (event) => {
      event.preventDefault();
      const query = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
      const place = `#/trace?${query}`;
      if (location.hash === place) search(); else location.hash = place;
    },
  }, tenantField(tenant, signal),
  h("label", { class: "field double" }, "Message id", h("input", { name: "message", value: message, required: true, pattern: "\\s*[0-9a-fA-F]{32}\\s*", placeholder: "32 hex digits", class: "mono", autocomplete: "off", spellcheck: "false" })),
  h("label", { class: "field" }, "Conversation (optional, makes it faster)", h("input", { name: "conversation", value: conversation, autocomplete: "off", spellcheck: "false" })),
  h("div", {}, h("button", { class: "primary", type: "submit" }, "Trace")));
  fill(main, head("Trace a message", "Where a message is at each level, from COMMITTED to NOTIFIED, and where not. Ids are in SEND_ACK, in logs and in a conversation’s messages."), form, result);

  async function search() {
    fill(result, h("p", { class: "note", role: "status" }, "Searching the logs …"));
    const found = await ask("GET", path`tenants/${tenant}/messages/${message}/trace`, { query: { conversation_id: conversation }, signal, patience: TRACE_MS })
      .catch((error) => { fill(result); throw error; });
    fill(result, shown(found, tenant));
  }
  if (tenant && message) await search();
}

function shown(found, tenant) {
  const one = found.message;
  return [
    h("section", { class: "card", "aria-label": "Levels" }, h("h2", {}, "Levels"), h("ol", { class: "levels" }, levels(found).map(level))),
    h("section", { class: "card" }, h("h2", {}, "Message"), facts([
      ["Conversation", h("a", { href: `#/conversations?${new URLSearchParams({ tenant, conversation: one.conversation_id })}` }, one.conversation_id)],
      ["Number", number(one.conversation_seq)], ["Sender", h("a", { href: `#/users?${new URLSearchParams({ tenant, user: one.sender_id })}` }, one.sender_id)],
      ["Device", one.sender_device_id], ["Committed", moment(one.committed_at)], ["Body", bytes(one.body_bytes)],
      ["Membership version", number(one.membership_version)], ["Client message id", h("code", {}, one.client_message_id)], ["Epoch of the writer", number(one.fencing_epoch)],
      ["Outbox", found.outbox ? `${found.outbox.partition} @ ${number(found.outbox.offset)}${found.outbox.relayed ? ", relayed" : ""}` : "–"],
    ])),
    found.dispatches.length ? table("Dispatches and mailboxes", ["Shard", "Offset", "Recipients", "W of their lanes", "Covered", "Entries found", "Done"],
      found.dispatches.map((row) => [h("a", { href: `#/shards?shard=${row.shard}` }, row.shard), number(row.offset), number(row.recipients),
        row.watermark_min === row.watermark_max ? number(row.watermark_min) : `${number(row.watermark_min)}–${number(row.watermark_max)}`,
        badge(row.covered ? "ok" : "bad", row.covered ? "yes" : "no"), `${row.entries_found} of ${row.entries_sampled} looked at`, moment(row.done_at_ms)])) : null,
    found.pushes.length ? table("Pushes", ["ConnectionShard", "Offset", "At", "From shard", "Devices"],
      found.pushes.map((row) => [row.connection_shard, number(row.offset), moment(row.at_ms), row.mailbox_shard, number(row.devices)])) : null,
    found.notes.length ? h("div", { class: "note" }, h("strong", {}, "Notes"), found.notes.map((text) => h("p", {}, text))) : null,
  ];
}

/** The levels, NOTIFIED also where nobody is notified. */
function levels(found) {
  if (found.levels.some((one) => one.name === "NOTIFIED")) return found.levels;
  return [...found.levels, { name: "NOTIFIED", reached: null, at_ms: null, after_ms: null, detail: "offline push is switched off, or every recipient was online" }];
}

function level(one) {
  const state = one.reached === null ? "" : one.reached ? "ok" : "bad";
  const word = one.reached === null ? "not told" : one.reached ? "reached" : "not reached";
  const mark = one.reached === null ? "?" : one.reached ? "✓" : "✗";
  return h("li", { class: state, "data-level": one.name }, h("span", { class: "dot", "aria-hidden": "true" }, mark), h("div", {},
    h("div", { class: "row" }, h("strong", {}, one.name), badge(state || "off", word),
      one.after_ms === null ? null : h("span", { class: "dim" }, one.name === "COMMITTED" ? moment(one.at_ms) : `after ${count(one.after_ms, "ms", "ms")}`)),
    h("div", { class: "dim" }, one.detail)));
}

function table(caption, titles, rows) {
  return h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}
