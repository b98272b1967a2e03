/**
 * The admin API. The key is kept for this tab only (sessionStorage) and goes into a header, never into a URL.
 *
 * Every failure is an `ApiError` with a remedy in words; the API's errors keep their name and code.
 */

const KEY = "qim.console.key";
const PATIENCE_MS = 20000;

const REMEDIES = {
  API_KEY_REQUIRED: "Sign in again with the key of QIM_ADMIN_API_KEY.",
  STORE_UNAVAILABLE: "A store or the broker does not answer: look at the topology and at `qim status`.",
  ROLE_REQUIRED: "The role of your key does not permit it: sign in with another key, or ask an administrator.",
  NO_USER: "Check the tenant and the spelling.",
  TOO_MANY_TRACES: "Wait for the other traces to end.",
  MESSAGE_NOT_FOUND: "Check tenant and id; name the conversation if you know it.",
  NO_CONVERSATION: "Check tenant and id. A direct chat exists from its first message on.",
  TOKENS_NOT_CONFIGURED: "Set QIM_JWT_SECRET, or use a token of your identity provider.",
};

export class ApiError extends Error {
  constructor(message, { name = "UNREACHABLE", status = 0, field = null, temporary = false, title = null, remedy = null } = {}) {
    super(message);
    Object.assign(this, { code: name, status, field, temporary, title });
    this.remedy = remedy || REMEDIES[name] || (temporary ? "It may work in a moment: try again." : null);
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
};

let onSignedOut = () => {};

/** Called when the key is refused. */
export function whenSignedOut(listener) { onSignedOut = listener; }

/** A path with its parts escaped: `path\`tenants/${tenant}/users\``. */
export function path(texts, ...values) {
  return texts.reduce((all, text, at) => all + encodeURIComponent(values[at - 1]) + text);
}

/** The query of defined fields. */
function queryOf(fields) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(fields || {})) {
    if (value !== null && value !== undefined && value !== "") found.set(name, value);
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}

/** Ask the API; `signal` ends it early. Returns the JSON, or null where there is none. */
export async function ask(method, where, { query, body, signal, patience = PATIENCE_MS, as } = {}) {
  const ends = [AbortSignal.timeout(patience), ...(signal ? [signal] : [])];
  let answer;
  try {
    answer = await fetch(`../v1/${where}${queryOf(query)}`, {
      method, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
      signal: AbortSignal.any(ends),
      headers: { Authorization: `Bearer ${as ?? key.get() ?? ""}`, ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(error.name === "TimeoutError" ? "The API did not answer in time." : "The API cannot be reached.", {
      temporary: true, title: "No answer", remedy: "Is `qim api` running? It is tried again as long as the page is open.",
    });
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok) return content;
  if (answer.status === 401 && as === undefined) onSignedOut();
  throw new ApiError(content?.detail || `The API answered ${answer.status}.`, {
    name: content?.name, status: answer.status, field: content?.field, temporary: content?.temporary,
    title: content?.name ? content.name.replaceAll("_", " ").toLowerCase().replace(/^./, (c) => c.toUpperCase()) : null,
  });
}

export const get = (where, query, signal) => ask("GET", where, { query, signal });
