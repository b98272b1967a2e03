/** The shard map, leases and epochs, takeovers, and how far a split has come. */

import { get, path } from "../api.js";
import { badge, facts, fill, h, head, problem } from "../dom.js";
import { ago, moment, number } from "../format.js";
import { every } from "../live.js";
import { LocalTable } from "../table.js";
import { strip } from "./tables.js";

const KINDS = { ob: "Outbox partition", s: "MailboxShard", cs: "ConnectionShard", rm: "room partition" };

export async function shards(main, params, signal) {
  if (params.get("shard") !== null) return oneShard(main, params.get("shard"), signal);
  const said = h("div", { "aria-live": "polite" });
  const summary = h("section", { class: "card", "aria-label": "Map" });
  const split = h("section", { class: "card", "aria-label": "Split" });
  const map = shardTable();
  const leases = leaseTable();
  fill(main, head("Shards and leases", "Which shard has which users, who serves it under which epoch, and how far a split has come. `qim shard split` splits."),
    said, summary, split, map.element, leases.element);
  await every(3000, signal, async () => {
    const [view, held] = await Promise.all([get("shards", null, signal), get("leases", null, signal)]);
    fill(said);
    fill(summary, facts([["Mapping version", number(view.mapping_version)], ["Revision", number(view.revision)], ["Shards", number(view.shards.length)],
      ["At the beginning", number(view.shards_at_the_beginning)], ["Room for", `${number(view.partitions)} shards`],
      ["Without an owner", number(view.shards.filter((one) => one.lease.node === null).length)]]));
    fill(split, splitView(view.split));
    map.rows(view.shards);
    leases.rows(held.leases);
  }, (error) => fill(said, problem(error)));
}

function shardTable() {
  return new LocalTable({
    caption: "MailboxShards", search: "Shard or owner …", page: 25,
    columns: [
      { title: "Shard", num: true, cell: (row) => h("a", { href: `#/shards?shard=${row.shard}` }, row.shard), sort: (row) => row.shard },
      { title: "Came from", cell: (row) => row.came_from.join(" → ") || "–" },
      { title: "First position", num: true, cell: (row) => number(row.first_seq) },
      { title: "W", num: true, cell: (row) => number(row.watermark), sort: (row) => row.watermark },
      { title: "Records", num: true, cell: (row) => number(row.records), sort: (row) => row.records },
      { title: "Mailboxes", num: true, cell: (row) => number(row.mailboxes), sort: (row) => row.mailboxes },
      { title: "Owner", cell: (row) => (row.lease.node === null ? badge("bad", "nobody") : h("code", {}, row.lease.node)), sort: (row) => row.lease.node ?? "" },
      { title: "Epoch", num: true, cell: (row) => row.lease.epoch ?? "–", sort: (row) => row.lease.epoch ?? -1 },
    ],
    text: (row) => `${row.shard} ${row.lease.node ?? "nobody"}`, empty: ["No shards", "The log of dispatches does not exist yet: run `qim topics apply`."],
  });
}

function leaseTable() {
  return new LocalTable({
    caption: "Leases", search: "Resource, node, address …", page: 25,
    columns: [
      { title: "Resource", cell: (row) => [h("code", {}, row.resource), " ", h("span", { class: "dim" }, KINDS[row.resource.split(":")[0]])], sort: (row) => row.resource.split(":")[0] + row.resource.split(":")[1].padStart(6, "0") },
      { title: "Holder", cell: (row) => (row.node === null ? h("span", { class: "dim" }, "nobody") : h("code", {}, row.node)), sort: (row) => row.node ?? "" },
      { title: "Boot", num: true, cell: (row) => number(row.boot) },
      { title: "Epoch", num: true, cell: (row) => row.epoch ?? "–", sort: (row) => row.epoch ?? -1 },
      { title: "Ends in", num: true, cell: (row) => (row.remaining_ms === null ? "–" : `${(row.remaining_ms / 1000).toFixed(1)} s`), sort: (row) => row.remaining_ms ?? -1 },
      { title: "Address", cell: (row) => (row.address ? h("code", {}, row.address) : "–") },
    ],
    text: (row) => `${row.resource} ${row.node ?? "nobody"} ${row.address ?? ""}`, empty: ["No leases", "No role has started yet."],
  });
}

const STEPS = [
  ["planned", "Planned", () => "may still be abandoned"],
  ["prepared", "Prepared", () => "the pairs are known to everybody"],
  ["marked", "Marked", (split) => `${split.partitions_passed} of ${split.partitions} Outbox partitions passed`],
  ["settled", "Settled", (split) => `${split.shards_caught_up} of ${split.shards} old shards caught up`],
  ["done", "Done", () => "nobody waits any more"],
];

function splitView(split) {
  if (!split) return [h("h2", {}, "Split"), h("p", { class: "dim" }, "This deployment was never split.")];
  const now = STEPS.findIndex(([name]) => name === split.step);
  return [
    h("header", {}, h("h2", {}, `Split to mapping version ${split.version}`), badge(split.step === "done" ? "ok" : "warn", split.step === "done" ? "done" : "under way")),
    h("ol", { class: "steps" }, STEPS.map(([name, title, text], at) => h("li", { class: at < now || split.step === "done" ? "done" : at === now ? "now" : "", "data-step": name },
      h("strong", {}, title), h("div", { class: "dim" }, text(split))))),
    split.step === "done" ? null : h("label", { class: "field" }, "Outbox partitions that fan-out has passed", h("progress", { value: split.partitions_passed, max: split.partitions })),
    h("p", {}, split.pairs.slice(0, 12).map((pair) => `${pair.old} → ${pair.new} from ${number(pair.first)}`).join(", "), split.pairs.length > 12 ? ` and ${split.pairs.length - 12} more` : ""),
    split.step === "done" ? null : h("p", { class: "dim" }, "A split that stands still goes on when `qim shard split` is given again."),
  ];
}

async function oneShard(main, shard, signal) {
  const said = h("div", { "aria-live": "polite" });
  const place = h("div", { class: "stack" });
  const numbers = h("tbody", {});
  const takeovers = h("div", {});
  fill(main, head(`Shard ${shard}`, "W of its 64 lanes as the store has it, and its last takeovers.",
    h("a", { class: "button", href: "#/shards" }, "All shards"), h("a", { class: "button", href: `#/tables?tab=dispatch&partition=${encodeURIComponent(shard)}` }, "DispatchProgress")), said, place, lanesTable(numbers), takeovers);
  await every(3000, signal, async () => {
    const view = await get(path`shards/${shard}`, null, signal);
    fill(said);
    fill(place,
      h("section", { class: "card" }, facts([["Owner", view.lease.node ?? "nobody"], ["Epoch of the lease", view.lease.epoch ?? "–"], ["Last writer's epoch", view.epoch ?? "–"],
        ["W", number(Math.min(...view.lanes))], ["Foremost lane", number(Math.max(...view.lanes))]]), strip(view.lanes)));
    fill(numbers, laneRows(view.lanes));
    fill(takeovers, boundaries(view.boundaries));
  }, (error) => fill(said, problem(error)));
}

const LANES_IN_ROW = 8;

function laneRows(lanes) {
  return Array.from({ length: lanes.length / LANES_IN_ROW }, (_, row) => h("tr", {}, h("th", { scope: "row" }, row * LANES_IN_ROW),
    lanes.slice(row * LANES_IN_ROW, (row + 1) * LANES_IN_ROW).map((seq) => h("td", { class: "num" }, number(seq)))));
}

function lanesTable(body) {
  return h("details", { class: "card" }, h("summary", {}, "Every lane as a number"), h("div", { class: "table-wrap" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Lane"), Array.from({ length: LANES_IN_ROW }, (_, at) => h("th", { scope: "col", class: "num" }, `+${at}`)))), body)));
}

function boundaries(rows) {
  return h("div", { class: "table-wrap" }, h("table", {}, h("caption", {}, "Takeovers, the newest first"),
    h("thead", {}, h("tr", {}, ["Epoch", "Granted", "W then"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.length ? rows.map((one) => h("tr", {}, h("td", {}, one.epoch ?? "–"), h("td", {}, `${moment(one.granted_at_ms)} (${ago(one.granted_at_ms)})`),
      h("td", {}, one.watermark_min === one.watermark_max ? number(one.watermark_min) : `${number(one.watermark_min)}–${number(one.watermark_max)}`)))
      : h("tr", {}, h("td", { class: "empty", colspan: 3 }, h("strong", {}, "None is on record"), "The store keeps the last takeovers; after a loss of Redis they begin anew.")))));
}
