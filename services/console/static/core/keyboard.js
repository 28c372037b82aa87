// The keys of every page. Letters belong to a field while one is written in.
import { go, href } from './route.js';
import { paused } from './poll.js';
import { pages } from '../pages.js';

const WAIT_MS = 1_500; // For the letter after g.

let gAtMs = -Infinity;

export const KEYS = [
  ['?', 'this help'],
  ['/', 'filter the table'],
  ['Ctrl K', 'find a page, instance, link, queue, view or topic'],
  ['j  k', 'next and previous row; Enter opens it'],
  ['.', 'actions of what is shown'],
  ['p', 'pause and go on'],
  ['Esc', 'close, leave a field, or go back'],
];

export function onKey(event, opened) {
  if (event.defaultPrevented || event.altKey) return;
  const isDialogOpen = document.querySelector('dialog[open]') !== null;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    if (!isDialogOpen) opened.value = 'find';
    return;
  }
  if (event.ctrlKey || event.metaKey || isDialogOpen) return;
  const field = event.target.closest?.('input, textarea, select, [contenteditable]');
  if (field) {
    if (event.key === 'Escape') field.blur();
    return;
  }
  const isAfterG = performance.now() - gAtMs < WAIT_MS;
  gAtMs = -Infinity;
  if (isAfterG) {
    const found = Object.entries(pages).find(([, { key }]) => key === event.key);
    if (found) {
      event.preventDefault();
      go(href(found[0]));
    }
    return;
  }
  const act = ACTS[event.key];
  if (act && act(event, opened) !== false) event.preventDefault();
}

const ACTS = {
  '?': (_, opened) => { opened.value = 'help'; },
  '/': () => focusOn('main [data-filter]'),
  g: () => { gAtMs = performance.now(); },
  p: () => { paused.value = !paused.value; },
  j: () => step(1),
  k: () => step(-1),
  '.': () => focusOn('main [data-actions] button, main [data-actions] a, main button[data-actions]'),
  Escape: () => {
    if (history.length > 1 && location.hash.length > 2) history.back();
    return false;
  },
};

function focusOn(selector) {
  const found = document.querySelector(selector);
  if (!found) return false;
  found.focus();
  found.select?.();
  return true;
}

// Rows without an address are not stopped at.
function step(by) {
  const links = [...document.querySelectorAll('main tr[data-row] .row-title, main [data-row] > a')];
  if (!links.length) return false;
  const own = document.activeElement?.closest('[data-row]');
  const at = own ? links.findIndex((link) => own.contains(link)) : by > 0 ? -1 : links.length;
  const next = links[Math.min(Math.max(at + by, 0), links.length - 1)];
  next.focus();
  next.scrollIntoView({ block: 'nearest' });
  return true;
}
