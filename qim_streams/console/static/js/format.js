/** Numbers and times for people. Null is a dash: it was not told. */

const NUMBER = new Intl.NumberFormat("en-GB");

export function number(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** A rate per second. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 100 ? NUMBER.format(Math.round(value)) : value.toFixed(value >= 10 || value === 0 ? 0 : 1)}/s`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 60) return `${value.toFixed(value && value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

/** A moment in ms since the epoch, in the reader's zone, with milliseconds. */
export function moment(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const two = (n, width = 2) => String(n).padStart(width, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `
    + `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
}

/** How long ago. */
export function ago(ms, now = Date.now()) {
  return ms ? `${seconds(Math.max(0, (now - ms) / 1000))} ago` : "–";
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return value < 1024 ? `${value} B` : `${(value / 1024).toFixed(1)} KiB`;
}

/** `one` or `many`, with the number. */
export function count(n, one, many = `${one}s`) {
  return `${number(n)} ${n === 1 ? one : many}`;
}
