/** The stages with live rates, lag and health; one of them opened to its partitions and processes. */

import { get } from "../api.js";
import { badge, facts, fill, h, head, problem, svg } from "../dom.js";
import { count, moment, number, rate, seconds } from "../format.js";
import { every, lookNow } from "../live.js";
import { LocalTable } from "../table.js";

const HISTORY = 60; // looks in a spark line
const WORDS = { ok: "healthy", warn: "look at it", bad: "fault", off: "off", unknown: "unknown" };

export async function topology(main, params, signal) {
  const state = { open: params.get("stage"), rates: new Map(), cards: new Map() };
  const problems = h("div", { "aria-live": "polite" });
  const flow = h("ul", { class: "flow" });
  state.table = stageTable();
  const info = h("div", { class: "stack" });
  const detail = h("section", { class: "card", "aria-label": "Stage", hidden: true }, info, state.table.element);
  const stamp = h("span", { class: "dim" }, "measuring …");
  fill(main, head("Topology", "Every stage in the order of a message’s way. Rates are over the last ten seconds; lag is what waits in front of a stage.", stamp),
    problems, flow, detail);
  Object.assign(state, { flow, detail, info });
  await every(2000, signal, async () => {
    state.view = await get("topology", { partitions_of: state.open ?? "-" }, signal);
    stamp.textContent = `as of ${moment(state.view.at_ms).slice(11, 19)}`;
    fill(problems, state.view.problems.map((text) => h("p", { class: "note bad" }, text)));
    for (const stage of state.view.stages) note(state.rates, stage);
    draw(state);
  }, (error) => { fill(problems, problem(error)); stamp.textContent = "not up to date"; });
}

function note(rates, stage) {
  const seen = rates.get(stage.name) || [];
  seen.push(stage.in_per_s ?? 0);
  rates.set(stage.name, seen.slice(-HISTORY));
}

function draw(state) {
  for (const stage of state.view.stages) {
    if (!state.cards.has(stage.name)) {
      const card = h("button", { type: "button", class: "stage", onclick: () => toggle(stage.name, state) });
      state.cards.set(stage.name, card);
      state.flow.append(h("li", {}, card));
    }
    drawCard(state.cards.get(stage.name), stage, state);
  }
  const opened = state.view.stages.find((stage) => stage.name === state.open);
  state.detail.hidden = !opened;
  if (!opened) return;
  const here = opened.partitions.length > 0 || opened.partitions_total === 0; // else they come with the next look
  state.table.element.hidden = !here;
  if (here) drawDetail(state.info, opened, state);
  else fill(state.info, h("header", {}, h("h2", {}, opened.title)), h("p", { class: "dim" }, "loading …"));
}

function toggle(name, state) {
  state.open = state.open === name ? null : name;
  history.replaceState(null, "", `#/topology${state.open ? `?stage=${encodeURIComponent(state.open)}` : ""}`);
  draw(state);
  if (state.open) state.detail.scrollIntoView({ block: "nearest" });
  lookNow();
}

function drawCard(card, stage, state) {
  card.className = `stage ${stage.health}`;
  card.setAttribute("aria-expanded", String(state.open === stage.name));
  card.dataset.stage = stage.name;
  fill(card,
    h("span", { class: "top" }, stage.title, badge(stage.health, WORDS[stage.health])),
    h("span", { class: "figures" },
      h("span", {}, "In", h("b", {}, ` ${rate(stage.in_per_s)}`)),
      h("span", {}, stage.done_per_s === null ? "Partitions" : "Done", h("b", {}, ` ${stage.done_per_s === null ? owned(stage) : rate(stage.done_per_s)}`)),
      stage.lag_records === null ? null : [h("span", {}, "Lag", h("b", {}, ` ${number(stage.lag_records)}`)),
        h("span", {}, "Behind", h("b", {}, ` ${seconds(stage.lag_s)}`))]),
    spark(state.rates.get(stage.name)));
}

function owned(stage) {
  return `${stage.partitions_owned} of ${stage.partitions_total}`;
}

function spark(values) {
  const top = Math.max(1, ...values);
  const from = HISTORY - values.length;
  const points = values.map((value, at) => `${((from + at) * 100) / (HISTORY - 1)},${27 - (value / top) * 25}`).join(" ");
  return svg("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 100, y1: 27.5, y2: 27.5 }), svg("polyline", { points }));
}

function stageTable() {
  return new LocalTable({
    caption: "Partitions", search: "Partition, owner, state …", page: 16,
    columns: [
      { title: "Partition", num: true, cell: (row) => row.partition, sort: (row) => row.partition },
      { title: "State", cell: (row) => [badge(row.health, WORDS[row.health]), row.reason ? h("div", { class: "dim" }, row.reason) : null], sort: (row) => row.health },
      { title: "In", num: true, cell: (row) => rate(row.in_per_s), sort: (row) => row.in_per_s ?? -1 },
      { title: "Done", num: true, cell: (row) => rate(row.done_per_s), sort: (row) => row.done_per_s ?? -1 },
      { title: "Lag", num: true, cell: (row) => number(row.lag_records), sort: (row) => row.lag_records ?? -1 },
      { title: "Behind", num: true, cell: (row) => seconds(row.lag_s), sort: (row) => row.lag_s ?? -1 },
      { title: "Position", num: true, cell: (row) => number(row.done) },
      { title: "End", num: true, cell: (row) => number(row.end) },
      { title: "Owner", cell: (row) => (row.owner === null ? h("span", { class: "dim" }, "nobody") : h("code", {}, row.owner)), sort: (row) => row.owner ?? "" },
      { title: "Epoch", num: true, cell: (row) => (row.epoch === null ? "–" : row.epoch) },
    ],
    text: (row) => `${row.source} ${row.partition} ${row.owner ?? "nobody"} ${WORDS[row.health]} ${row.reason ?? ""}`,
    empty: ["No partitions", "The broker does not know the topic of this stage: run `qim topics apply`."],
  });
}

function drawDetail(info, stage, state) {
  state.table.rows(stage.partitions);
  const sources = [...new Set(stage.partitions.map((one) => one.source))].join(", ");
  fill(info,
    h("header", {}, h("h2", {}, stage.title), badge(stage.health, WORDS[stage.health])),
    facts([[stage.lag_records === null ? "Log" : "Reads", h("code", {}, sources)], ["Partitions with an owner", owned(stage)],
      ...(stage.lag_records === null ? [] : [["Lag", count(stage.lag_records, "record")], ["Behind", seconds(stage.lag_s)]])]),
    stage.reasons.length ? h("div", { class: `note ${stage.health === "bad" ? "bad" : "warn"}` },
      h("strong", {}, "Why"), stage.reasons.slice(0, 8).map((text) => h("p", {}, text)),
      stage.reasons.length > 8 ? h("p", {}, `and ${stage.reasons.length - 8} more`) : null) : null,
    h("h3", {}, "Processes"), workers(stage));
}

function workers(stage) {
  if (!stage.workers.length) return h("p", { class: "dim" }, "None is known.");
  return h("div", { class: "table-wrap" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Process", "Serves", "Partitions", "Why not"].map((title) => h("th", { scope: "col", class: title === "Partitions" ? "num" : null }, title)))),
    h("tbody", {}, stage.workers.map((one) => h("tr", {},
      h("td", {}, h("code", {}, one.name)),
      h("td", {}, one.ready === null ? badge("off", "not asked") : badge(one.ready ? "ok" : "bad", one.ready ? "ready" : "not ready")),
      h("td", { class: "num" }, one.partitions), h("td", {}, one.reasons.join("; ") || "–"))))));
}
