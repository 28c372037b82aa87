// Ctrl-K: a page, instance, link, queue, view or topic by a part of its name.
import { html, useEffect, useMemo, useRef, useState } from './html.js';
import { Dialog } from './dialog.js';
import { fabric } from './fabric.js';
import { go, href } from './route.js';
import { Status } from './status.js';
import { pages } from '../pages.js';

const SHOWN_MAX = 40;

function places(found) {
  return [
    ...Object.entries(pages).filter(([, { nav }]) => nav)
      .map(([name, { title }]) => ({ kind: 'page', text: title, href: href(name) })),
    ...(found?.instances ?? []).map(({ name, level, group }) => (
      { kind: 'instance', text: name, more: group, level, href: href('instance', [name]) })),
    ...(found?.links ?? []).map(({ id, from, destination, level }) => (
      { kind: 'link', text: `${from} → ${destination}`, level, href: href('link', [id]) })),
    ...(found?.queues ?? []).map(({ name, level }) => (
      { kind: 'queue', text: name, level, href: href('queue', [name]) })),
    ...(found?.views ?? []).map(({ name, level }) => (
      { kind: 'view', text: name, level, href: href('view', [name]) })),
    ...(found?.topics ?? []).map(({ name }) => (
      { kind: 'topic', text: name, href: href('topic', [name]) })),
  ];
}

export function Find({ onClose }) {
  const [words, setWords] = useState('');
  const [at, setAt] = useState(0);
  const list = useRef(null);
  // The list of when it was opened: nothing moves under the finger.
  const all = useMemo(() => places(fabric.peek()), []);
  const shown = useMemo(() => {
    const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
    return all
      .filter(({ kind, text }) => parts.every((part) => `${kind} ${text}`.toLowerCase().includes(part)))
      .sort((a, b) => starts(b, parts) - starts(a, parts))
      .slice(0, SHOWN_MAX);
  }, [words]);
  useEffect(() => list.current?.children[at]?.scrollIntoView({ block: 'nearest' }), [at, shown]);
  const open = (place) => {
    onClose();
    if (place) setTimeout(() => go(place.href)); // After the dialog gave the focus back.
  };
  const onKeyDown = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      setAt((last) => Math.min(Math.max(last + by, 0), shown.length - 1));
    } else if (event.key === 'Enter') {
      event.preventDefault();
      open(shown[at]);
    }
  };
  return html`<${Dialog} title="Find" onClose=${onClose} class="find">
    <input type="text" role="combobox" aria-expanded="true" aria-controls="found" data-focus
      aria-activedescendant=${shown.length ? `found-${at}` : undefined} aria-autocomplete="list"
      aria-label="page, instance, link, queue, view or topic" placeholder="page, instance, link, queue, view, topic"
      value=${words} spellcheck="false" autocomplete="off" onKeyDown=${onKeyDown}
      onInput=${(event) => {
        setWords(event.target.value);
        setAt(0);
      }} />
    <ul id="found" role="listbox" aria-label="found" class="found" ref=${list}>
      ${shown.map((place, index) => html`<li key=${place.href} id="found-${index}" role="option"
          aria-selected=${index === at} onClick=${() => open(place)}>
        <span class="found-kind muted">${place.kind}</span>
        <span class="found-text">${place.text}</span>
        ${place.level && place.level !== 'ready' ? html`<${Status} level=${place.level} />` : null}
      </li>`)}
    </ul>
    ${shown.length ? null : html`<p class="muted">Nothing here has “${words}” in its name.</p>`}
  <//>`;
}

const starts = ({ text }, [first = '']) => Number(text.toLowerCase().startsWith(first));
