/** Users of a tenant; one user with devices, session list, push and mailbox. */

import { ApiError, ask, get, path } from "../api.js";
import { confirmed } from "../ask.js";
import { badge, facts, fill, h, head } from "../dom.js";
import { ago, count, moment, number } from "../format.js";
import { LocalTable, RemoteTable } from "../table.js";
import { tenantForm, tenantOf } from "../tenant.js";

export async function users(main, params, signal) {
  const tenant = tenantOf(params);
  if (tenant && params.get("user")) return oneUser(main, tenant, params.get("user"), signal);
  const openField = h("label", { class: "field" }, "Open a user by id", h("input", { name: "user", autocomplete: "off", spellcheck: "false" }));
  fill(main, head("Users", "Everybody who sent a message or is in a group. Search looks for a part of an id."), tenantForm(tenant, "users", signal, openField));
  if (!tenant) return main.append(h("p", { class: "note" }, "Choose a tenant."));
  const table = new RemoteTable({
    caption: `Users of ${tenant}`, search: "Part of a user id …",
    columns: [
      { title: "User", cell: (row) => h("a", { href: place(tenant, row.user_id) }, row.user_id) },
      { title: "Ordinal", num: true, cell: (row) => row.ordinal },
      { title: "MailboxShard", num: true, cell: (row) => h("a", { href: `#/shards?shard=${row.shard}` }, row.shard) },
      { title: "Lane", num: true, cell: (row) => row.lane },
    ],
    empty: ["Nobody yet", "Users appear with their first message or group. Is the tenant spelt right?"],
    load: async ({ cursor, search, limit }, ends) => {
      const page = await get(path`tenants/${tenant}/users`, { cursor, limit, contains: search }, ends);
      return { rows: page.users, next: page.next_cursor };
    },
  }, signal);
  main.append(table.element);
  await table.show();
}

function place(tenant, user) {
  return `#/users?${new URLSearchParams({ tenant, user })}`;
}

async function oneUser(main, tenant, user, signal) {
  const view = await get(path`tenants/${tenant}/users/${user}`, null, signal);
  const devices = new LocalTable({
    caption: "Devices with a session", page: 32,
    columns: [
      { title: "Device", cell: (row) => h("code", {}, row.device_id) },
      { title: "Session epoch", num: true, cell: (row) => row.session_epoch },
      { title: "Last seen", cell: (row) => h("span", { title: moment(row.last_seen_ms) }, ago(row.last_seen_ms)) },
      { title: "Platform", cell: (row) => row.platform ?? "–" },
      { title: "Ended by", cell: (row) => (row.ended_by ? h("code", {}, row.ended_by) : "–") },
    ],
    text: (row) => row.device_id, empty: ["No device", "The user has never signed on."],
  });
  devices.rows(view.devices);
  const push = h("section", { class: "card", "aria-label": "Push" });
  const sessions = sessionTable(tenant, user, signal);
  fill(main, head(user, `A user of ${tenant}.`, view.online ? badge("ok", "online") : badge("off", "offline"),
    h("a", { class: "button", href: `#/users?tenant=${encodeURIComponent(tenant)}` }, "All users"),
    h("a", { class: "button", href: `#/tables?${new URLSearchParams({ tab: "presence", tenant, user })}` }, "Presence at the worker"),
    h("a", { class: "button", href: `chat#${new URLSearchParams({ tenant, user })}`, target: "_blank", rel: "opener" }, "Chat as this user")),
  h("section", { class: "card" }, facts([
    ["Ordinal", number(view.ordinal)], ["MailboxShard", h("a", { href: `#/shards?shard=${view.shard}` }, view.shard)], ["Lane", view.lane],
    ["W of the lane", number(view.watermark)], ["Trimmed through", number(view.trimmed_through)], ["Shard epoch", number(view.shard_epoch)],
    ["Last seen", view.online ? "now" : ago(view.last_seen_ms)]])),
  devices.element, sessions.element, push);
  await Promise.all([sessions.show(), showPush(push, tenant, user, signal)]);
}

function sessionTable(tenant, user, signal) {
  return new RemoteTable({
    caption: "Session list", limit: 25,
    columns: [
      { title: "Conversation", cell: (row) => [h("a", { href: `#/conversations?${new URLSearchParams({ tenant, conversation: row.conversation_id })}` }, row.name || row.peer_user_id || row.conversation_id), h("div", { class: "dim mono" }, row.conversation_id)] },
      { title: "Kind", cell: (row) => row.kind },
      { title: "Unread", num: true, cell: (row) => `${number(row.unread)}${row.unread_exact ? "" : "+"}` },
      { title: "Read to", num: true, cell: (row) => `${number(row.read_seq)} of ${number(row.latest_seq)}` },
      { title: "Active", cell: (row) => h("span", { class: "nowrap", title: moment(row.activity_ms) }, ago(row.activity_ms)) },
      { title: "Marks", cell: (row) => [row.pinned && "pinned", row.muted && "muted", row.hidden && "hidden"].filter(Boolean).join(", ") || "–" },
    ],
    empty: ["No conversation", "The user is in none that has a message."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get(path`tenants/${tenant}/users/${user}/sessions`, { cursor, limit }, ends);
      return {
        rows: page.sessions, next: page.next_cursor,
        note: page.whole ? null : h("p", { class: "note warn" }, "The list is being rebuilt: conversations may be missing. Look again in a moment."),
      };
    },
  }, signal);
}

async function showPush(section, tenant, user, signal) {
  try {
    const [found, hours] = await Promise.all([get(path`tenants/${tenant}/users/${user}/push/devices`, null, signal), get(path`tenants/${tenant}/users/${user}/push/settings`, null, signal)]);
    const quiet = hours.quiet_from_min === null ? "none" : `${clock(hours.quiet_from_min)} to ${clock(hours.quiet_to_min)} ${hours.time_zone}`;
    fill(section, h("h2", {}, "Offline push"), facts([["Quiet hours", quiet], ["Mentions break them", hours.mentions_break_quiet ? "yes" : "no"], ["Registered", count(found.devices.length, "device")]]),
      found.devices.map((one) => h("div", { class: "row" }, h("code", {}, one.device_id), one.provider, one.dead ? badge("bad", `dead: ${one.dead}`) : badge("ok", "registered"),
        h("button", {
          type: "button", class: "small danger", onclick: () => confirmed({
            title: "Notify this device no more?", text: `${one.device_id} of ${user} gets no notifications until it registers again.`, action: "Remove", danger: true,
            doing: () => ask("DELETE", path`tenants/${tenant}/users/${user}/push/devices/${one.device_id}`), done: "Removed",
          }).then((done) => done !== undefined && showPush(section, tenant, user, signal)),
        }, "Remove"))));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    fill(section, h("h2", {}, "Offline push"), h("p", { class: "dim" }, error.status === 404 ? "Switched off: QIM_NOTIFICATION_PROVIDERS names no provider." : error.message));
  }
}

function clock(minutes) {
  return `${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;
}
