/**
 * Two tabs that chat: each signs on as a user with a token that the admin API mints, and speaks to a gateway
 * through `qim-client.js`. Who chats is in the hash (`chat#tenant=demo&user=ann&with=ben`); tokens are nowhere
 * but in memory. A tab keeps its cursor while it lives: a reload goes on where it was.
 */

import { QimClient, WebStore, newId, text } from "../qim-client.js";
import { ApiError, ask, get, key, path } from "./api.js";
import { badge, fill, h, head, problem } from "./dom.js";
import { moment } from "./format.js";

const main = document.getElementById("main");
const SHOWN_MAX = 500; // messages of a conversation in the document
const WORDS = { online: ["ok", "online"], offline: ["bad", "offline"], connecting: ["warn", "connecting"], authenticating: ["warn", "signing on"], syncing: ["warn", "catching up"], completing: ["warn", "catching up"] };

let chat = null;

function begin() {
  chat?.end();
  chat = null;
  const given = new URLSearchParams(location.hash.slice(1));
  const tenant = given.get("tenant");
  const user = given.get("user");
  if (!key.get()) return needsKey();
  if (!tenant || !user) return choose(tenant, user, given.get("with"));
  chat = new Chat(tenant, user, given.get("with"));
  return chat.run();
}

function needsKey() {
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const said = h("div", { "aria-live": "polite" });
  fill(main, h("form", {
    class: "card signin", onsubmit: async (event) => {
      event.preventDefault();
      try { await ask("GET", "gateways", { as: field.value }); key.set(field.value); begin(); } catch (error) { fill(said, problem(error)); }
    },
  }, h("h1", {}, "Sign in"), h("p", { class: "dim" }, "This tab needs the admin key to mint a token for the user who chats."),
  h("label", { class: "field", for: "key" }, "Admin key", field), said, h("div", {}, h("button", { class: "primary", type: "submit" }, "Sign in"))));
  field.focus();
}

function choose(tenant, user, peer) {
  const field = (name, title, value, required = true) => h("label", { class: "field" }, title,
    h("input", { name, value: value || "", required, autocomplete: "off", spellcheck: "false", pattern: "[A-Za-z0-9][A-Za-z0-9._@~\\-]{0,127}" }));
  fill(main, head("Chat", "Open this page in two tabs, as two users, and let them talk through the real pipeline.", h("a", { class: "button", href: "./" }, "Console")),
    h("form", {
      class: "form card", onsubmit: (event) => { event.preventDefault(); location.hash = new URLSearchParams([...new FormData(event.target)].filter(([, value]) => value)); },
    }, field("tenant", "Tenant", tenant || sessionStorage.getItem("qim.console.tenant") || "demo"), field("user", "I am", user), field("with", "I talk to (optional)", peer, false),
    h("div", {}, h("button", { class: "primary", type: "submit" }, "Chat"))));
}

class Chat {
  constructor(tenant, user, peer) {
    Object.assign(this, { tenant, user, peer, messages: new Map(), conversation: null, pending: new Map() });
    this.state = h("span", { role: "status" });
    this.said = h("div", { class: "stack", "aria-live": "polite" });
    this.list = h("ul", { class: "chat-list" });
    this.title = h("h2", {}, "–");
    this.log = h("div", { class: "log", role: "log", tabindex: 0, "aria-label": "Messages" });
    this.field = h("input", { name: "text", autocomplete: "off", placeholder: "Write a message …", "aria-label": "Message", maxlength: 4000 });
  }

  async run() {
    fill(main, head(`${this.user}`, `Chatting as a user of ${this.tenant}. Messages take the real way: gateway, writer, fan-out, mailbox, gateway.`,
      this.state, h("button", { type: "button", onclick: () => this.another() }, this.peer ? `Second tab as ${this.peer}` : "Second tab"), h("a", { class: "button", href: "./" }, "Console")),
    this.said, h("div", { class: "chat" },
      h("section", { class: "card", "aria-label": "Conversations" }, h("h2", {}, "Conversations"), this.newChat(), this.list),
      h("section", { class: "card", "aria-label": "Conversation" }, this.title, this.log, h("form", { class: "row send", onsubmit: (event) => this.send(event) }, this.field, h("button", { class: "primary", type: "submit" }, "Send")))));
    this.show("connecting");
    try {
      const { urls } = await get("gateways");
      if (!urls.length) throw new ApiError("No gateway serves now.", { title: "No gateway", remedy: "Start one (`qim gateway`), then load this page again: it may connect to gateways that served when it was loaded." });
      this.connect(urls[Math.floor(Math.random() * urls.length)]);
    } catch (error) {
      this.show("offline");
      fill(this.said, problem(error, () => location.reload()));
    }
  }

  connect(url) {
    const device = `console-${tabId()}`;
    const client = this.client = new QimClient({
      url, deviceId: device, store: new WebStore(`${this.tenant}.${this.user}.${device}`, sessionStorage),
      token: async () => (await ask("POST", path`tenants/${this.tenant}/tokens`, { body: { user_id: this.user, ttl_s: 3600 } })).access_token,
    });
    client.on("state", (phase) => { this.show(phase); if (phase === "online") { fill(this.said); this.refresh(); } });
    client.on("message", (event) => this.take(event.message));
    client.on("sessions", () => this.drawList());
    client.on("disconnected", ({ reason, retryMs }) => fill(this.said, h("p", { class: "note warn" }, h("strong", {}, "Not connected"), `${reason}; tried again in ${(retryMs / 1000).toFixed(1)} s. What you write is sent then.`)));
    client.on("rebuild", (reason) => fill(this.said, h("p", { class: "note" }, `The mailbox reaches no further back (${reason}): missing messages are read from history.`)));
    client.on("stopped", (error) => { this.show("offline"); fill(this.said, problem(new ApiError(error.message, { title: "Ended", remedy: "Load the page again to sign on anew." }), () => location.reload())); });
    client.start();
  }

  end() { this.client?.close(); }

  show(phase) { fill(this.state, badge(...(WORDS[phase] ?? ["off", phase]))); }

  another() { window.open(`chat#${new URLSearchParams({ tenant: this.tenant, ...(this.peer ? { user: this.peer } : {}), with: this.user })}`); }

  newChat() {
    const field = h("input", { "aria-label": "User to talk to", placeholder: "User id …", value: this.peer || "", autocomplete: "off", spellcheck: "false" });
    return h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); if (field.value) this.openWith(field.value); } }, field, h("button", { type: "submit", class: "small" }, "Talk"));
  }

  async refresh() {
    try {
      await this.client.loadSessions();
      if (!this.conversation && this.peer) await this.openWith(this.peer);
    } catch (error) {
      if (!error.outcomeUnknown) fill(this.said, problem(error));
    }
  }

  async openWith(user) {
    this.peer = user;
    const found = await get(path`tenants/${this.tenant}/direct`, { user_id: this.user, peer_id: user });
    await this.open(found.conversation_id, user, Boolean(found.conversation));
  }

  async open(conversation, title, exists = true) {
    this.conversation = conversation;
    fill(this.title, title);
    this.drawList();
    this.drawLog();
    this.field.focus();
    if (!exists || this.messages.get(conversation)?.whole) return;
    const page = await this.client.history(conversation).catch(() => null);
    if (page) {
      for (const message of page.messages) this.keep(message);
      this.of(conversation).whole = true;
      this.drawLog();
      this.read();
    }
  }

  of(conversation) {
    if (!this.messages.has(conversation)) this.messages.set(conversation, { rows: new Map(), whole: false });
    return this.messages.get(conversation);
  }

  keep(message) {
    const { rows } = this.of(message.conversation_id);
    if (message.kind !== 0) { // an edit or recall names the message that it changes
      const target = rows.get(message.target_seq);
      if (target) rows.set(message.target_seq, { ...target, state: message.state, body: message.body });
    } else rows.set(message.conversation_seq, message);
    while (rows.size > SHOWN_MAX) rows.delete(Math.min(...rows.keys()));
  }

  take(message) {
    this.keep(message);
    if (message.conversation_id === this.conversation) { this.drawLog(); this.read(); }
    clearTimeout(this.soon);
    this.soon = setTimeout(() => { if (this.client.phase === "online") this.refresh(); }, 400);
  }

  read() {
    if (document.hidden || this.client.phase !== "online") return;
    const last = Math.max(0, ...this.of(this.conversation).rows.keys());
    if (last) this.client.markRead(this.conversation, last).catch(() => { /* the next message or the next connection does it */ });
  }

  drawList() {
    const rows = [...this.client.book.rows.values()].filter((row) => !row.hidden).sort((a, b) => b.activity - a.activity);
    fill(this.list, rows.map((row) => {
      const title = row.name || row.peer_user_id || row.conversation_id;
      return h("li", {}, h("button", { type: "button", "aria-current": row.conversation_id === this.conversation ? "true" : null, onclick: () => this.open(row.conversation_id, title) },
        h("span", { class: "name" }, title), row.unread ? badge("warn", `${row.unread}${row.unread_exact ? "" : "+"} new`) : null));
    }), rows.length ? null : h("li", { class: "dim" }, "None yet: talk to somebody."));
    const open = this.client.book.rows.get(this.conversation);
    this.peerRead = open?.peer_read_seq ?? 0;
  }

  drawLog() {
    const rows = [...this.of(this.conversation).rows.values()].sort((a, b) => a.conversation_seq - b.conversation_seq);
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    const waiting = [...this.pending.values()].filter((one) => one.conversation === this.conversation);
    fill(this.log, rows.map((one) => this.bubble(one)), waiting.map((one) => h("div", { class: "msg mine pending" }, one.text, h("div", { class: "meta" }, one.failed ? `not sent: ${one.failed}` : "sending …"))),
      rows.length || waiting.length ? null : h("p", { class: "dim" }, "No message yet."));
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  bubble(one) {
    const mine = one.sender_id === this.user;
    return h("div", { class: `msg ${mine ? "mine" : ""}`, "data-seq": one.conversation_seq },
      mine ? null : h("div", { class: "meta" }, one.sender_id),
      one.state === 2 ? h("em", {}, "recalled") : text(one.body),
      h("div", { class: "meta" }, `${moment(one.committed_at).slice(11, 19)} · ${one.conversation_seq}${one.state === 1 ? " · edited" : ""}`));
  }

  async send(event) {
    event.preventDefault();
    const words = this.field.value;
    if (!words || !this.conversation) return;
    this.field.value = "";
    const target = this.client.book.rows.has(this.conversation) ? { conversation: this.conversation } : { user: this.peer };
    const mark = Symbol(words);
    this.pending.set(mark, { conversation: this.conversation, text: words });
    this.drawLog();
    try {
      await this.client.send(words, target);
      this.pending.delete(mark);
    } catch (error) {
      this.pending.get(mark).failed = error.message;
    }
    this.drawLog();
  }
}

/** One device per tab: a reload is the same device, a tab that this one opens another (its name is empty). */
function tabId() {
  if (!/^tab-[0-9a-z]{8}$/.test(window.name)) window.name = `tab-${newId().slice(0, 8)}`;
  return window.name;
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", begin);
addEventListener("visibilitychange", () => { if (!document.hidden && chat?.conversation && chat.client) chat.read(); });
begin();
