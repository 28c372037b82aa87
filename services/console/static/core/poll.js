// Asks for the same path again and again: one request at a time, slower where none is answered, not
// at all while the page is hidden or paused.
import { signal, useEffect, useState } from './html.js';
import { getJson } from './api.js';

const BACK_OFF_MS_MAX = 10_000;

export const paused = signal(false);

// Polls until the returned function is called. onAnswer({data}) or ({error}) after each request.
export function poll(path, everyMs, onAnswer) {
  const control = new AbortController();
  let timer = 0;
  let failures = 0;
  let isAsking = false;
  let isEnded = false;

  async function askOnce() {
    if (isAsking || isEnded) return;
    isAsking = true;
    const began = performance.now();
    try {
      const data = await getJson(path, { signal: control.signal });
      failures = 0;
      if (!isEnded) onAnswer({ data });
    } catch (error) {
      failures += 1;
      if (!isEnded) onAnswer({ error });
    } finally {
      isAsking = false;
      plan(began);
    }
  }

  function plan(began = performance.now()) {
    clearTimeout(timer);
    if (isEnded || document.hidden || paused.peek()) return;
    const waitMs = failures ? Math.min(everyMs * 2 ** failures, BACK_OFF_MS_MAX) : everyMs;
    timer = setTimeout(askOnce, Math.max(0, began + waitMs - performance.now()));
  }

  const wake = () => {
    if (document.hidden || paused.peek()) clearTimeout(timer);
    else askOnce();
  };
  document.addEventListener('visibilitychange', wake);
  const unsubscribe = paused.subscribe(() => isEnded || wake());
  // What is asked for while the page is paused is asked once: a page that opens shows something.
  askOnce();
  return () => {
    isEnded = true;
    clearTimeout(timer);
    control.abort();
    unsubscribe();
    document.removeEventListener('visibilitychange', wake);
  };
}

// Returns {data, error, ageS, loading}. The last data stay where a later request fails.
// A path that is empty asks for nothing.
export function usePolled(path, everyMs) {
  const [state, setState] = useState({ path });
  const [, setTick] = useState(0);
  useEffect(() => {
    setState({ path });
    if (!path) return undefined;
    return poll(path, everyMs, ({ data, error }) =>
      setState((last) =>
        data === undefined
          ? { ...last, error }
          : { path, data, error: null, atMs: performance.now() },
      ),
    );
  }, [path, everyMs]);
  const isStale = Boolean(state.error) && state.atMs !== undefined;
  useEffect(() => {
    if (!isStale) return undefined;
    const timer = setInterval(() => setTick((last) => last + 1), 1_000);
    return () => clearInterval(timer);
  }, [isStale]);
  const own = state.path === path ? state : {};
  return {
    data: own.data,
    error: own.error ?? null,
    ageS: own.atMs === undefined ? null : (performance.now() - own.atMs) / 1000,
    loading: own.data === undefined && !own.error,
  };
}
