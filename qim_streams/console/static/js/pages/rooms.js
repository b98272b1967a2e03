/** Chat rooms: which are open, who governs them, how many are in; govern and close. */

import { ask, get, path } from "../api.js";
import { confirmed } from "../ask.js";
import { badge, facts, fill, h, head } from "../dom.js";
import { moment, number } from "../format.js";
import { RemoteTable } from "../table.js";
import { tenantForm, tenantOf } from "../tenant.js";

const ACTIONS = [["announce", "Announce", "text"], ["mute", "Mute a user", "user"], ["unmute", "Unmute a user", "user"], ["mute_all", "Mute everybody", null], ["unmute_all", "Let everybody speak", null], ["kick", "Send a user out", "user"]];

export async function rooms(main, params, signal) {
  const tenant = tenantOf(params);
  if (tenant && params.get("room")) return oneRoom(main, tenant, params.get("room"), signal);
  fill(main, head("Rooms", "Open chat rooms. Nothing of a room is in any mailbox or archive.",
    tenant ? h("button", { type: "button", class: "primary", onclick: () => newRoom(tenant) }, "New room") : null),
  tenantForm(tenant, "rooms", signal, h("label", { class: "field" }, "Open by id", h("input", { name: "room", autocomplete: "off", spellcheck: "false" }))));
  if (!tenant) return main.append(h("p", { class: "note" }, "Choose a tenant."));
  const table = new RemoteTable({
    caption: `Rooms of ${tenant}`,
    columns: [{ title: "Room", cell: (row) => h("a", { href: place(tenant, row) }, row) }],
    empty: ["No room is open", "Rooms are made here, by the API or by users, and end when they are closed."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get(path`tenants/${tenant}/rooms`, { after_room_id: cursor, limit }, ends);
      return { rows: page.room_ids, next: page.next_room_id };
    },
  }, signal);
  main.append(table.element);
  await table.show();
}

function place(tenant, room) {
  return `#/rooms?${new URLSearchParams({ tenant, room })}`;
}

function newRoom(tenant) {
  const field = (name, title, more = {}) => h("label", { class: "field" }, title, h("input", { name, autocomplete: "off", spellcheck: "false", ...more }));
  return confirmed({
    title: "New room", action: "Create", fields: [field("room_id", "Id", { required: true }), field("name", "Name"), field("owner", "Owner (empty: only operators govern it)"),
      h("label", { class: "field" }, "Who may join", h("select", { name: "join_policy" }, h("option", { value: "open" }, "everybody"), h("option", { value: "members" }, "members only")))],
    doing: (given) => ask("POST", path`tenants/${tenant}/rooms`, { body: { ...given, owner: given.owner || null } }), done: (made) => `${made.room_id} is open`,
  }).then((made) => { if (made) location.hash = place(tenant, made.room_id); });
}

async function oneRoom(main, tenant, room, signal) {
  const one = await get(path`tenants/${tenant}/rooms/${room}`, null, signal);
  const again = (done) => done !== undefined && oneRoom(main, tenant, room, signal);
  fill(main, head(one.name || room, `A room of ${tenant}.`, one.closed ? badge("off", "closed") : badge("ok", "open"), one.muted_all ? badge("warn", "everybody muted") : null,
    h("a", { class: "button", href: `#/rooms?tenant=${encodeURIComponent(tenant)}` }, "All rooms")),
  h("section", { class: "card" }, facts([["Id", h("code", {}, room)], ["Connections", number(one.member_count)], ["Messages of this epoch", number(one.room_seq)], ["Epoch", number(one.epoch)],
    ["Owner", one.owner ?? "operators"], ["Who may join", one.join_policy], ["Made", moment(one.created_at)]])),
  one.closed ? null : h("section", { class: "card" }, h("h2", {}, "Govern"), h("div", { class: "row" },
    ACTIONS.map(([action, title, needs]) => h("button", { type: "button", onclick: () => act(tenant, room, action, title, needs).then(again) }, title)),
    h("button", { type: "button", class: "danger", onclick: () => close(tenant, room).then(again) }, "Close the room"))));
}

function act(tenant, room, action, title, needs) {
  const fields = needs === "user" ? [h("label", { class: "field" }, "User id", h("input", { name: "user_id", required: true, autocomplete: "off", spellcheck: "false" })),
    ["mute", "kick"].includes(action) ? h("label", { class: "field" }, "For how many seconds (0: for ever, or sent out once)", h("input", { name: "seconds", value: "0", inputmode: "numeric", pattern: "[0-9]{1,9}" })) : null]
    : needs === "text" ? [h("label", { class: "field" }, "Text for everybody in the room", h("input", { name: "text", required: true, maxlength: 512, autocomplete: "off" }))] : [];
  return confirmed({
    title: `${title}?`, text: `In ${room} of ${tenant}, as the operator.`, action: title, fields,
    doing: (given) => ask("POST", path`tenants/${tenant}/rooms/${room}/actions`, { body: { action, user_id: given.user_id || null, seconds: Number(given.seconds || 0), text: given.text || "" } }), done: "Done",
  });
}

function close(tenant, room) {
  return confirmed({
    title: "Close this room?", text: "Everybody is sent out and the room is gone for good.", action: "Close", danger: true, word: room,
    doing: () => ask("DELETE", path`tenants/${tenant}/rooms/${room}`), done: "Closed",
  });
}
