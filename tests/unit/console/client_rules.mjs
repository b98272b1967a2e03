// The rules of qim-client.js against a scripted server. Run by test_javascript_client.py: `node --test`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const source = readFileSync(process.env.QIM_TEST_CLIENT);
const { Inbox, MemoryStore, QimClient, QimError, SessionBook, WebStore, backoff, base64url, text } = await import(`data:text/javascript;base64,${source.toString("base64")}`);

const event = (seq, mailbox = seq, conversation = "c") => ({ mailbox_seq: mailbox, event_ordinal: 0, event_id: `e${conversation}${seq}`, flags: 3, message: { conversation_id: conversation, conversation_seq: seq, sender_id: "ben", kind: 0, state: 0, committed_at: 1, message_id: `m${seq}`, body: base64url(new TextEncoder().encode(`text ${seq}`)) } });
const seqs = (events) => events.map((one) => one.message.conversation_seq);
const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(condition, what, ms = 20000) {
  const end = Date.now() + ms;
  while (!condition()) {
    assert.ok(Date.now() < end, `not in time: ${what}`);
    await later(5);
  }
}

// -- inbox

test("what follows is shown at once, what does not waits for a pull", () => {
  const inbox = new Inbox({ c: 4 });
  assert.deepEqual(seqs(inbox.pushed([event(5)])), [5]);
  assert.deepEqual(seqs(inbox.pushed([event(8)])), []);
  assert.equal(inbox.hasGap, true);
  assert.deepEqual(seqs(inbox.pushed([event(7)])), []);
  assert.deepEqual(seqs(inbox.pulled([event(6)], 6)), [6, 7, 8], "in order, once the hole is closed");
  assert.equal(inbox.hasGap, false);
});

test("each message once, whichever way it comes", () => {
  const inbox = new Inbox();
  assert.deepEqual(seqs(inbox.pushed([event(1), event(1), event(2)])), [1, 2]);
  assert.deepEqual(seqs(inbox.pulled([event(1), event(2), event(3)], 3)), [3]);
  assert.deepEqual(seqs(inbox.pushed([event(3)])), []);
  assert.equal(inbox.duplicates, 4);
});

test("a pull proves that numbers between are not for this user", () => {
  const inbox = new Inbox({ c: 1 });
  inbox.pushed([event(9, 30)]);
  assert.deepEqual(seqs(inbox.pulled([], 29)), []);
  assert.deepEqual(seqs(inbox.pulled([], 30)), [9]);
  assert.deepEqual(seqs(inbox.pushed([event(10, 31)])), [10]);
  assert.deepEqual(seqs(inbox.pushed([event(5, 20)])), [5], "in a proven hole it is shown rather than lost");
  assert.deepEqual(seqs(inbox.pushed([event(5, 20)])), []);
});

test("an own message whose ack overtakes others waits for them", () => {
  const inbox = new Inbox({ c: 1 });
  assert.deepEqual(seqs(inbox.pushed([event(3, -1)])), []);
  assert.deepEqual(seqs(inbox.pushed([event(2, 12)])), [2, 3]);
});

test("a first meeting in the middle of a conversation waits for the pull", () => {
  const inbox = new Inbox();
  assert.deepEqual(seqs(inbox.pushed([event(40, 7)])), []);
  assert.deepEqual(seqs(inbox.pulled([event(39, 6), event(40, 7)], 7)), [39, 40]);
});

test("history comes before what waits for it", () => {
  const inbox = new Inbox({ c: 2 });
  inbox.readAll();
  assert.deepEqual(seqs(inbox.pushed([event(6, 50), event(1, 3, "new")])), []);
  assert.deepEqual(seqs(inbox.read("c", [event(3), event(5)], 5)), [3, 5]);
  inbox.covered = 50;
  assert.deepEqual(seqs(inbox.close("c")), [6]);
});

test("any order of pushes, losses and pulls shows each message once, in order", () => {
  let state = 4711;
  const random = (below) => { state = (state * 1103515245 + 12345) % 2147483648; return state % below; };
  for (let round = 0; round < 300; round += 1) {
    const inbox = new Inbox();
    const all = Array.from({ length: 30 }, (_, at) => event(at + 1, at));
    const shown = [];
    let pulled = -1;
    for (let at = 0; at < 60; at += 1) {
      if (random(4)) shown.push(...inbox.pushed([all[random(30)]]));
      else {
        const to = Math.min(29, pulled + random(6));
        shown.push(...inbox.pulled(all.slice(pulled + 1, to + 1), to));
        pulled = Math.max(pulled, to);
      }
    }
    shown.push(...inbox.pulled(all.slice(pulled + 1), 29));
    assert.deepEqual(seqs(shown), all.map((one) => one.message.conversation_seq), `round ${round}`);
  }
});

// -- session list

test("a delta that is not newer is dropped whole", () => {
  const book = new SessionBook();
  const row = (version, read, more = {}) => ({ conversation_id: "c", version, latest_seq: 9, read_seq: read, deleted_to_seq: 0, peer_read_seq: null, ...more });
  book.begin({ projection_mailbox_seq: 10, rows: [row(5, 3)] });
  assert.equal(book.delta({ projection_mailbox_seq: 10, version: 7, rows: [row(7, 6)] }), true);
  assert.equal(book.delta({ projection_mailbox_seq: 10, version: 7, rows: [row(9, 1)] }), false);
  assert.equal(book.delta({ projection_mailbox_seq: 9, version: 99, rows: [row(99, 1)] }), false);
  assert.equal(book.rows.get("c").read_seq, 6);
  assert.equal(book.dropped, 2);
  book.take([row(6, 9)]);
  assert.equal(book.rows.get("c").version, 7, "an older row is passed over");
  book.take([row(8, 2)]);
  assert.equal(book.rows.get("c").read_seq, 6, "reading never goes back");
});

// -- the rest that is pure

test("delays have jitter, grow, and keep what the server asks for", () => {
  assert.equal(backoff(1, 250, 30000, 0, () => 0), 0);
  assert.equal(backoff(3, 250, 30000, 0, () => 0.5), 500);
  assert.equal(backoff(50, 250, 30000, 0, () => 0.999), 29970);
  assert.ok(backoff(1, 250, 30000, 4000, () => 0) === 4000);
  assert.ok(backoff(1, 250, 30000, 4000, () => 0.9) > 4000);
});

test("bodies are base64url of any bytes", () => {
  assert.equal(text(base64url(new TextEncoder().encode("häß😀?>"))), "häß😀?>");
  assert.ok(!/[+/=]/.test(base64url(new Uint8Array([251, 255, 254, 1]))));
});

// -- the connection

/** A server of one socket at a time; `on` has handlers by frame name. */
class Server {
  constructor() {
    this.frames = [];
    this.sockets = [];
    this.entries = [];
    this.on = {
      AUTH: (frame) => ({ t: "AUTH_OK", rid: frame.rid, user_id: "ann", tenant_id: "acme", device_id: frame.device_id, session_epoch: 5, shard_epoch: 1, lane_watermark: this.top, trim_watermark: -1, after_seq: -1, sync_to_seq: this.top, next_ping_interval_ms: 30000, sync_delay_hint_ms: 0 }),
      PULL_MAILBOX: (frame) => {
        const entries = this.entries.filter((one) => one.mailbox_seq > frame.after_seq && one.mailbox_seq <= frame.up_to_seq).slice(0, 3);
        const covered = entries.length === 3 ? entries[2].mailbox_seq : frame.up_to_seq;
        return { t: "MAILBOX_BATCH", rid: frame.rid, entries, covered_through_seq: covered, lane_watermark: this.top, has_more: covered < frame.up_to_seq, cursor: `cursor-${covered}` };
      },
      SYNC_COMPLETE: (frame) => ({ t: "ONLINE_READY", rid: frame.rid, cursor: `cursor-${this.top}` }),
      SEND_MESSAGE: (frame) => ({ t: "SEND_ACK", rid: frame.rid, client_message_id: frame.client_message_id, conversation_id: "c", message_id: "m", conversation_seq: this.entries.length + 1, committed_at: 1 }),
    };
    const server = this;
    this.WebSocket = class extends EventTarget {
      constructor(url, protocol) {
        super();
        Object.assign(this, { url, protocol });
        server.sockets.push(this);
        queueMicrotask(() => { if (server.refuse) this.end("refused"); else this.dispatchEvent(new Event("open")); });
      }

      send(data) {
        const frame = JSON.parse(data);
        server.frames.push(frame);
        const answer = server.on[frame.t]?.(frame);
        if (answer) queueMicrotask(() => this.say(answer));
      }

      say(frame) { if (!this.closed) this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify(frame) })); }

      end(reason) { if (!this.closed) { this.closed = true; this.dispatchEvent(Object.assign(new Event("close"), { reason, code: 1006 })); } }

      close() { this.closed = true; }
    };
  }

  get top() { return this.entries.length - 1; }

  get socket() { return this.sockets.at(-1); }

  named(name) { return this.frames.filter((frame) => frame.t === name); }
}

function connected(server, options = {}) {
  const client = new QimClient({ url: "ws://x/ws", token: "t", deviceId: "d", WebSocket: server.WebSocket, tickMs: 5, backoffBaseMs: 4, backoffCapMs: 20, gapGraceMs: 10, ...options });
  const seen = [];
  client.on("message", (one) => seen.push(one.message.conversation_seq));
  client.start();
  return { client, seen };
}

test("a sign-on pulls to the end, then live events come; the cursor is kept", async () => {
  const server = new Server();
  server.entries = Array.from({ length: 8 }, (_, at) => event(at + 1, at));
  const store = new MemoryStore();
  const { client, seen } = connected(server, { store });
  await until(() => client.phase === "online", "online");
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.equal(server.socket.protocol, "qim.v1+json");
  assert.deepEqual(store.load(), { cursor: "cursor-7", owner: "acme/ann/d", rebuilding: false, positions: { c: 8 } });
  server.socket.say({ t: "PUSH_EVENTS", events: [event(9, 8)] });
  assert.deepEqual(seen.at(-1), 9);
  assert.equal(store.load().cursor, "cursor-7", "push never moves the cursor");
  client.close();
});

test("a lost push is pulled", async () => {
  const server = new Server();
  const { client, seen } = connected(server);
  await until(() => client.phase === "online", "online");
  server.entries = [event(1, 0), event(2, 1), event(3, 2)];
  server.socket.say({ t: "PUSH_EVENTS", events: [event(1, 0)] });
  server.socket.say({ t: "PUSH_EVENTS", events: [event(3, 2)] });
  assert.deepEqual(seen, [1]);
  await until(() => seen.length === 3, "the gap closed");
  assert.deepEqual(seen, [1, 2, 3]);
  client.close();
});

test("LIVE_LOST is followed by a pull, also of what nobody pushed", async () => {
  const server = new Server();
  const { client, seen } = connected(server);
  await until(() => client.phase === "online", "online");
  server.entries = [event(1, 0), event(2, 1)];
  server.socket.say({ t: "LIVE_LOST", reason: "slow", lane_watermark: 1 });
  await until(() => seen.length === 2, "pulled");
  client.close();
});

test("a connection that ends comes back with the cursor; unanswered sends are repeated under their id", async () => {
  const server = new Server();
  const answer = server.on.SEND_MESSAGE;
  server.on.SEND_MESSAGE = () => null;
  const { client } = connected(server);
  const ended = [];
  client.on("disconnected", (one) => ended.push(one));
  await until(() => client.phase === "online", "online");
  const sent = client.send("hi", { user: "ben" });
  await until(() => server.named("SEND_MESSAGE").length === 1, "sent");
  server.on.SEND_MESSAGE = answer;
  server.socket.end("broken");
  const receipt = await sent;
  const frames = server.named("SEND_MESSAGE");
  assert.equal(frames.length, 2);
  assert.equal(frames[0].client_message_id, frames[1].client_message_id);
  assert.equal(receipt.client_message_id, frames[0].client_message_id);
  assert.equal(server.named("AUTH")[1].mailbox_cursor, "cursor--1");
  assert.equal(server.named("AUTH")[1].resumes, 5);
  assert.equal(ended.length, 1);
  client.close();
});

test("messages to one target leave one at a time, in order", async () => {
  const server = new Server();
  const waiting = [];
  server.on.SEND_MESSAGE = (frame) => { waiting.push(frame); return null; };
  const { client } = connected(server);
  await until(() => client.phase === "online", "online");
  const all = ["a", "b"].map((one) => client.send(one, { conversation: "c" }));
  client.send("other", { user: "eve" }).catch(() => {});
  assert.deepEqual(waiting.map((one) => text(one.body)), ["a", "other"]);
  server.socket.say({ t: "SEND_ACK", rid: waiting[0].rid, client_message_id: waiting[0].client_message_id, conversation_id: "c", message_id: "m", conversation_seq: 1, committed_at: 1 });
  await all[0];
  await until(() => waiting.length === 3, "the next one");
  assert.equal(text(waiting[2].body), "b");
  client.close();
  await assert.rejects(all[1], (error) => error instanceof QimError && error.outcomeUnknown);
});

test("a temporary refusal is repeated, a terminal one is told", async () => {
  const server = new Server();
  const answer = server.on.SEND_MESSAGE;
  let refusals = 2;
  server.on.SEND_MESSAGE = (frame) => (refusals-- > 0 ? { t: "ERROR", rid: frame.rid, code: 500, name: "OVERLOADED", temporary: true, retry_after_ms: 1, detail: "" } : answer(frame));
  const { client } = connected(server);
  await until(() => client.phase === "online", "online");
  await client.send("hi", { user: "ben" });
  assert.equal(server.named("SEND_MESSAGE").length, 3);
  server.on.SEND_MESSAGE = (frame) => ({ t: "ERROR", rid: frame.rid, code: 404, name: "NOT_MEMBER", temporary: false, detail: "no" });
  await assert.rejects(client.send("hi", { conversation: "x" }), { code: "NOT_MEMBER" });
  client.close();
});

test("a server that does not answer is asked again and again, later and later", async () => {
  const server = new Server();
  server.refuse = true;
  const { client } = connected(server);
  const waits = [];
  client.on("disconnected", ({ retryMs }) => waits.push(retryMs));
  await until(() => waits.length > 5, "tries");
  assert.ok(waits.every((ms) => ms <= 20));
  server.refuse = false;
  await until(() => client.phase === "online", "online in the end");
  client.close();
});

test("a terminal answer ends it; a refused token is asked for anew first", async () => {
  const server = new Server();
  let tokens = 0;
  server.on.AUTH = (frame) => ({ t: "ERROR", rid: frame.rid, code: 203, name: "TOKEN_EXPIRED", temporary: false, detail: "" });
  const { client } = connected(server, { token: async () => `t${tokens += 1}` });
  const stopped = [];
  client.on("stopped", (error) => stopped.push(error.code));
  await until(() => stopped.length, "stopped");
  assert.deepEqual([stopped, tokens], [["TOKEN_EXPIRED"], 3]);
  await later(40);
  assert.equal(server.sockets.length, 3, "nothing is tried again");
});

test("a cursor of an older epoch is exchanged on the same connection", async () => {
  const server = new Server();
  const welcome = server.on.AUTH;
  server.on.AUTH = (frame) => (frame.mailbox_cursor === "new" ? welcome(frame) : { t: "ERROR", rid: frame.rid, code: 302, name: "CURSOR_REBASED", temporary: true, new_cursor: "new", detail: "" });
  const store = new MemoryStore();
  store.save({ cursor: "old", owner: "acme/ann/d", positions: {} });
  const { client } = connected(server, { store });
  await until(() => client.phase === "online", "online");
  assert.equal(server.sockets.length, 1);
  client.close();
});

test("an expired cursor is rebuilt from history, in order, once", async () => {
  const server = new Server();
  const welcome = server.on.AUTH;
  server.on.AUTH = (frame) => (frame.mailbox_cursor ? { t: "ERROR", rid: frame.rid, code: 301, name: "CURSOR_EXPIRED", temporary: false, detail: "" } : { ...welcome(frame), after_seq: 7, sync_to_seq: 7, lane_watermark: 7 });
  server.on.SYNC_COMPLETE = (frame) => ({ t: "ONLINE_READY", rid: frame.rid, cursor: "fresh" });
  server.on.PULL_SESSION_LIST = (frame) => ({ t: "SESSION_LIST", rid: frame.rid, rows: [{ conversation_id: "c", version: 1, latest_seq: 9, read_seq: 0, deleted_to_seq: 0 }], projection_mailbox_seq: 7, projection_complete: true, next_cursor: null });
  let failures = 1;
  server.on.PULL_HISTORY = (frame) => {
    if (failures-- > 0) return { t: "ERROR", rid: frame.rid, code: 502, name: "STORE_UNAVAILABLE", temporary: true, detail: "" };
    const messages = Array.from({ length: 9 }, (_, at) => event(at + 1).message).filter((one) => one.conversation_seq > frame.anchor).slice(0, 2);
    const last = messages.at(-1)?.conversation_seq ?? frame.anchor;
    return { t: "HISTORY_PAGE", rid: frame.rid, conversation_id: "c", messages, breaks: [], has_more: last < 9, next_anchor: last };
  };
  const store = new MemoryStore();
  store.save({ cursor: "old", owner: "acme/ann/d", positions: { c: 4 } });
  const { client, seen } = connected(server, { store, random: () => 0.01 });
  const reasons = [];
  client.on("rebuild", (reason) => reasons.push(reason));
  await until(() => client.phase === "online", "online");
  server.socket.say({ t: "PUSH_EVENTS", events: [event(10, 8)] });
  await until(() => seen.length === 6 && !client.rebuilding, "rebuilt");
  assert.deepEqual(seen, [5, 6, 7, 8, 9, 10]);
  assert.deepEqual(reasons, ["CURSOR_EXPIRED"]);
  assert.equal(store.load().rebuilding, false);
  client.close();
});

test("reading is told once and never back", async () => {
  const server = new Server();
  server.on.MARK_READ = (frame) => ({ t: "SESSION_STATE", rid: frame.rid, projection_mailbox_seq: 1, row: { conversation_id: "c", version: 3, latest_seq: 9, read_seq: frame.read_seq, deleted_to_seq: 0 } });
  const { client } = connected(server);
  await until(() => client.phase === "online", "online");
  assert.equal((await client.markRead("c", 7)).read_seq, 7);
  await client.markRead("c", 6);
  assert.equal(server.named("MARK_READ").length, 1);
  client.close();
});

test("the store of somebody else is not used", async () => {
  const server = new Server();
  const store = new MemoryStore();
  store.save({ owner: "acme/eve/d", positions: {} });
  const { client } = connected(server, { store });
  const stopped = [];
  client.on("stopped", (error) => stopped.push(error.code));
  await until(() => stopped.length, "stopped");
  assert.deepEqual(stopped, ["WRONG_STORE"]);
});

test("an endpoint is followed on the same host only, and never from TLS to none", () => {
  const client = new QimClient({ url: "wss://chat.example/ws", token: "t", deviceId: "d" });
  for (const wanted of ["wss://evil.example/ws", "ws://chat.example/ws", "no url"]) client.follow(wanted);
  assert.equal(client.url, "wss://chat.example/ws");
  client.follow("wss://chat.example:444/ws");
  assert.equal(client.url, "wss://chat.example:444/ws");
});

test("a store in the browser keeps plain JSON under the device's name", () => {
  const rows = new Map();
  const store = new WebStore("tab-1", { getItem: (name) => rows.get(name) ?? null, setItem: (name, value) => rows.set(name, value) });
  assert.deepEqual(store.load(), {});
  store.save({ cursor: "x" });
  assert.deepEqual([...rows.keys()], ["qim.device.tab-1"]);
  assert.deepEqual(store.load(), { cursor: "x" });
});
