/** Conversations, newest first; one with its messages (without bodies); for a group its members and rules. */

import { ask, get, path } from "../api.js";
import { confirmed } from "../ask.js";
import { badge, facts, fill, h, head } from "../dom.js";
import { ago, bytes, moment, number } from "../format.js";
import { RemoteTable } from "../table.js";
import { tenantForm, tenantOf } from "../tenant.js";

export function conversationPlace(tenant, conversation) {
  return `#/conversations?${new URLSearchParams({ tenant, conversation })}`;
}

export async function conversations(main, params, signal) {
  return list(main, params, signal, "conversations", null);
}

export async function groups(main, params, signal) {
  return list(main, params, signal, "groups", "group");
}

async function list(main, params, signal, where, kind) {
  const tenant = tenantOf(params);
  if (tenant && params.get("conversation")) return oneConversation(main, tenant, params.get("conversation"), signal);
  const title = kind === "group" ? "Groups" : "Conversations";
  const byId = h("label", { class: "field" }, "Open by id", h("input", { name: "conversation", autocomplete: "off", spellcheck: "false" }));
  fill(main, head(title, `${title} in the order in which messages of them were last archived. One that has none yet, or has been silent for long, is opened by its id.`,
    kind === "group" && tenant ? h("button", { type: "button", class: "primary", onclick: () => newGroup(tenant) }, "New group") : null),
  tenantForm(tenant, where, signal, byId));
  if (!tenant) return main.append(h("p", { class: "note" }, "Choose a tenant."));
  const table = new RemoteTable({
    caption: `${title} of ${tenant}`, search: "Part of a conversation id …",
    columns: [
      { title: "Conversation", cell: (row) => [h("a", { href: conversationPlace(tenant, row.conversation_id) }, row.name || row.conversation_id), row.name ? h("div", { class: "dim mono" }, row.conversation_id) : null] },
      { title: "Kind", cell: (row) => [row.kind, row.dismissed ? [" ", badge("off", "dismissed")] : null] },
      { title: "Messages", num: true, cell: (row) => number(row.last_seq) },
      { title: "Members", num: true, cell: (row) => number(row.members_active) },
      { title: "Active", cell: (row) => h("span", { class: "nowrap", title: moment(row.active_at_ms) }, ago(row.active_at_ms)) },
      { title: "Outbox", num: true, cell: (row) => row.outbox_partition },
    ],
    empty: ["None was archived lately", "Conversations appear a moment after their first message, once the archiver has it: is it running?"],
    load: async ({ cursor, search, limit }, ends) => {
      const page = await get(path`tenants/${tenant}/conversations`, { cursor, limit, contains: search, kind }, ends);
      return { rows: page.conversations, next: page.next_cursor };
    },
  }, signal);
  main.append(table.element);
  await table.show();
}

function newGroup(tenant) {
  const field = (name, title, more = {}) => h("label", { class: "field" }, title, h("input", { name, autocomplete: "off", spellcheck: "false", ...more }));
  return confirmed({
    title: "New group", action: "Create",
    fields: [field("conversation_id", "Id (empty: the server makes one)"), field("name", "Name"), field("owner", "Owner", { required: true }), field("members", "Members, separated by spaces")],
    doing: (given) => ask("POST", path`tenants/${tenant}/groups`, {
      body: { conversation_id: given.conversation_id || null, name: given.name, owner: given.owner, members: given.members.split(/[\s,]+/).filter(Boolean) },
    }),
    done: (made) => `${made.conversation_id} was made`,
  }).then((made) => { if (made) location.hash = conversationPlace(tenant, made.conversation_id); });
}

async function oneConversation(main, tenant, conversation, signal) {
  const one = await get(path`tenants/${tenant}/conversations/${conversation}`, null, signal);
  const again = () => oneConversation(main, tenant, conversation, signal);
  const group = one.kind === "group";
  fill(main, head(one.name || conversation, `A ${one.kind === "direct" ? "direct chat" : "group"} of ${tenant}.`, one.dismissed ? badge("off", "dismissed") : null,
    group && !one.dismissed ? [
      h("button", { type: "button", onclick: () => change(tenant, one).then((done) => done && again()) }, "Change"),
      h("button", { type: "button", class: "danger", onclick: () => dismiss(tenant, one).then((done) => done && again()) }, "Dismiss"),
    ] : null),
  h("section", { class: "card" }, facts([["Id", h("code", {}, conversation)], ["Messages", number(one.last_seq)], ["Members", `${number(one.members_active)} of at most ${number(one.members_max)}`],
    ["Version", number(one.version)], ["Who may send", one.send_policy], ["Who may join", one.join_policy], ["History for new members", one.history_policy], ["Made", moment(one.created_at)]])));
  const messages = messageTable(tenant, conversation, signal);
  const members = group ? memberTable(tenant, one, again, signal) : null;
  main.append(...[members?.element, messages.element].filter(Boolean));
  await Promise.all([messages.show(), members?.show()]);
}

function messageTable(tenant, conversation, signal) {
  return new RemoteTable({
    caption: "Messages, the newest first; bodies are not shown", limit: 25,
    columns: [
      { title: "Number", num: true, cell: (row) => number(row.conversation_seq) },
      { title: "Sender", cell: (row) => (row.sender_id ? h("a", { href: `#/users?${new URLSearchParams({ tenant, user: row.sender_id })}` }, row.sender_id) : badge("bad", row.problem)) },
      { title: "Committed", cell: (row) => h("span", { class: "nowrap" }, moment(row.committed_at)) },
      { title: "Kind", cell: (row) => `${row.kind ?? "–"}${row.state && row.state !== "normal" ? `, ${row.state}` : ""}` },
      { title: "Body", num: true, cell: (row) => bytes(row.body_bytes) },
      { title: "Message id", cell: (row) => (row.message_id ? h("a", { class: "mono", href: `#/trace?${new URLSearchParams({ tenant, message: row.message_id, conversation })}` }, row.message_id) : "–") },
    ],
    empty: ["No message", "Nothing was committed here yet."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get(path`tenants/${tenant}/conversations/${conversation}/messages`, { before_seq: cursor, limit }, ends);
      return { rows: page.messages, next: page.next_before_seq };
    },
  }, signal);
}

function memberTable(tenant, group, again, signal) {
  const where = path`tenants/${tenant}/groups/${group.conversation_id}`;
  const table = new RemoteTable({
    caption: "Members", limit: 25,
    tools: group.dismissed ? [] : [h("button", { type: "button", class: "small", onclick: () => add().then((done) => done && again()) }, "Add members")],
    columns: [
      { title: "User", cell: (row) => h("a", { href: `#/users?${new URLSearchParams({ tenant, user: row.user_id })}` }, row.user_id) },
      { title: "Role", cell: (row) => row.role },
      { title: "", cell: (row) => (group.dismissed ? null : h("span", { class: "row" },
        h("button", { type: "button", class: "small", onclick: () => role(row).then((done) => done && again()) }, "Role"),
        h("button", { type: "button", class: "small danger", onclick: () => remove(row).then((done) => done && again()) }, "Remove"))) },
    ],
    empty: ["Nobody", "Everybody has left."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get(where, { after_user_id: cursor, limit }, ends);
      return { rows: page.members, next: page.next_user_id };
    },
  }, signal);
  const add = () => confirmed({
    title: "Add members", action: "Add", fields: [h("label", { class: "field" }, "User ids, separated by spaces", h("input", { name: "users", required: true, autocomplete: "off", spellcheck: "false" }))],
    doing: ({ users }) => ask("POST", `${where}/members`, { body: { user_ids: users.split(/[\s,]+/).filter(Boolean) } }), done: "Added",
  });
  const role = (row) => confirmed({
    title: `Another role for ${row.user_id}`, action: "Set", text: "“owner” hands the group over: the former owner becomes an administrator.",
    fields: [h("label", { class: "field" }, "Role", h("select", { name: "role" }, ["member", "admin", "owner"].map((one) => h("option", { value: one, selected: one === row.role }, one))))],
    doing: (given) => ask("PUT", `${where}/members/${encodeURIComponent(row.user_id)}/role`, { body: { role: given.role } }), done: "Set",
  });
  const remove = (row) => confirmed({
    title: `Remove ${row.user_id}?`, text: `${row.user_id} gets nothing of ${group.conversation_id} any more.`, action: "Remove", danger: true,
    doing: () => ask("DELETE", `${where}/members/${encodeURIComponent(row.user_id)}`), done: "Removed",
  });
  return table;
}

function change(tenant, one) {
  const choice = (name, title, values) => h("label", { class: "field" }, title, h("select", { name }, values.map((value) => h("option", { value, selected: value === one[name] }, value))));
  return confirmed({
    title: `Change ${one.conversation_id}`, action: "Change",
    fields: [h("label", { class: "field" }, "Name", h("input", { name: "name", value: one.name, maxlength: 128, autocomplete: "off" })),
      choice("send_policy", "Who may send", ["members", "admins"]), choice("join_policy", "Who may join", ["invite", "open"]), choice("history_policy", "History for new members", ["joined", "all"])],
    doing: (given) => ask("PATCH", path`tenants/${tenant}/groups/${one.conversation_id}`, { body: given }), done: "Changed",
  });
}

function dismiss(tenant, one) {
  return confirmed({
    title: "Dismiss this group?", text: "Nobody can send any more. History stays. It cannot be taken back.", action: "Dismiss", danger: true, word: one.conversation_id,
    doing: () => ask("DELETE", path`tenants/${tenant}/groups/${one.conversation_id}`), done: "Dismissed",
  });
}
