// What the subscriptions of an instance share: orders of paginated ones, groups of aggregated ones, and
// what waits for conflated ones. Nothing is shown where there are none.
import { html } from '../core/html.js';
import { isTrue, leaf, num, step, useAmps } from '../core/amps.js';
import { bytes, exact, rate, UNKNOWN } from '../core/format.js';
import { Number as HistoryNumber } from '../core/history_link.js';
import { Facts } from '../core/parts.js';
import { href } from '../core/route.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';

const PAGES = 'instance/memory/paginations';
const GROUPS = 'instance/raylay/aggregations';
const CONFLATED = 'instance/raylay/conflated_subscriptions';
const NONE = [];

export function SharedBySubscriptions({ name }) {
  const pages = useAmps(name, PAGES, 2000);
  const groups = useAmps(name, GROUPS, 2000);
  const conflated = useAmps(name, CONFLATED, 2000);
  return html`
    <${Conflated} name=${name} node=${conflated.node} />
    <${Rows} id="paginations" title="Ordered records, shared by paginated subscriptions" name=${name} path=${PAGES} node=${pages.node}
      sort="-memory" columns=${pageColumns} />
    <${Rows} id="aggregations" title="Groups, shared by aggregated subscriptions and queries" name=${name} path=${GROUPS} node=${groups.node}
      sort="-memory" columns=${groupColumns} />`;
}

function Rows({ id, title, name, path, node, sort, columns }) {
  const rows = (node ?? NONE).map((each) => ({ ...each, path: `${path}/${step(each.id)}` }));
  if (!rows.length) return null;
  return html`<h2>${title}</h2>
    <${Table} id=${id} prefix=${id} filter=${false} columns=${columns(name)} rows=${rows} sort=${sort} caption=${`${title}, at ${name}`} />`;
}

const text = (key, title, path, more = {}) => ({
  key, title, value: (row) => leaf(row, path), text: (row) => leaf(row, path) || UNKNOWN, ...more,
});

const number = (name) => (key, title, path, format = exact) => ({
  key, title, numeric: true, value: (row) => num(leaf(row, path)), text: (row) => format(num(leaf(row, path))),
  cell: (row) => html`<${HistoryNumber} instance=${name} path=${`${row.path}/${path}`} label=${`${title} at ${name}`}>${format(num(leaf(row, path)))}</${HistoryNumber}>`,
});

const topic = (path) => ({
  ...text('topic', 'Topic', path, { wide: true }),
  cell: (row) => html`<a href=${href('topic', [leaf(row, path)])}>${leaf(row, path)}</a>`,
});

const built = (path) => ({
  key: 'state', title: 'State', value: (row) => (isTrue(leaf(row, path)) ? 'ready' : 'being built'),
  cell: (row) => html`<${Status} level=${isTrue(leaf(row, path)) ? 'ready' : 'working'} text=${isTrue(leaf(row, path)) ? 'ready' : 'being built'} />`,
});

const pageColumns = (name) => {
  const of = number(name);
  return [
    topic('name'), built('raylay/is_built'), text('order', 'Order', 'raylay/order_by'), text('filter', 'Filter', 'raylay/filter'),
    of('records', 'Records', 'raylay/records'), of('windows', 'Pages', 'raylay/windows'), of('subscriptions', 'Subscriptions', 'raylay/subscriptions'),
    of('memory', 'Memory', 'size', bytes),
  ];
};

const groupColumns = (name) => {
  const of = number(name);
  return [
    topic('topic'), built('is_built'), text('projection', 'Projection', 'projection', { wide: true, wraps: true }), text('grouping', 'Grouping', 'grouping'),
    text('filter', 'Filter', 'filter'), of('users', 'Users', 'users'), of('records', 'Groups', 'records'), of('updates', 'Updates', 'updates_per_sec', rate),
    of('memory', 'Memory', 'memory_bytes', bytes),
  ];
};

function Conflated({ name, node }) {
  if (!node || !num(node.subscriptions)) return null;
  const of = (path, format = exact) => html`<${HistoryNumber} instance=${name} path=${`${CONFLATED}/${path}`} label=${path}>${format(num(node[path]))}</${HistoryNumber}>`;
  return html`<section class="card"><h2>Conflated subscriptions</h2>
    <${Facts} facts=${[
      ['Subscriptions', of('subscriptions')],
      ['Definitions', of('definitions')],
      ['Changes that wait', of('pending')],
      ['Their memory', of('pending_bytes', bytes)],
      ['Given', of('given_per_sec', rate)],
      ['Replaced by later ones', of('conflated_per_sec', rate)],
    ]} /></section>`;
}
