/** Doing something again and again while a page is open and its tab is looked at; at once when asked to. */

/** Look now: what is shown was chosen anew. */
export function lookNow() {
  dispatchEvent(new Event("qim-look"));
}

/**
 * Call `work` now and every `ms` after it ended, until `signal` ends. A failure is told by `failed` and tried
 * again, after longer and longer waits up to half a minute. A hidden tab asks nothing.
 */
export async function every(ms, signal, work, failed) {
  let wait = ms;
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await work();
        wait = ms;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) return;
        failed(error);
        wait = Math.min(30000, wait * 2);
      }
    }
    await pause(wait, signal);
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => { clearTimeout(timer); document.removeEventListener("visibilitychange", end); removeEventListener("qim-look", end); resolve(); };
    const timer = setTimeout(end, ms);
    document.addEventListener("visibilitychange", end, { once: true });
    addEventListener("qim-look", end, { once: true });
    signal.addEventListener("abort", end, { once: true });
  });
}
