// The documented resource tree of instances, always asked through the serving instance:
// raylay/peer/NAME/amps/…. All values come as texts, so that no 64-bit number is rounded.
import { useEffect, useMemo, useRef, useState } from './html.js';
import { getJson } from './api.js';
import { fabric } from './fabric.js';
import { paused, usePolled } from './poll.js';

// One step of a path. A full stop is encoded too: the server would read it as a format.
export const step = (name) => encodeURIComponent(name).replaceAll('.', '%2E');

// The relative URL of a resource. `path` has encoded steps, without `amps/` in front.
export const ampsUrl = (instance, path, format = 'json') =>
  `raylay/peer/${step(instance)}/amps/${path}.${format}`;

// The node that an answer holds at a path, or undefined. Entries of collections are found by id.
export function nodeAt(answer, path) {
  let node = answer?.amps;
  for (const each of path.split('/')) {
    if (node === undefined || node === null) return undefined;
    const name = decodeURIComponent(each);
    node = Array.isArray(node) ? node.find((entry) => entry.id === name) : node[name];
  }
  return node;
}

// The text of a leaf below a node; '' where it is unknown.
export function leaf(node, path) {
  let found = node;
  for (const each of path.split('/')) {
    if (found === undefined || found === null) return '';
    found = Array.isArray(found) ? found.find((entry) => entry.id === each) : found[each];
  }
  return typeof found === 'string' || typeof found === 'number' ? String(found) : '';
}

// A leaf's number: null where unknown, BigInt where a double would round it.
export function num(text) {
  if (text === '' || text === null || text === undefined) return null;
  if (typeof text === 'string' && /^-?\d{16,}$/.test(text)) return BigInt(text);
  const found = Number(text);
  return Number.isFinite(found) ? found : null;
}

export const isTrue = (text) => text === 'true' || text === true;

// A documented time (20230830T000000.000000Z, or microseconds) as microseconds since 1970, or null.
export function timeOf(text) {
  if (!text) return null;
  if (/^\d{12,}$/.test(text)) return Number(text);
  const found = /^(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d):?(\d\d)(?:\.(\d{1,6}))?/.exec(text);
  if (!found) return null;
  const [, year, month, day, hour, minute, second, fraction = ''] = found;
  return (
    Date.UTC(+year, +month - 1, +day, +hour, +minute, +second) * 1000 +
    Number(fraction.padEnd(6, '0'))
  );
}

// One resource of one instance, polled.
export function useAmps(instance, path, everyMs) {
  const polled = usePolled(ampsUrl(instance, path), everyMs);
  const node = useMemo(() => nodeAt(polled.data, path), [polled.data, path]);
  return { ...polled, node };
}

const AT_ONCE = 3;
const SHOWN_EVERY_MS = 250;
const FIRST_ROUND_MS = 2_500;

// One resource of every instance, polled. `of`: Map of instance name → {node, error, at}. Instances
// that did not answer come last, so that a silent one delays none; what it said last stays, with
// its age. Pausing, hiding the page and leaving it stop the rounds.
export function useFabricAmps(path, everyMs = 2000) {
  const [state, setState] = useState({ of: new Map(), rounds: 0 });
  const names = (fabric.value?.instances ?? []).map((each) => each.name).join('\n');
  const latest = useRef(names);
  latest.current = names;
  const begun = names !== '';
  useEffect(() => {
    if (!begun) return undefined;
    const control = new AbortController();
    const of = new Map();
    let timer = 0;
    let shown = 0;
    const show = (rounds) => {
      shown = performance.now();
      setState((before) => ({ of: new Map(of), rounds: rounds ?? before.rounds }));
    };
    const ask = async (name) => {
      const before = of.get(name);
      try {
        const answer = await getJson(ampsUrl(name, path), { signal: control.signal });
        of.set(name, { node: nodeAt(answer, path) ?? [], error: null, at: performance.now() });
      } catch (error) {
        if (control.signal.aborted) return;
        of.set(name, { node: before?.node, error, at: before?.at ?? null });
      }
      if (performance.now() - shown > SHOWN_EVERY_MS) show();
    };
    const round = async (count) => {
      if (count === 0 || (!paused.peek() && !document.hidden)) {
        const wanted = latest.current.split('\n');
        for (const name of [...of.keys()]) if (!wanted.includes(name)) of.delete(name);
        wanted.sort((a, b) => Boolean(of.get(a)?.error) - Boolean(of.get(b)?.error));
        const next = wanted[Symbol.iterator]();
        const worker = async () => {
          for (const name of next) {
            if (control.signal.aborted) return;
            await ask(name);
          }
        };
        await Promise.all(Array.from({ length: AT_ONCE }, worker));
        if (control.signal.aborted) return;
        show(count + 1);
      }
      timer = setTimeout(() => round(count + 1), everyMs);
    };
    round(0);
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [path, everyMs, begun]);
  const silent = [...state.of].filter(([, each]) => each.error);
  // Rows keep their places once they are shown: the first round is waited for, but not for long.
  const isFirst = state.rounds === 0;
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), FIRST_ROUND_MS);
    return () => clearTimeout(timer);
  }, []);
  return { of: state.of, loading: isFirst && !(isLate && state.of.size), isFirst, silent };
}
