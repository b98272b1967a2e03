/** The tenant that pages speak of: chosen once, remembered for this tab. */

import { get } from "./api.js";
import { h } from "./dom.js";

const LAST = "qim.console.tenant";

/** The tenant of the parameters, else the last one, else nothing. */
export function tenantOf(params) {
  const tenant = params.get("tenant") || sessionStorage.getItem(LAST) || "";
  if (tenant) sessionStorage.setItem(LAST, tenant);
  return tenant;
}

/** A field named `tenant` that offers the tenants there are. */
export function tenantField(value, signal, required = true) {
  const list = h("datalist", { id: `tenants-${Math.random().toString(36).slice(2)}` });
  get("tenants", null, signal)
    .then((found) => list.append(...found.tenants.map((one) => h("option", { value: one }))))
    .catch(() => { /* it can be typed as well */ });
  return h("label", { class: "field" }, "Tenant",
    h("input", { name: "tenant", value, list: list.id, required, autocomplete: "off", spellcheck: "false", pattern: "[A-Za-z0-9][A-Za-z0-9._@~\\-]{0,127}" }), list);
}

/** Ask for the tenant where none is known yet; `shown(tenant)` goes on. */
export function tenantForm(tenant, where, signal, ...more) {
  const form = h("form", {
    class: "form card", onsubmit: (event) => {
      event.preventDefault();
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
      location.hash = `#/${where}?${query}`;
    },
  }, tenantField(tenant, signal), more, h("div", {}, h("button", { class: "primary", type: "submit" }, "Show")));
  return form;
}
