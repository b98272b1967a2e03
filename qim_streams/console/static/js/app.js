/**
 * The shell: sign-in, navigation, one page at a time. The place is in the hash (`#/topology?...`), which the
 * browser keeps to itself; a page is a function (main, params, signal) whose signal ends when it is left.
 */

import { ApiError, ask, key, whenSignedOut } from "./api.js";
import { fill, h, head, problem } from "./dom.js";
import { conversations, groups } from "./pages/conversations.js";
import { letters } from "./pages/letters.js";
import { rooms } from "./pages/rooms.js";
import { shards } from "./pages/shards.js";
import { tables } from "./pages/tables.js";
import { topology } from "./pages/topology.js";
import { trace } from "./pages/trace.js";
import { users } from "./pages/users.js";

const PAGES = [
  ["Pipeline"],
  ["topology", "Topology", topology],
  ["tables", "Tables", tables],
  ["shards", "Shards and leases", shards],
  ["trace", "Trace a message", trace],
  ["letters", "Dead letters", letters],
  ["Directory"],
  ["users", "Users", users],
  ["conversations", "Conversations", conversations],
  ["groups", "Groups", groups],
  ["rooms", "Rooms", rooms],
];
const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leave = new AbortController();

function places() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: name || "topology", params: new URLSearchParams(query) };
}

function drawNav(current) {
  fill(nav, PAGES.map(([name, title, page]) => (page
    ? h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title)
    : h("div", { class: "group" }, name))), h("div", { class: "group" }, "Try it"), h("a", { href: "chat", target: "_blank", rel: "opener" }, "Chat in two tabs"));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

async function show() {
  leave.abort();
  leave = new AbortController();
  const signedIn = Boolean(key.get());
  document.getElementById("signout").hidden = !signedIn;
  nav.hidden = !signedIn;
  if (!signedIn) return signIn();
  const { name, params } = places();
  const found = PAGES.find(([one, , page]) => one === name && page);
  drawNav(name);
  fill(main);
  if (!found) {
    fill(main, head("No such page", `There is no page “${name}”.`), h("p", {}, h("a", { href: "#/topology" }, "To the topology")));
    return;
  }
  try {
    await found[2](main, params, leave.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) throw error;
    if (key.get()) main.append(problem(error, show));
  }
}

function signIn(why = null) {
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, minlength: 8, spellcheck: "false" });
  const said = h("div", { "aria-live": "polite" }, why ? h("p", { class: "note warn" }, why) : null);
  const button = h("button", { class: "primary", type: "submit" }, "Sign in");
  const form = h("form", {
    class: "card signin", onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await ask("GET", "topology", { as: field.value });
        key.set(field.value);
        show();
      } catch (error) {
        fill(said, problem(error.status === 401
          ? new ApiError("The key is not the one of this API.", { title: "Not let in", remedy: "Look for admin_api_key in client.json of the state directory, or at QIM_ADMIN_API_KEY." })
          : error));
        field.focus();
      } finally { button.disabled = false; }
    },
  },
  h("h1", {}, "Sign in"),
  h("p", { class: "dim" }, "The key of the admin API. It stays in this tab and is forgotten when the tab is closed."),
  h("label", { class: "field", for: "key" }, "Admin key", field), said, h("div", { class: "row" }, button));
  document.title = "Sign in – Q-IM streams console";
  fill(main, form);
  field.focus();
}

function signOut(why = null) {
  key.clear();
  leave.abort();
  document.getElementById("signout").hidden = true;
  nav.hidden = true;
  signIn(typeof why === "string" ? why : null);
}

whenSignedOut(() => signOut("The API refused the key: it was changed. Sign in with the new one."));
document.getElementById("signout").addEventListener("click", signOut);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { show(); main.focus(); });
show();
fetch("../version").then((answer) => answer.json())
  .then((found) => { document.getElementById("whoami").textContent = `Version ${found.version}`; })
  .catch(() => { /* only a decoration: pages say what does not answer */ });
