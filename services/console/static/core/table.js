// A table that sorts, filters, exports, and holds thousands of rows: only those in sight are drawn.
//
//   <Table id caption columns rows rowKey rowHref rowClass empty sort filter prefix actions/>
//
// A column is {key, title, numeric, value(row), text(row), search(row), cell(row), hint,
// wide, wraps, minor, hidden}:
//   value  what it is sorted by and exported as; default row[key]
//   text   what is shown and filtered by; default String(value)
//   search further words that a filter finds
//   cell   a component's output instead of the text
//   hint   a longer title
//   minor  shown on wide screens, and on phones, where a row is a card; 'tablet': left out only below 1200 px
//   wide, wraps  takes what the others leave; may have two lines
// The order and the filter stand in the address (`sort=-lag`, `q=lon`); with `prefix="x"` as `x.sort`
// and `x.q`, for a second table of a page.
//
// A refresh moves no row: rows keep their places while their values change, until one sorts again.
import { classes, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './html.js';
import { exact, isKnown, UNKNOWN } from './format.js';
import { go, route, setParam } from './route.js';
import {
  elementScroll, measureElement, observeElementOffset, observeElementRect, Virtualizer,
} from '../vendor/virtual-core/index.js';

const VIRTUAL_ROWS = 200;
const ROW_PX = 28;
const TOUCH_ROW_PX = 44;
const OVERSCAN = 12;
const collator = new Intl.Collator('en', { numeric: true, sensitivity: 'base' });

export function valueOf(column, row) {
  return column.value ? column.value(row) : row[column.key];
}

export function textOf(column, row) {
  if (column.text) return column.text(row) ?? UNKNOWN;
  const value = valueOf(column, row);
  if (!isKnown(value)) return UNKNOWN;
  return column.numeric ? exact(value) : String(value);
}

const isNumber = (value) => typeof value === 'number' || /^-?\d+(\.\d+)?$/.test(value);

// 64-bit numbers come as texts: those of more than 15 digits are compared without rounding.
function compare(a, b) {
  if (isNumber(a) && isNumber(b)) {
    const difference = Number(a) - Number(b);
    if (difference || String(a).length <= 15 || /\./.test(`${a}${b}`)) return difference;
    const exactly = BigInt(a) - BigInt(b);
    return exactly < 0n ? -1 : Number(exactly > 0n);
  }
  return collator.compare(String(a), String(b));
}

// Returns rows in the order of a column; what is unknown comes last in either direction.
export function sorted(rows, column, isDown) {
  const sign = isDown ? -1 : 1;
  return rows
    .map((row) => [valueOf(column, row), row])
    .sort(([a], [b]) => {
      if (!isKnown(a) || !isKnown(b)) return Number(!isKnown(a)) - Number(!isKnown(b));
      return sign * compare(a, b);
    })
    .map(([, row]) => row);
}

const searched = (column, row) =>
  (column.search ? `${textOf(column, row)} ${column.search(row)}` : textOf(column, row));

// Returns the rows that have every word of the filter in one of their texts.
export function filtered(rows, columns, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const text = columns.map((column) => searched(column, row)).join('\n').toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

// A spreadsheet reads a text that begins with one of = + - @ as a formula: a quote prevents that.
function csvField(value) {
  if (!isKnown(value)) return '';
  let text = String(value);
  if (/^[=+\-@\t\r]/.test(text) && !isNumber(value)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(columns, rows) {
  const field = (column, row) => {
    const value = valueOf(column, row);
    return column.numeric || typeof value === 'string' ? value : textOf(column, row);
  };
  return [
    columns.map((column) => csvField(column.title)).join(','),
    ...rows.map((row) => columns.map((column) => csvField(field(column, row))).join(',')),
    '',
  ].join('\r\n');
}

export function download(name, text, type = 'text/csv') {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Returns the rows in their kept order, whether that is out of date, and how to sort again.
function useKeptOrder(rows, column, isDown, rowKey) {
  const kept = useRef({ order: null, places: null });
  const [, redraw] = useState(0);
  const wanted = column ? sorted(rows, column, isDown) : rows;
  const order = `${column?.key}/${isDown}`;
  if (!column?.numeric) {
    kept.current = { order, places: null };
    return { shown: wanted, isOutdated: false, again: () => {} };
  }
  const renew = () => {
    kept.current = { order, places: new Map(wanted.map((row, place) => [rowKey(row), place])) };
  };
  if (kept.current.order !== order || !kept.current.places?.size) renew();
  const { places } = kept.current;
  const last = places.size;
  for (const row of wanted) {
    const key = rowKey(row);
    if (!places.has(key)) places.set(key, places.size);
  }
  if (places.size > 2 * wanted.length + last) renew();
  const shown = [...wanted].sort((a, b) => places.get(rowKey(a)) - places.get(rowKey(b)));
  const isOutdated = shown.some(
    (row, place) => place && compareKnown(column, shown[place - 1], row, isDown) > 0,
  );
  return {
    shown,
    isOutdated,
    again: () => {
      renew();
      redraw((number) => number + 1);
    },
  };
}

function compareKnown(column, a, b, isDown) {
  const [first, second] = [valueOf(column, a), valueOf(column, b)];
  if (!isKnown(first) || !isKnown(second)) {
    return Number(!isKnown(first)) - Number(!isKnown(second));
  }
  return (isDown ? -1 : 1) * compare(first, second);
}

export function Table({
  id, caption, columns: all, rows, empty = null, rowKey = defaultKey, rowHref, rowClass,
  sort: defaultSort = '', filter = true, prefix = '', actions = null, csv = true,
}) {
  const columns = all.filter((column) => !column.hidden);
  const { params } = route.value;
  const name = (param) => (prefix ? `${prefix}.${param}` : param);
  const order = params[name('sort')] ?? defaultSort;
  const isDown = order.startsWith('-');
  const column = columns.find(({ key }) => key === order.replace(/^-/, ''));
  const words = filter ? (params[name('q')] ?? '') : '';
  const found = useMemo(
    () => filtered(rows, columns, words),
    [rows, words, columns.map(({ key }) => key).join()],
  );
  const { shown, isOutdated, again } = useKeptOrder(found, column, isDown, rowKey);
  if (!rows.length && empty) return empty;

  const onSort = (key, numeric) => {
    const next = column?.key === key ? (isDown ? key : `-${key}`) : numeric ? `-${key}` : key;
    setParam(name('sort'), next === defaultSort ? null : next);
  };
  const title = typeof caption === 'string' ? caption : id;
  return html`<section class="table-section" id=${id}>
    <div class="table-bar">
      ${filter ? html`<input class="filter" type="search" placeholder="filter" data-filter
        aria-label="filter ${title}" value=${words} spellcheck="false" autocomplete="off"
        title="Filter: every word must be in the row. Key: /"
        onInput=${(event) => setParam(name('q'), event.target.value)} />` : null}
      <span class="muted table-count" role="status">
        ${found.length === rows.length
          ? exact(rows.length)
          : `${exact(found.length)} of ${exact(rows.length)}`}
      </span>
      <button type="button" class=${classes('button button-quiet', !isOutdated && 'invisible')}
        onClick=${again} title="The values have changed since the rows were put in order"
        disabled=${!isOutdated}>sort again</button>
      <span class="spacer"></span>
      ${actions}
      ${csv ? html`<button type="button" class="button button-quiet" aria-label="download ${title} as CSV"
        onClick=${() => download(`${id}.csv`, toCsv(columns, shown))}>CSV</button>` : null}
    </div>
    <${Body} ...${{ id, caption, columns, rowKey, rowHref, rowClass, column, isDown, onSort }}
      rows=${shown} />
    ${rows.length && !found.length
      ? html`<p class="muted table-none">No row has “${words}”.
          <button type="button" class="button button-quiet"
            onClick=${() => setParam(name('q'), null)}>show all</button></p>`
      : null}
  </section>`;
}

const defaultKey = (row) => row.id ?? row.name;

const tableClass = ({ columns }) => (columns.some(({ wide }) => wide) ? 'has-wide' : undefined);

// A column never becomes narrower while it is shown: what changes in one would move all others.
function useKeptWidths(key) {
  const head = useRef(null);
  const kept = useRef({ width: 0, key: '' });
  useLayoutEffect(() => {
    const cells = [...(head.current?.querySelectorAll('th.numeric') ?? [])];
    const isNew = kept.current.width !== innerWidth || kept.current.key !== key;
    kept.current = { width: innerWidth, key };
    if (isNew) for (const cell of cells) cell.style.minWidth = '';
    const widths = cells.map((cell) => `${cell.offsetWidth}px`);
    cells.forEach((cell, at) => {
      if (cell.style.minWidth !== widths[at]) cell.style.minWidth = widths[at];
    });
  });
  return head;
}

function Body(props) {
  return props.rows.length > VIRTUAL_ROWS
    ? html`<${VirtualBody} ...${props} />`
    : html`<div class="table-box"><table class=${tableClass(props)}>
        <${Head} ...${props} />
        <tbody>${props.rows.map((row) => html`<${Row} key=${props.rowKey(row)} row=${row} ...${props} />`)}</tbody>
      </table></div>`;
}

function VirtualBody(props) {
  const { rows, columns, rowKey } = props;
  const box = useRef(null);
  const [, redraw] = useState(0);
  const current = useRef(null);
  const options = {
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => (matchMedia('(pointer: coarse)').matches ? TOUCH_ROW_PX : ROW_PX),
    getItemKey: (index) => rowKey(rows[index]),
    overscan: OVERSCAN,
    initialRect: { width: 0, height: 600 },
    observeElementRect,
    observeElementOffset,
    measureElement,
    scrollToFn: elementScroll,
    onChange: () => redraw((number) => number + 1),
  };
  if (!current.current) current.current = new Virtualizer(options);
  const virtual = current.current;
  virtual.setOptions({ ...virtual.options, ...options });
  useLayoutEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  const items = virtual.getVirtualItems();
  const before = items.length ? items[0].start : 0;
  const after = virtual.getTotalSize() - (items.length ? items.at(-1).end : 0);
  const gap = (height, key) =>
    height > 0
      ? html`<tr key=${key} class="table-gap" aria-hidden="true"><td colspan=${columns.length}
          ref=${(cell) => cell && (cell.style.height = `${height}px`)}></td></tr>`
      : null;
  return html`<div class="table-box table-scroll" ref=${box} tabindex="0" role="region"
      aria-label=${props.caption ?? props.id}>
    <table class=${tableClass(props)} aria-rowcount=${rows.length + 1}>
      <${Head} ...${props} />
      <tbody>
        ${gap(before, 'before')}
        ${items.map(({ index, key }) => html`<${Row} key=${key} row=${rows[index]} index=${index}
          measure=${virtual.measureElement} ...${props} />`)}
        ${gap(after, 'after')}
      </tbody>
    </table>
  </div>`;
}

const minorClass = (minor) => (minor === 'tablet' ? 'minor-tablet' : minor && 'minor');

function Head({ caption, columns, column, isDown, onSort }) {
  const head = useKeptWidths(columns.map(({ key }) => key).join());
  return html`
    ${caption ? html`<caption class="hidden-text">${caption}</caption>` : null}
    <thead ref=${head}><tr>${columns.map(({ key, title, numeric, hint, unsorted, minor }) => {
      const isOrder = column?.key === key;
      return html`<th key=${key} scope="col" class=${classes(numeric && 'numeric', minorClass(minor))}
          aria-sort=${isOrder ? (isDown ? 'descending' : 'ascending') : undefined}>
        ${unsorted
          ? html`<span class="head-text">${title}</span>`
          : html`<button type="button" class="sort" title=${hint ?? title}
              onClick=${() => onSort(key, numeric)}>
              ${numeric ? null : title}<span class="sort-mark"
              aria-hidden="true">${isOrder ? (isDown ? '▼' : '▲') : ''}</span>${numeric ? title : null}</button>`}
      </th>`;
    })}</tr></thead>`;
}

function Row({ row, index, measure, columns, rowHref, rowClass }) {
  const address = rowHref?.(row);
  const onClick = (event) => {
    if (event.target.closest('a, button, input, select, label') || getSelection().toString()) return;
    if (address) go(address);
  };
  return html`<tr ref=${measure} data-index=${index} data-row
      aria-rowindex=${index === undefined ? undefined : index + 2}
      class=${classes(address && 'row-link', rowClass?.(row))} onClick=${address ? onClick : undefined}>
    ${columns.map((column, place) => {
      const text = textOf(column, row);
      const content = column.cell ? column.cell(row) : text;
      const isTitle = place === 0 && address;
      return html`<td key=${column.key} data-title=${column.title}
          class=${classes(column.numeric && 'numeric', column.wide && 'wide',
            minorClass(column.minor), column.wraps && 'wraps', text === UNKNOWN && place > 0 && 'absent')}>
        ${isTitle ? html`<a href=${address} class="row-title">${content}</a>` : content}
      </td>`;
    })}
  </tr>`;
}
