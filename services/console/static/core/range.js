// The range of time that history and events show: `from` and `to` of the URL, which go along from
// page to page. Relative (-1h) ones follow the server's clock; absolute ones stay.
import { html, useEffect, useState } from './html.js';
import { nowUs } from './fabric.js';
import { route, setParam } from './route.js';

const SECONDS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
export const PRESETS = [
  ['-15m', '15 m'], ['-1h', '1 h'], ['-6h', '6 h'], ['-1d', '1 d'], ['-1w', '1 w'],
];
export const FALLBACK = '-1h';

// A point in time as seconds since 1970, or null where the text is none.
export function readTime(text, nowS) {
  if (!text || text === 'now') return nowS;
  const relative = /^-(\d+(?:\.\d+)?)([smhdw])$/.exec(text);
  if (relative) return nowS - Number(relative[1]) * SECONDS[relative[2]];
  const zoned = /[zZ]|[+-]\d\d:?\d\d$/.test(text) ? text : `${text.trim().replace(' ', 'T')}Z`;
  const found = Date.parse(zoned.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)/, '$1-$2-$3T$4:$5:$6'));
  return Number.isNaN(found) ? null : found / 1000;
}

export const isoOf = (s) => new Date(s * 1000).toISOString().replace(/\.000Z$/, 'Z');

// The range of the URL: {fromS, toS, isLive, error}.
export function rangeOf(params, nowS, fallback = FALLBACK) {
  const toS = readTime(params.to, nowS);
  const fromS = readTime(params.from || fallback, nowS);
  const isLive = !params.to || params.to === 'now';
  const bad = toS === null ? params.to : fromS === null ? params.from : null;
  if (bad !== null) {
    return {
      fromS: nowS - 3600, toS: nowS, isLive: true,
      error: `${bad} is no time: write -15m, or 2026-11-27T04:12:07Z`,
    };
  }
  if (fromS >= toS) {
    return { fromS: toS - 3600, toS, isLive, error: 'The range ends before it begins: the hour before its end is shown' };
  }
  return { fromS, toS, isLive, error: null };
}

export function setRange(fromS, toS) {
  setParam('from', isoOf(Math.floor(fromS)));
  setParam('to', isoOf(Math.ceil(toS)));
}

// The server's time in whole seconds, or the browser's until the first answer.
export const serverNowS = () => Math.floor((nowUs.value ?? Date.now() * 1000) / 1e6);

// `fallback`: what no range in the URL means; 'all' adds that choice.
export function RangeBar({ range, children, fallback = FALLBACK }) {
  const { params } = route.value;
  const presets = fallback === 'all' ? [['all', 'All'], ...PRESETS] : PRESETS;
  const isPreset = !params.to && presets.some(([key]) => key === (params.from || fallback));
  const choose = (key) => {
    setParam('from', key === fallback ? null : key);
    setParam('to', null);
  };
  const shift = (share) => {
    const by = (range.toS - range.fromS) * share;
    setRange(range.fromS + by, range.toS + by);
  };
  const widen = () => {
    const by = (range.toS - range.fromS) / 2;
    setRange(range.fromS - by, Math.min(range.toS + by, serverNowS()));
  };
  return html`<div class="range-bar" role="group" aria-label="Range of time">
    <div class="segments" role="group" aria-label="Up to now">${presets.map(
      ([key, text]) => html`<button type="button" key=${key}
        aria-pressed=${isPreset && key === (params.from || fallback)} onClick=${() => choose(key)}>${text}</button>`,
    )}</div>
    <${TimeInput} name="from" label="From" shown=${params.from || (fallback === 'all' ? '' : fallback)} />
    <${TimeInput} name="to" label="to" shown=${params.to || 'now'} />
    <span class="range-steps">
      <button type="button" class="button button-small" title="Earlier" aria-label="Earlier by half the range"
        onClick=${() => shift(-0.5)}>←</button>
      <button type="button" class="button button-small" title="Later" aria-label="Later by half the range"
        disabled=${range.isLive} onClick=${() => shift(0.5)}>→</button>
      <button type="button" class="button button-small" title="Twice the range" aria-label="Show twice the range"
        onClick=${widen}>−</button>
    </span>
    ${children}
    ${range.error && html`<p class="range-error" role="alert">▲ ${range.error}</p>`}
  </div>`;
}

function TimeInput({ name, label, shown }) {
  const [text, setText] = useState(shown);
  useEffect(() => setText(shown), [shown]);
  const isBad = text !== '' && readTime(text, serverNowS()) === null;
  const apply = () => {
    if (!isBad && text !== shown) setParam(name, text === 'now' ? null : text.trim() || null);
  };
  return html`<label class="range-input">${label} <input type="text" name=${name} value=${text}
    spellcheck="false" autocomplete="off" aria-invalid=${isBad}
    title="Such as -15m, -2h, 2026-11-27T04:12:07Z; times without a zone are UTC"
    onInput=${(event) => setText(event.target.value)} onBlur=${apply}
    onKeyDown=${(event) => event.key === 'Enter' && apply()} /></label>`;
}
