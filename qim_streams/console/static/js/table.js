/**
 * Tables that hold with thousands of rows: a page of rows is in the document, never all of them.
 *
 * `LocalTable`: all rows are here; search, sorting and paging happen in the browser.
 * `RemoteTable`: rows are asked for page by page; `load({cursor, search, limit}, signal)` gives {rows, next}.
 *
 * columns: {title, cell(row), num?, sort?(row)}.
 */

import { fill, h, problem } from "./dom.js";
import { number } from "./format.js";

const PAGE = 50;

function frame(options) {
  const body = h("tbody", {});
  const table = h("table", {},
    options.caption ? h("caption", {}, options.caption) : null,
    h("thead", {}, h("tr", {}, options.columns.map((one) => headCell(one, options)))), body);
  return { body, table, wrap: h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": options.caption || "Table" }, table) };
}

function headCell(column, options) {
  const inner = column.sort && options.sortBy
    ? h("button", { type: "button", class: "ghost small", onclick: () => options.sortBy(column) }, column.title)
    : column.title;
  return h("th", { scope: "col", class: column.num ? "num" : null }, inner);
}

function cells(columns, row) {
  return columns.map((one) => h("td", { class: one.num ? "num" : null }, one.cell(row)));
}

function emptyRow(columns, [title, remedy]) {
  return h("tr", {}, h("td", { class: "empty", colspan: columns.length }, h("strong", {}, title), remedy));
}

function searchField(text, listener) {
  let timer = null;
  return h("input", {
    type: "search", placeholder: text, "aria-label": text, autocomplete: "off", spellcheck: "false",
    oninput: (event) => { clearTimeout(timer); timer = setTimeout(() => listener(event.target.value.trim()), 200); },
  });
}

export class LocalTable {
  constructor(options) {
    this.options = { page: PAGE, ...options, sortBy: (column) => this.sortBy(column) };
    this.all = [];
    this.at = 0;
    this.search = "";
    this.order = null;
    const { body, wrap, table } = frame(this.options);
    Object.assign(this, { body, table });
    this.pager = h("div", { class: "pager" });
    this.element = h("div", { class: "card" },
      options.search ? h("div", { class: "tools" }, h("div", { class: "search" }, searchField(options.search, (text) => { this.search = text.toLowerCase(); this.at = 0; this.draw(); }))) : null,
      wrap, this.pager);
  }

  rows(all) {
    this.all = all;
    this.draw();
  }

  sortBy(column) {
    this.order = this.order?.column === column ? { column, down: !this.order.down } : { column, down: false };
    this.draw();
  }

  found() {
    const wanted = this.search ? this.all.filter((row) => this.options.text(row).toLowerCase().includes(this.search)) : this.all;
    if (!this.order) return wanted;
    const { column, down } = this.order;
    const value = column.sort;
    return [...wanted].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (down ? -1 : 1));
  }

  draw() {
    const { columns, page, empty } = this.options;
    const found = this.found();
    this.at = Math.min(this.at, Math.max(0, Math.ceil(found.length / page) - 1));
    const part = found.slice(this.at * page, (this.at + 1) * page);
    [...this.table.querySelectorAll("thead th")].forEach((cell, at) => {
      if (this.order?.column === columns[at]) cell.setAttribute("aria-sort", this.order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    fill(this.body, part.length ? part.map((row) => h("tr", {}, cells(columns, row)))
      : emptyRow(columns, this.search ? ["Nothing found", `No row has “${this.search}”. Search for less.`] : empty));
    const last = Math.ceil(found.length / page) - 1;
    this.pager.hidden = last < 1;
    fill(this.pager, h("span", { class: "dim" }, `${number(this.at * page + 1)}–${number(this.at * page + part.length)} of ${number(found.length)}`),
      h("span", { class: "row" }, this.step("Previous", -1, this.at === 0), this.step("Next", 1, this.at >= last)));
  }

  step(title, by, disabled) {
    return h("button", { type: "button", class: "small", disabled, onclick: () => { this.at += by; this.draw(); } }, title);
  }
}

export class RemoteTable {
  constructor(options, signal) {
    this.options = { limit: PAGE, ...options };
    this.signal = signal;
    this.cursors = [null];
    this.search = "";
    const { body, wrap } = frame(this.options);
    Object.assign(this, { body, wrap });
    this.pager = h("div", { class: "pager" });
    this.said = h("div", { "aria-live": "polite" });
    this.element = h("div", { class: "card" },
      options.search || options.tools ? h("div", { class: "tools" },
        options.search ? h("div", { class: "search" }, searchField(options.search, (text) => { this.search = text; this.restart(); })) : h("span", {}),
        options.tools ? h("div", { class: "row" }, options.tools) : null) : null,
      this.said, wrap, this.pager);
    this.waiting();
  }

  /** From the first page. */
  restart() {
    this.cursors = [null];
    return this.show();
  }

  waiting() {
    fill(this.body, Array.from({ length: 5 }, () => h("tr", { class: "skeleton" }, this.options.columns.map(() => h("td", {})))));
    fill(this.pager, h("span", { class: "dim" }, "loading …"));
  }

  async show() {
    const turn = this.turn = {};
    this.wrap.setAttribute("aria-busy", "true");
    try {
      const answer = await this.options.load(
        { cursor: this.cursors.at(-1), search: this.search, limit: this.options.limit }, this.signal);
      if (turn !== this.turn) return; // another page was asked for meanwhile
      this.draw(answer);
    } catch (error) {
      if (turn !== this.turn || error.name === "AbortError") return;
      fill(this.said, problem(error, () => this.show()));
      fill(this.body, emptyRow(this.options.columns, ["Nothing can be shown", "The reason is above."]));
      fill(this.pager);
    } finally {
      this.wrap.removeAttribute("aria-busy");
    }
  }

  draw({ rows, next, note }) {
    const { columns, empty } = this.options;
    fill(this.said, note || null);
    fill(this.body, rows.length ? rows.map((row) => h("tr", {}, cells(columns, row)))
      : emptyRow(columns, this.search ? ["Nothing found", next ? "Nothing in this part; go on with “Next”." : `Nothing has “${this.search}”.`] : empty));
    const first = this.cursors.length === 1;
    fill(this.pager, h("span", { class: "dim" }, `Page ${number(this.cursors.length)}, ${number(rows.length)} ${rows.length === 1 ? "row" : "rows"}`),
      first && !next ? null : h("span", { class: "row" },
        h("button", { type: "button", class: "small", disabled: first, onclick: () => { this.cursors.pop(); this.show(); } }, "Previous"),
        h("button", { type: "button", class: "small", disabled: !next, onclick: () => { this.cursors.push(next); this.show(); } }, "Next")));
  }
}
