/** DispatchProgress, W[lane] and presence, read from the workers that own them; the store's W beside it. */

import { get, path } from "../api.js";
import { badge, fill, h, head, problem, words } from "../dom.js";
import { ago, moment, number } from "../format.js";
import { every } from "../live.js";
import { LocalTable, RemoteTable } from "../table.js";
import { tenantField } from "../tenant.js";

const TABS = [["lanes", "W[lane]", lanesTab], ["dispatch", "DispatchProgress", dispatchTab], ["presence", "Presence", presenceTab], ["fanout", "Fan-out", fanoutTab]];

export async function tables(main, params, signal) {
  const wanted = TABS.find(([name]) => name === params.get("tab")) || TABS[0];
  const place = h("div", { class: "stack" });
  fill(main, head("Tables", "What the workers keep, asked of the worker that owns each shard. A worker that does not answer is named; nothing is shown in its place."),
    h("div", { class: "row", role: "navigation", "aria-label": "Tables" }, TABS.map(([name, title]) => h("a", {
      class: "button", href: `#/tables?tab=${name}`, "aria-current": name === wanted[0] ? "page" : null,
    }, title))), place);
  await wanted[2](place, params, signal);
}

/** What workers did not say. */
export function silence(page) {
  const parts = [];
  if (page.note) parts.push(h("p", { class: "note warn", role: "status" }, h("strong", {}, "No worker answers for this"), words(page.note)));
  for (const one of page.unanswered) {
    parts.push(h("p", { class: "note bad", role: "alert" }, h("strong", {}, `${hostOf(one.worker)} does not answer`), `${one.why.replace(/[.?!]$/, "")}. Look at its log and at `, h("a", { href: "#/topology" }, "the topology"), "."));
  }
  return parts;
}

/** 64 lanes: the colour says how far a lane is behind the foremost one of its shard. */
export function strip(lanes) {
  const top = Math.max(...lanes);
  const late = lanes.filter((seq) => seq < top).length;
  return h("div", {
    class: "lanes", role: "img",
    "aria-label": late ? `${late} of 64 lanes behind ${number(top)}, the last one by ${number(top - Math.min(...lanes))}` : `all 64 lanes at ${number(top)}`,
  }, lanes.map((seq, lane) => h("i", { class: seq < 0 ? "none" : `b${step(top - seq)}`, title: `lane ${lane}: ${seq}` })));
}

/** A worker by host and port. */
function hostOf(url) {
  return url.replace(/^https?:\/\//, "");
}

function step(behind) {
  return behind === 0 ? 0 : behind < 10 ? 1 : behind < 100 ? 2 : 3;
}

function legend() {
  return h("div", { class: "legend lanes-legend" }, [["b0", "at the front"], ["b1", "1–9 behind"], ["b2", "10–99 behind"], ["b3", "100 and more behind"], ["none", "nothing yet"]]
    .map(([name, text]) => h("span", {}, h("i", { class: `key ${name}` }), text)));
}

async function lanesTab(place, params, signal) {
  const said = h("div", { class: "stack", "aria-live": "polite" });
  const table = new LocalTable({
    caption: "W of each MailboxShard, as its worker keeps it", search: "Shard or worker …", page: 32,
    columns: [
      { title: "Shard", num: true, cell: (row) => h("a", { href: `#/shards?shard=${row.shard}` }, row.shard), sort: (row) => row.shard },
      { title: "W (lowest lane)", num: true, cell: (row) => number(row.covered), sort: (row) => row.covered },
      { title: "64 lanes", cell: (row) => strip(row.lanes) },
      { title: "Epoch", num: true, cell: (row) => row.epoch, sort: (row) => row.epoch },
      { title: "Written", cell: (row) => h("span", { class: "nowrap", title: moment(row.at_ms) }, ago(row.at_ms)), sort: (row) => row.at_ms },
      { title: "Worker", cell: (row) => h("code", {}, hostOf(row.worker)) },
    ],
    text: (row) => `shard ${row.shard} ${row.worker}`,
    empty: ["No rows yet", "A shard has a row from its first message on."],
  });
  fill(place, legend(), said, table.element);
  await every(3000, signal, async () => {
    const page = await get("tables/lane_watermarks/rows", null, signal);
    fill(said, silence(page));
    table.rows(page.rows.filter((row) => Array.isArray(row.lanes)));
  }, (error) => fill(said, problem(error)));
}

function shardForm(fields, params, tab) {
  const form = h("form", {
    class: "form card", onsubmit: (event) => {
      event.preventDefault();
      const query = new URLSearchParams([["tab", tab], ...new FormData(form)].filter(([, value]) => value !== ""));
      location.hash = `#/tables?${query}`;
    },
  }, fields.map(([name, title, more = {}]) => h("label", { class: "field" }, title,
    h("input", { name, value: params.get(name) ?? more.otherwise ?? "", inputmode: "numeric", pattern: "[0-9]*", autocomplete: "off", ...more.attributes }))),
  h("div", {}, h("button", { class: "primary", type: "submit" }, "Show")));
  return form;
}

async function dispatchTab(place, params, signal) {
  const shard = params.get("partition") ?? "0";
  const table = new RemoteTable({
    caption: `Pages of shard ${shard}`,
    columns: [
      { title: "Offsets", num: true, cell: (row) => (row.kind === "open" ? number(row.offset) : `${number(row.first)}–${number(row.last)}`) },
      { title: "Kind", cell: (row) => (row.kind === "open" ? badge("warn", "being written") : badge("ok", "done")) },
      { title: "Dispatches", num: true, cell: (row) => number(row.dispatches) },
      { title: "Written", cell: (row) => h("span", { class: "nowrap" }, moment(row.written_at_ms)) },
      { title: "First dispatch ids", cell: (row) => h("code", { class: "wrap" }, (row.dispatch_ids || []).slice(0, 3).join(" ") || (row.error ?? "–")) },
    ],
    empty: ["Nothing was done yet", "A page is written with the first messages of the shard, or the offset is behind the last page."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get("tables/dispatch_progress/rows", {
        partition: shard, offset: cursor ? null : params.get("offset"), limit, next_from: cursor?.from, next_after: cursor?.after,
      }, ends);
      return { rows: page.rows, next: page.next_after === null ? null : { from: page.next_from, after: page.next_after }, note: [page.worker ? h("p", { class: "dim" }, "Served by ", h("code", {}, hostOf(page.worker))) : null, silence(page)] };
    },
  }, signal);
  fill(place, shardForm([["partition", "Shard", { otherwise: "0", attributes: { required: true } }], ["offset", "From the page that holds offset (optional)"]], params, "dispatch"), table.element);
  await table.show();
}

async function presenceTab(place, params, signal) {
  const tenant = params.get("tenant") || "";
  const user = params.get("user") || "";
  const found = tenant && user ? await get(path`tenants/${tenant}/users/${user}`, null, signal) : null;
  const shard = found ? found.shard : params.get("partition") ?? "0";
  const table = new RemoteTable({
    caption: found ? `Devices of ${user} in shard ${shard}` : `Devices in shard ${shard}`,
    columns: [
      { title: "User", cell: (row) => h("a", { href: userPlace(row.tenant_id, row.user_id) }, row.user_id) },
      { title: "Device", cell: (row) => h("code", {}, row.device_id) },
      { title: "State", cell: (row) => (row.live ? badge("ok", "pushed to") : badge("warn", "its gateway has gone")) },
      { title: "ConnectionShard", num: true, cell: (row) => row.connection_shard },
      { title: "Lease epoch", num: true, cell: (row) => row.lease_epoch },
      { title: "Session epoch", num: true, cell: (row) => row.session_epoch },
      { title: "Tenant", cell: (row) => row.tenant_id },
    ],
    empty: ["Nobody is online here", "The worker knows no device of this shard: devices appear once they are signed on and synced."],
    load: async ({ cursor, limit }, ends) => {
      const page = await get("tables/presence/rows", {
        partition: shard, limit, next_from: cursor?.from, next_after: cursor?.after,
        tenant: found ? tenant : null, ordinal: found?.ordinal,
      }, ends);
      return { rows: page.rows, next: page.next_after === null ? null : { from: page.next_from, after: page.next_after }, note: [page.worker ? h("p", { class: "dim" }, "Served by ", h("code", {}, hostOf(page.worker))) : null, silence(page)] };
    },
  }, signal);
  const form = h("form", {
    class: "form card", onsubmit: (event) => {
      event.preventDefault();
      const query = new URLSearchParams([["tab", "presence"], ...new FormData(form)].filter(([, value]) => value !== ""));
      location.hash = `#/tables?${query}`;
    },
  }, h("label", { class: "field" }, "Shard", h("input", { name: "partition", inputmode: "numeric", pattern: "[0-9]*", value: params.get("partition") ?? "", placeholder: "0" })),
  tenantField(tenant, signal, false), h("label", { class: "field" }, "or one user", h("input", { name: "user", value: user, autocomplete: "off", spellcheck: "false" })),
  h("div", {}, h("button", { class: "primary", type: "submit" }, "Show")));
  fill(place, form, table.element);
  await table.show();
}

export function userPlace(tenant, user) {
  return `#/users?${new URLSearchParams({ tenant, user })}`;
}

async function fanoutTab(place, params, signal) {
  const said = h("div", { class: "stack", "aria-live": "polite" });
  const table = new LocalTable({
    caption: "Outbox partitions, as the fan-out workers keep them", page: 32,
    columns: [
      { title: "Partition", num: true, cell: (row) => row.partition, sort: (row) => row.partition },
      { title: "Dispatched through", num: true, cell: (row) => number(row.dispatched_through), sort: (row) => row.dispatched_through },
      { title: "Fence", num: true, cell: (row) => number(row.fence) },
      { title: "Written", cell: (row) => h("span", { title: moment(row.at_ms) }, ago(row.at_ms)), sort: (row) => row.at_ms },
      { title: "Worker", cell: (row) => h("code", {}, hostOf(row.worker)) },
    ],
    text: (row) => String(row.partition), empty: ["No rows yet", "A partition has a row from its first message on."],
  });
  fill(place, said, table.element);
  await every(3000, signal, async () => {
    const page = await get("tables/conversation_progress/rows", null, signal);
    fill(said, silence(page));
    table.rows(page.rows);
  }, (error) => fill(said, problem(error)));
}
