/**
 * A client of Q-IM streams for browsers: one file, an ES module, no dependency. It speaks `qim.v1+json`
 * (docs/protocol.md) by the rules of the Python SDK; docs/javascript.md is its guide.
 *
 *     import { QimClient, WebStore } from "./qim-client.js";
 *     const client = new QimClient({ url, token: async () => "...", deviceId: "tab-1", store: new WebStore("tab-1") });
 *     client.on("message", (event) => console.log(event.message.sender_id, text(event.message.body)));
 *     client.start();
 *     const receipt = await client.send("hello", { user: "ben" });
 *
 * What it promises: each message once and in order within its conversation, whatever is lost, repeated or
 * reordered on the way; a send is committed once however often it is repeated; the cursor is kept only after
 * what it covers was handed to the listeners, so a crash repeats the last moments and loses nothing.
 *
 * What it does not do: keep messages or unsent ones beyond the page, rooms, groups' administration.
 */

const SUBPROTOCOL = "qim.v1+json";
const PULL_ENTRIES = 1000;
const HISTORY_PAGE = 200;
const HOLES_MAX = 64;
const HELD_MAX = 4096;
const SESSION_PAGE = 100;
const TERMINAL_FOR_TOKEN = ["BAD_TOKEN", "TOKEN_EXPIRED"];

/** Defaults; times in milliseconds. */
export const DEFAULTS = {
  platform: "web", answerMs: 15000, connectMs: 10000, backoffBaseMs: 250, backoffCapMs: 30000, gapGraceMs: 300,
  gapGraceMaxMs: 5000, checkpointEvents: 500, checkpointMs: 60000, tickMs: 200, waitingMax: 1000, tokenAttempts: 3,
  firstSync: "mailbox", random: Math.random, WebSocket: globalThis.WebSocket,
};

/** Bytes as base64url, as bodies are in JSON frames. */
export function base64url(bytes) {
  let binary = "";
  for (const one of bytes) binary += String.fromCharCode(one);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text of a body; what is no UTF-8 becomes replacement characters. */
export function text(body) {
  const binary = atob((body || "").replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder().decode(Uint8Array.from(binary, (one) => one.charCodeAt(0)));
}

/** How long to wait before try number `attempt` (from 1): full jitter, never below what the server asked for. */
export function backoff(attempt, baseMs, capMs, askedMs, random) {
  const jitter = Math.min(capMs, baseMs * 2 ** Math.min(attempt - 1, 20)) * random();
  return Math.floor(askedMs + Math.max(jitter, (askedMs * random()) / 2));
}

/** A terminal answer: nothing is tried again. `code` is the name in the table of errors. */
export class QimError extends Error {
  constructor(code, detail = "", unknown = false) {
    super(detail ? `${code}: ${detail}` : code);
    Object.assign(this, { code, detail, outcomeUnknown: unknown });
  }
}

/** Keeps the state of a device in the browser: cursor, owner and the last number shown of each conversation. */
export class WebStore {
  constructor(name, storage = globalThis.localStorage) { this.key = `qim.device.${name}`; this.storage = storage; }

  load() { return JSON.parse(this.storage.getItem(this.key) || "null") || {}; }

  save(state) { this.storage.setItem(this.key, JSON.stringify(state)); }
}

/** Keeps nothing beyond the object. */
export class MemoryStore {
  load() { return this.state || {}; }

  save(state) { this.state = structuredClone(state); }
}

/**
 * What a device has shown of each conversation, and what may be shown next. A pull proves that there is nothing
 * else up to where it covers; a push proves nothing: one that does not follow the last shown one waits.
 */
export class Inbox {
  constructor(positions = {}) {
    this.lines = new Map(Object.entries(positions).map(([name, last]) => [name, { last, held: new Map(), holes: [], reading: false }]));
    this.covered = -1;
    this.duplicates = 0;
    this.readsUnknown = false; // a conversation that is met now is read from its history first
  }

  line(name) {
    if (!this.lines.has(name)) this.lines.set(name, { last: 0, held: new Map(), holes: [], reading: this.readsUnknown });
    return this.lines.get(name);
  }

  /** Messages may be missing everywhere: every conversation waits for its history. */
  readAll() {
    this.readsUnknown = true;
    for (const line of this.lines.values()) line.reading = true;
  }

  get hasGap() {
    return [...this.lines.values()].some((line) => !line.reading && line.held.size);
  }

  positions() {
    return Object.fromEntries([...this.lines].filter(([, line]) => line.last).map(([name, line]) => [name, line.last]));
  }

  /** Live events, or an own message at its ack; what may be shown now, in order. */
  pushed(events) {
    const shown = [];
    for (const event of events) {
      const { conversation_id: name, conversation_seq: seq } = event.message;
      const line = this.line(name);
      if (seq <= line.last) this.late(line, seq, event, shown);
      else if (line.reading || (seq > line.last + 1 && event.mailbox_seq > this.covered) || (seq > line.last + 1 && event.mailbox_seq < 0)) this.hold(line, seq, event);
      else { this.advance(line, seq, shown); line.held.delete(seq); shown.push(event); this.drain(line, shown); }
    }
    return shown;
  }

  /** The next complete stretch of the mailbox, up to `covered` inclusive. */
  pulled(events, covered) {
    const shown = [];
    for (const event of events) {
      const { conversation_id: name, conversation_seq: seq } = event.message;
      const line = this.line(name);
      if (seq <= line.last) this.late(line, seq, event, shown);
      else if (line.reading) this.hold(line, seq, event);
      else {
        this.advance(line, seq, shown);
        const waiting = line.held.get(seq);
        line.held.delete(seq);
        shown.push(waiting ?? event);
        this.drain(line, shown);
      }
    }
    if (covered > this.covered) {
      this.covered = covered;
      for (const line of this.lines.values()) if (line.held.size && !line.reading) this.release(line, shown);
    }
    return shown;
  }

  /** A stretch of a conversation's history: all there is up to `through`. */
  read(name, events, through) {
    const line = this.line(name);
    const shown = [];
    for (const event of events) {
      const seq = event.message.conversation_seq;
      if (seq <= line.last) { this.duplicates += 1; continue; }
      this.jump(line, seq);
      line.held.delete(seq);
      shown.push(event);
    }
    if (through > line.last) this.jump(line, through);
    return shown;
  }

  /** The history was read: what waited for it. */
  close(name) {
    const line = this.line(name);
    const shown = [];
    line.reading = false;
    for (const seq of [...line.held.keys()]) if (seq <= line.last) line.held.delete(seq);
    this.release(line, shown);
    return shown;
  }

  /** What is held lies above the cursor and comes again by pull. */
  disconnected() {
    for (const line of this.lines.values()) if (!line.reading) line.held.clear();
  }

  late(line, seq, event, shown) {
    const at = line.holes.findIndex(([low, high]) => low <= seq && seq <= high);
    if (at < 0) { this.duplicates += 1; return; }
    const [low, high] = line.holes[at];
    line.holes.splice(at, 1, ...[[low, seq - 1], [seq + 1, high]].filter(([a, b]) => a <= b));
    shown.push(event);
  }

  hold(line, seq, event) {
    if (line.held.has(seq)) this.duplicates += 1;
    else if (line.held.size < HELD_MAX) line.held.set(seq, event); // beyond the bound the pull brings it
  }

  jump(line, seq) {
    if (seq > line.last + 1) { line.holes.push([line.last + 1, seq - 1]); line.holes.splice(0, line.holes.length - HOLES_MAX); }
    line.last = seq;
  }

  advance(line, seq, shown) {
    for (const below of [...line.held.keys()].filter((one) => one < seq).sort((a, b) => a - b)) {
      this.jump(line, below);
      shown.push(line.held.get(below));
      line.held.delete(below);
    }
    this.jump(line, seq);
  }

  release(line, shown) {
    const proven = [...line.held].filter(([, one]) => one.mailbox_seq >= 0 && one.mailbox_seq <= this.covered).map(([seq]) => seq);
    if (proven.length) {
      const top = Math.max(...proven);
      const event = line.held.get(top);
      this.advance(line, top, shown);
      line.held.delete(top);
      shown.push(event);
    }
    this.drain(line, shown);
  }

  drain(line, shown) {
    while (line.held.has(line.last + 1)) {
      line.last += 1;
      shown.push(line.held.get(line.last));
      line.held.delete(line.last);
    }
  }
}

/** A user's conversations from pages, answers and deltas. A delta that is not newer is dropped whole. */
export class SessionBook {
  constructor() { this.rows = new Map(); this.applied = [-1, -1]; this.dropped = 0; }

  /** The first page of the whole list. */
  begin(page) {
    this.rows.clear();
    if (less(this.applied, [page.projection_mailbox_seq, -1])) this.applied = [page.projection_mailbox_seq, -1];
    this.take(page.rows);
  }

  take(rows) {
    for (const row of rows) {
      const known = this.rows.get(row.conversation_id);
      if (known && less([row.version, row.latest_seq], [known.version, known.latest_seq])) continue;
      this.rows.set(row.conversation_id, known ? {
        ...row, read_seq: Math.max(known.read_seq, row.read_seq), deleted_to_seq: Math.max(known.deleted_to_seq, row.deleted_to_seq),
        peer_read_seq: row.peer_read_seq == null && known.peer_read_seq == null ? null : Math.max(known.peer_read_seq ?? 0, row.peer_read_seq ?? 0),
      } : row);
    }
  }

  delta(frame) {
    const order = [frame.projection_mailbox_seq, frame.version];
    if (!less(this.applied, order)) { this.dropped += 1; return false; }
    this.applied = order;
    this.take(frame.rows);
    return true;
  }

  receipt(frame) {
    const row = this.rows.get(frame.conversation_id);
    if (!row || row.peer_user_id !== frame.user_id || (row.peer_read_seq ?? 0) >= frame.read_seq) return false;
    this.rows.set(frame.conversation_id, { ...row, peer_read_seq: frame.read_seq });
    return true;
  }
}

function less([a, b], [c, d]) { return a < c || (a === c && b < d); }

/**
 * One device of one user, connected until `close` or a terminal answer.
 *
 * Events for `on`: `state` (phase), `message` (event), `sessions` (book), `sent` (receipt), `disconnected`
 * ({reason, retryMs}), `rebuild` (reason), `stopped` (QimError).
 */
export class QimClient {
  constructor(options) {
    this.options = { ...DEFAULTS, ...options };
    this.store = this.options.store || new MemoryStore();
    const kept = this.store.load();
    this.url = this.home = this.options.url;
    this.cursor = kept.cursor || null;
    this.owner = kept.owner || null;
    this.rebuilding = Boolean(kept.rebuilding);
    this.inbox = new Inbox(kept.positions);
    if (this.rebuilding) this.inbox.readAll();
    this.book = new SessionBook();
    this.phase = "offline";
    this.listeners = new Map();
    this.sends = new Map(); // client_message_id -> send; in the order given
    this.calls = new Map(); // rid -> {resolve, reject, due}
    this.attempt = this.refusals = 0;
    this.resumes = null;
    this.stopped = null;
  }

  /** Call `listener` for each `event`; returns a function that ends it. */
  on(event, listener) {
    const all = this.listeners.get(event) || new Set();
    this.listeners.set(event, all.add(listener));
    return () => all.delete(listener);
  }

  emit(event, value) { for (const listener of this.listeners.get(event) || []) listener(value); }

  get userId() { return this.owner ? this.owner.split("/")[1] : null; }

  // -- life

  start() {
    if (this.stopped || this.ticking) return;
    this.ticking = setInterval(() => this.tick(), this.options.tickMs);
    this.connect();
  }

  /** End for good; sends without an answer are rejected, their outcome is unknown. */
  close() { this.stop(new QimError("CLOSED", "the client was closed"), true); }

  stop(why, quiet = false) {
    if (this.stopped) return;
    this.stopped = why;
    clearInterval(this.ticking);
    clearTimeout(this.retryTimer);
    this.drop();
    for (const send of this.sends.values()) send.reject(new QimError(why.code, why.detail, send.attempts > 0));
    this.sends.clear();
    if (!quiet) this.emit("stopped", why);
  }

  async connect() {
    const turn = this.turn = {};
    this.broken = null;
    this.setPhase("connecting");
    try {
      const source = this.options.token;
      const token = typeof source === "function" ? await source() : source;
      if (turn !== this.turn || this.stopped) return;
      this.open(new this.options.WebSocket(this.url, SUBPROTOCOL), token);
    } catch (error) {
      if (turn === this.turn) this.lost(`no connection: ${error.message}`, 0);
    }
  }

  open(socket, token) {
    this.socket = socket;
    this.rid = 0;
    this.pull = null;
    this.heard = Date.now();
    this.phaseDue = this.heard + this.options.connectMs;
    const mine = (handle) => (event) => { if (this.socket === socket) handle(event); };
    socket.addEventListener("open", mine(() => { this.heard = Date.now(); this.authenticate(token); }));
    socket.addEventListener("message", mine((event) => { this.heard = Date.now(); this.receive(JSON.parse(event.data)); }));
    socket.addEventListener("close", mine((event) => this.lost(event.reason || `closed (${event.code})`, 0)));
  }

  authenticate(token) {
    this.token = token;
    this.setPhase("authenticating");
    this.control = this.ask({ t: "AUTH", access_token: token, device_id: this.options.deviceId, mailbox_cursor: this.cursor, platform: this.options.platform, resumes: this.resumes });
  }

  setPhase(phase) {
    this.phaseDue = Date.now() + this.options.answerMs;
    if (phase !== this.phase) { this.phase = phase; this.emit("state", phase); }
  }

  drop() {
    const { socket } = this;
    this.socket = null;
    this.turn = {};
    if (socket) socket.close();
    for (const call of this.calls.values()) call.reject(new QimError("DISCONNECTED", "the connection ended", true));
    this.calls.clear();
    for (const send of this.sends.values()) send.rid = null; // sent again by the next connection
    this.inbox.disconnected();
    this.setPhase("offline");
  }

  /** The connection ended: another one after a delay with jitter. */
  lost(reason, askedMs) {
    if (this.stopped) return;
    const { retry_after_ms: asked = 0, preferred_endpoint: wanted = null } = this.goodbye || {};
    this.goodbye = null;
    if (wanted || this.preferred) this.follow(wanted || this.preferred);
    if (this.attempt >= 3) this.url = this.home;
    this.drop();
    this.attempt += 1;
    const { backoffBaseMs, backoffCapMs, random } = this.options;
    const retryMs = backoff(this.attempt, backoffBaseMs, backoffCapMs, Math.max(asked, askedMs), random);
    this.emit("disconnected", { reason, retryMs });
    this.retryTimer = setTimeout(() => this.connect(), retryMs);
  }

  /** A preferred endpoint gets the token: only on the host that was named, and never from TLS to none. */
  follow(wanted) {
    try {
      const home = new URL(this.home);
      const there = new URL(wanted);
      if (there.hostname === home.hostname && (there.protocol === "wss:" || there.protocol === home.protocol)) this.url = wanted;
    } catch { /* no URL: the one we have stays */ }
  }

  tick() {
    const now = Date.now();
    if (!this.socket) return;
    const { phase, options } = this;
    if (this.auth && now - this.heard > this.pingMs + 15000) return this.lost("nothing came from the server for too long", 0);
    if (phase !== "online" && phase !== "syncing" && now > this.phaseDue) return this.lost(`no answer while ${phase}`, 0);
    if (this.pull && now > this.pull.due) return this.lost("a pull was not answered", 0);
    for (const [rid, call] of this.calls) if (now > call.due) { this.calls.delete(rid); call.reject(new QimError("TIMEOUT", "no answer in time", true)); }
    if (!this.auth || phase === "connecting" || phase === "authenticating") return undefined;
    if (now >= this.pingDue) { this.pingDue = now + this.pingMs; this.ask({ t: "PING" }); }
    for (const send of this.sends.values()) if (send.rid && now - send.at > options.answerMs) send.rid = null;
    this.pump();
    if (phase === "online" && !this.pull) this.lookForGaps(now);
    return undefined;
  }

  // -- frames

  ask(frame) {
    this.rid = (this.rid % 4294967295) + 1;
    this.socket.send(JSON.stringify({ ...frame, rid: this.rid }));
    return this.rid;
  }

  /** A request and its answer. Rejected with the server's error, or DISCONNECTED. */
  call(frame) {
    if (!this.auth || !this.socket) return Promise.reject(new QimError("DISCONNECTED", "not signed on", true));
    return new Promise((resolve, reject) => this.calls.set(this.ask(frame), { resolve, reject, due: Date.now() + this.options.answerMs }));
  }

  receive(frame) {
    const handle = {
      AUTH_OK: () => this.onAuthOk(frame), MAILBOX_BATCH: () => this.onBatch(frame), ONLINE_READY: () => this.onOnline(frame),
      PUSH_EVENTS: () => this.onPush(frame.events), SEND_ACK: () => this.onAck(frame), LIVE_LOST: () => this.onLiveLost(frame),
      ERROR: () => this.onError(frame), PING: () => this.socket.send(JSON.stringify({ t: "PONG", rid: frame.rid })),
      PONG: () => this.setPing(frame.next_ping_interval_ms), GOODBYE: () => { this.goodbye = frame; },
      SESSION_DELTA: () => this.book.delta(frame) && this.emit("sessions", this.book),
      READ_RECEIPT: () => this.book.receipt(frame) && this.emit("sessions", this.book),
    }[frame.t];
    if (handle) handle();
    else this.answered(frame);
  }

  answered(frame) {
    const call = this.calls.get(frame.rid);
    this.calls.delete(frame.rid);
    if (call) call.resolve(frame);
  }

  setPing(ms) {
    if (ms) { this.pingMs = Math.max(1000, ms); this.pingDue = Math.min(this.pingDue ?? Infinity, Date.now() + this.pingMs); }
  }

  // -- sign-on and sync

  onAuthOk(frame) {
    const owner = `${frame.tenant_id}/${frame.user_id}/${frame.device_id}`;
    if (this.owner && this.owner !== owner) return this.stop(new QimError("WRONG_STORE", `the store is of ${this.owner}, the token of ${owner}`));
    Object.assign(this, { owner, auth: frame, resumes: frame.session_epoch, preferred: frame.preferred_endpoint, pingDue: Infinity });
    this.setPing(frame.next_ping_interval_ms || 30000);
    const first = !this.cursor && !this.rebuilding && this.options.firstSync === "mailbox";
    this.pulledTo = first ? Math.min(frame.trim_watermark, frame.sync_to_seq) : frame.after_seq;
    this.inbox.covered = this.pulledTo;
    this.known = frame.lane_watermark;
    this.setPhase("syncing");
    const wait = frame.sync_delay_hint_ms || 0;
    const { turn } = this;
    setTimeout(() => { if (turn === this.turn && this.phase === "syncing") this.pullTo(frame.sync_to_seq); }, wait * (1 + this.options.random() / 2));
    return this.pump();
  }

  pullTo(upTo) {
    if (upTo > this.pulledTo) this.askPart({ upTo });
    else if (this.phase === "syncing") this.complete();
  }

  askPart(pull) {
    this.pull = { ...pull, due: Date.now() + this.options.answerMs };
    this.pull.rid = this.ask({ t: "PULL_MAILBOX", after_seq: this.pulledTo, up_to_seq: pull.upTo, limit_entries: PULL_ENTRIES });
  }

  onBatch(frame) {
    if (!this.pull || frame.rid !== this.pull.rid) return this.answered(frame);
    const { upTo } = this.pull;
    this.pull = null;
    this.known = Math.max(this.known, frame.lane_watermark);
    if (frame.covered_through_seq > this.pulledTo) {
      this.pulledTo = frame.covered_through_seq;
      this.show(this.inbox.pulled(frame.entries, frame.covered_through_seq));
    }
    if (frame.cursor) { this.cursor = frame.cursor; this.keep(); }
    if (frame.has_more) return this.askPart({ upTo });
    if (this.phase === "syncing") return this.complete();
    this.heardEvents = 0;
    this.checkpointDue = Date.now() + this.options.checkpointMs;
    if (this.pullAgain || (this.inbox.hasGap && this.known > this.pulledTo)) { this.pullAgain = false; this.checkpoint(); }
    return undefined;
  }

  complete() {
    this.setPhase("completing");
    this.control = this.ask({ t: "SYNC_COMPLETE", sync_to_seq: this.auth.sync_to_seq });
  }

  onOnline(frame) {
    this.cursor = frame.cursor;
    this.attempt = this.refusals = this.heardEvents = 0;
    this.checkpointDue = Date.now() + this.options.checkpointMs;
    this.keep();
    this.setPhase("online");
    if (this.lostEarly) { this.lostEarly = false; this.checkpoint(); }
    if (this.rebuilding) this.goOnRebuilding();
  }

  // -- live

  onPush(events) {
    this.heardEvents = (this.heardEvents || 0) + events.length;
    if (events.length) this.known = Math.max(this.known, events.at(-1).mailbox_seq);
    this.show(this.inbox.pushed(events));
  }

  onLiveLost(frame) {
    this.known = Math.max(this.known, frame.lane_watermark);
    if (this.phase === "online") this.checkpoint(); else this.lostEarly = true;
  }

  /** Pull what there is, so that gaps close and the cursor moves; an empty range asks how far W is. */
  checkpoint() {
    if (this.pull) { this.pullAgain = true; return; }
    this.askPart({ upTo: Math.max(this.known, this.pulledTo) });
  }

  lookForGaps(now) {
    const { options } = this;
    if (!this.inbox.hasGap) { this.gapDue = 0; this.grace = options.gapGraceMs; } else if (!this.gapDue) this.gapDue = now + (this.grace ?? options.gapGraceMs);
    if (this.gapDue && now >= this.gapDue) {
      this.grace = Math.min(options.gapGraceMaxMs, 2 * (this.grace ?? options.gapGraceMs));
      this.gapDue = now + this.grace;
      this.checkpoint();
    } else if (this.heardEvents >= options.checkpointEvents || now >= this.checkpointDue) {
      this.checkpointDue = now + options.checkpointMs;
      this.checkpoint();
    }
  }

  show(events) {
    for (const event of events) this.emit("message", event);
  }

  keep() {
    this.store.save({ cursor: this.cursor, owner: this.owner, rebuilding: this.rebuilding, positions: this.inbox.positions() });
  }

  // -- what the mailbox has no more

  startRebuild(reason) {
    this.cursor = null;
    this.rebuilding = true;
    this.inbox.readAll();
    this.keep();
    this.emit("rebuild", reason);
  }

  /** Rebuild; what fails for now is tried again, here or by the next connection. */
  async goOnRebuilding() {
    const { turn } = this;
    try {
      await this.rebuild();
    } catch (error) {
      if (!error.outcomeUnknown && !error.temporary) return this.stop(error);
      setTimeout(() => { if (turn === this.turn && this.phase === "online") this.goOnRebuilding(); }, backoff(4, 250, 10000, 0, this.options.random));
    }
    return undefined;
  }

  /** Read every conversation's history from its last shown message on; what comes meanwhile waits. */
  async rebuild() {
    await this.loadSessions();
    for (const row of this.book.rows.values()) this.inbox.line(row.conversation_id).reading = true;
    for (const [name, line] of this.inbox.lines) {
      if (!line.reading) continue;
      await this.readHistory(name, line).catch((error) => { if (error.outcomeUnknown || error.temporary) throw error; /* NOT_MEMBER and the like: nothing to read */ });
      this.show(this.inbox.close(name));
    }
    this.rebuilding = this.inbox.readsUnknown = false;
    this.keep();
  }

  async readHistory(name, line) {
    for (let page = null; page === null || page.has_more;) {
      page = await this.call({ t: "PULL_HISTORY", conversation_id: name, direction: "newer", anchor: line.last, limit: HISTORY_PAGE });
      this.show(this.inbox.read(name, page.messages.map((message) => ({ mailbox_seq: -1, event_id: null, flags: 0, message })), page.next_anchor));
    }
  }

  // -- sending

  /** Send text or bytes to {conversation} or {user}; the receipt. Repeated under one id until it is answered. */
  send(body, { conversation = null, user = null, id = newId() } = {}) {
    if (this.stopped) return Promise.reject(this.stopped);
    if (this.sends.size >= this.options.waitingMax) return Promise.reject(new QimError("OVERLOADED", "too many messages wait to be sent"));
    const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
    const done = new Promise((resolve, reject) => {
      this.sends.set(id, { id, conversation, user, body: base64url(bytes), rid: null, due: 0, attempts: 0, resolve, reject });
    });
    this.pump();
    return done;
  }

  /** One in flight per target keeps their order. */
  pump() {
    if (!this.auth || !this.socket || this.phase === "authenticating" || this.phase === "connecting") return;
    const now = Date.now();
    const busy = new Set();
    for (const send of this.sends.values()) {
      const target = send.conversation ?? `>${send.user}`;
      if (!busy.has(target) && !send.rid && send.due <= now) {
        send.attempts += 1;
        send.at = now;
        send.rid = this.ask({ t: "SEND_MESSAGE", client_message_id: send.id, conversation_id: send.conversation, to_user_id: send.user, body: send.body });
      }
      busy.add(target);
    }
  }

  onAck(frame) {
    const send = this.sends.get(frame.client_message_id);
    if (!send) return;
    this.sends.delete(frame.client_message_id);
    const event = {
      mailbox_seq: -1, event_id: null, flags: 2, client_message_id: frame.client_message_id, message: {
        message_id: frame.message_id, conversation_id: frame.conversation_id, conversation_seq: frame.conversation_seq,
        sender_id: this.userId, kind: 0, state: 0, committed_at: frame.committed_at, body: send.body,
      },
    };
    send.resolve(frame);
    this.emit("sent", frame);
    this.show(this.inbox.pushed([event]));
    this.heardEvents += 1;
    this.pump();
  }

  onError(frame) {
    if (this.phase === "authenticating") return this.onAuthError(frame);
    const call = this.calls.get(frame.rid);
    if (call) {
      this.calls.delete(frame.rid);
      return call.reject(Object.assign(new QimError(frame.name, frame.detail), { temporary: frame.temporary }));
    }
    const send = [...this.sends.values()].find((one) => one.rid && one.rid === frame.rid);
    if (send && !frame.temporary) {
      this.sends.delete(send.id);
      return send.reject(new QimError(frame.name, frame.detail));
    }
    if (send) {
      send.rid = null;
      send.due = Date.now() + backoff(send.attempts, 200, 10000, frame.retry_after_ms || 0, this.options.random);
      return undefined;
    }
    if (this.pull && frame.rid === this.pull.rid) return this.onPullError(frame);
    if (frame.rid === null || frame.rid === undefined || frame.rid === this.control) {
      return frame.temporary ? this.lost(frame.name, frame.retry_after_ms || 0) : this.stop(new QimError(frame.name, frame.detail));
    }
    return undefined;
  }

  onPullError(frame) {
    const { upTo } = this.pull;
    if (frame.name === "CURSOR_EXPIRED" || frame.name === "CURSOR_INVALID") { this.startRebuild(frame.name); return this.lost(frame.name, 0); }
    if (!frame.temporary) return this.lost(frame.name, 0);
    const wait = backoff(1, 200, 10000, frame.retry_after_ms || 0, this.options.random);
    const { turn } = this;
    this.pull.due = Infinity;
    setTimeout(() => { if (turn === this.turn && this.socket) this.askPart({ upTo }); }, wait);
    return undefined;
  }

  onAuthError(frame) {
    if (frame.name === "CURSOR_REBASED" && frame.new_cursor) { this.cursor = frame.new_cursor; this.keep(); return this.authenticate(this.token); }
    if ((frame.name === "CURSOR_EXPIRED" || frame.name === "CURSOR_INVALID") && this.cursor) { this.startRebuild(frame.name); return this.authenticate(this.token); }
    if (frame.temporary) return this.lost(frame.name, frame.retry_after_ms || 0);
    this.refusals += 1;
    const another = TERMINAL_FOR_TOKEN.includes(frame.name) && typeof this.options.token === "function" && this.refusals < this.options.tokenAttempts;
    return another ? this.lost(frame.name, 0) : this.stop(new QimError(frame.name, frame.detail));
  }

  // -- session list

  /** All conversations of the user, the newest first, into `book`. */
  async loadSessions() {
    for (let cursor = null, first = true; first || cursor; first = false) {
      const page = await this.call({ t: "PULL_SESSION_LIST", cursor, limit: SESSION_PAGE });
      if (first) this.book.begin(page); else this.book.take(page.rows);
      cursor = page.next_cursor;
    }
    this.emit("sessions", this.book);
    return this.book;
  }

  /** Mark a conversation read up to a number; never back. */
  async markRead(conversation, seq) {
    const row = this.book.rows.get(conversation);
    if (row && row.read_seq >= seq) return row;
    const frame = await this.call({ t: "MARK_READ", conversation_id: conversation, read_seq: seq });
    this.book.take([frame.row]);
    this.emit("sessions", this.book);
    return this.book.rows.get(conversation);
  }

  /** A page of a conversation's history, older than `before` (null: the newest), ascending. */
  history(conversation, before = null, limit = 50) {
    return this.call({ t: "PULL_HISTORY", conversation_id: conversation, direction: "older", anchor: before, limit });
  }
}

/** An id that nobody else makes. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
}
