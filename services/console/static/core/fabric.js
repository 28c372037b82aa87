// The state of the whole fabric, read once for all pages.
import { computed, signal } from './html.js';
import { poll } from './poll.js';

const EVERY_MS = 1_000;

export const fabric = signal(null); // The last fabric.json.
export const fabricError = signal(null);
export const fabricAgeS = signal(null); // Whole seconds since the last answer.

export const instancesByName = computed(
  () => new Map((fabric.value?.instances ?? []).map((each) => [each.name, each])),
);
export const linksById = computed(
  () => new Map((fabric.value?.links ?? []).map((each) => [each.id, each])),
);

// The server's time of the last answer: what ages are counted from.
export const nowUs = computed(() => fabric.value?.time_us ?? null);

let atMs = null;

export function startFabric(path = 'raylay/fabric.json') {
  const stop = poll(path, EVERY_MS, ({ data, error }) => {
    if (data === undefined) {
      fabricError.value = error;
      return;
    }
    atMs = performance.now();
    fabricAgeS.value = 0;
    fabricError.value = null;
    fabric.value = data;
  });
  const timer = setInterval(() => {
    if (atMs !== null) fabricAgeS.value = Math.floor((performance.now() - atMs) / 1000);
  }, 1_000);
  return () => {
    clearInterval(timer);
    stop();
  };
}
