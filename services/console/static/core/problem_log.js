// Problems that were closed while the console was open: what is gone is not forgotten.
import { effect, signal } from './html.js';
import { fabric } from './fabric.js';

const KEPT_MAX = 100;

export const closedProblems = signal([]);

let before = new Map();

effect(() => {
  const found = fabric.value;
  if (!found) return;
  const now = new Map((found.problems ?? []).map((each) => [each.id, each]));
  const gone = [...before].filter(([id]) => !now.has(id)).map(([, each]) => ({ ...each, closed_us: found.time_us }));
  before = now;
  if (gone.length) closedProblems.value = [...gone, ...closedProblems.peek()].slice(0, KEPT_MAX);
});
