// Queues of the whole fabric, and one queue: depth, owners, leases, consumers, what moved.
import { html, useMemo } from '../core/html.js';
import { Action, actionPath } from '../core/action.js';
import { isTrue, leaf, num, step, useFabricAmps } from '../core/amps.js';
import { fabric } from '../core/fabric.js';
import { count, duration, exact, isKnown } from '../core/format.js';
import { Number } from '../core/history_link.js';
import { Facts, HistoryPanel, PageHead, SilentNotice } from '../core/parts.js';
import { href, route } from '../core/route.js';
import { Empty, Loading } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';
import { clientColumns, subscriberRows } from './clients.js';
import { QUEUE_NUMBERS } from './instance.js';

const QUEUES = 'instance/queues';
const NONE = [];
const MINOR = new Set(['expired', 'in', 'out', 'rate']);
const TRENDS = { growing: '▲ growing', shrinking: '▼ shrinking', steady: '= steady' };

export default function Page({ names }) {
  return route.value.page === 'queue' && names.length
    ? html`<${QueuePage} key=${names.join('/')} name=${names.join('/')} />`
    : html`<${QueuesPage} />`;
}

// An instance names a queue by its topic and its message type, as documented.
const linesOf = (queue, path) =>
  (queue.instances ?? NONE).map((each) => [each.name, `${QUEUES}/${step(`${queue.topic || queue.name}!${queue.message_type}`)}/${path}`]);
const isOf = (entry, name) => entry.id === name || entry.topic === name || leaf(entry, 'raylay/name') === name;

// `name`: in fabric.json; `path`: of the leaf that holds the same at each instance.
function numeric(key, title, name, path, format = exact) {
  return {
    key, title, numeric: true, value: (row) => row[name], text: (row) => format(row[name]),
    cell: (row) => html`<${Number} lines=${linesOf(row, path)} label=${`${title} of ${row.name}`}>${format(row[name])}</${Number}>`,
  };
}

function Depth({ row }) {
  return html`<${Number} lines=${linesOf(row, 'queue_depth')} label=${`depth of ${row.name}`}>${exact(row.depth)}</${Number}>${
    TRENDS[row.trend] && row.depth > 0 && html` <span class=${`trend trend-${row.trend}`}>${TRENDS[row.trend]}</span>`}`;
}

function QueuesPage() {
  const known = fabric.value;
  if (!known) return html`<${PageHead} title="Queues" /><${Loading} text="asking for the fabric" />`;
  const rows = known.queues ?? NONE;
  const columns = [
    { key: 'name', title: 'Queue', wide: true, value: (row) => row.name },
    { key: 'depth', title: 'Depth', numeric: true, value: (row) => row.depth, text: (row) => `${exact(row.depth)} ${TRENDS[row.trend] ?? ''}`.trim(), cell: (row) => html`<${Depth} row=${row} />` },
    numeric('consumers', 'Consumers', 'consumers', 'raylay/subscriptions'),
    numeric('oldest', 'Oldest lease', 'oldest_lease_s', 'age_of_oldest_lease', duration),
    numeric('leased', 'Leased', 'leased', 'raylay/leases'),
    { key: 'owned', title: 'Owned', numeric: true, value: (row) => ownedOf(row), text: (row) => exact(ownedOf(row)),
      cell: (row) => html`<${Number} lines=${linesOf(row, 'owned')} label=${`owned messages of ${row.name}`}>${exact(ownedOf(row))}</${Number}>` },
    numeric('expired', 'Expired', 'expired', 'expired_leases'),
    { ...numeric('in', 'Moved in', 'moved_in', 'transferred_in'), minor: 'tablet' },
    { ...numeric('out', 'Moved out', 'moved_out', 'transferred_out'), minor: 'tablet' },
    { key: 'why', title: 'State', value: (row) => row.level, text: (row) => whyOf(row), cell: (row) => html`<${Status} level=${row.level ?? 'unknown'} text=${whyOf(row)} />` },
  ];
  // The state stands beside the name: it is what one looks for.
  const [first, ...others] = columns;
  const ordered = [first, others.pop(), ...others];
  return html`<${PageHead} title="Queues" />
    <${Table} id="queues" columns=${ordered} rows=${rows} sort="-depth" caption="Queues, deepest first" rowKey=${(row) => `${row.name}/${row.message_type}`}
      rowHref=${(row) => href('queue', [row.name])}
      empty=${html`<${Empty} title="No queue is configured" text="A queue hands each message to one consumer. Queues are declared in the fabric's configuration; see docs/queues.md." command="raylay up fabric.yaml" />`} />`;
}

const ownedOf = (row) =>
  typeof row.owned === 'object' && row.owned !== null
    ? Object.values(row.owned).reduce((sum, each) => (isKnown(each) ? sum + each : sum), 0)
    : row.owned;

function whyOf(row) {
  if (row.level === 'unknown') return 'unknown';
  if (row.consumers === 0 && row.depth > 0) return 'no consumer';
  if (row.level === 'ready') return 'ready';
  if (row.trend === 'growing') return 'growing';
  return row.oldest_lease_s > 0 ? `lease of ${duration(row.oldest_lease_s)}` : row.level;
}

function QueuePage({ name }) {
  const found = (fabric.value?.queues ?? NONE).find((each) => each.name === name);
  const queues = useFabricAmps(QUEUES, 2000);
  const subscriptions = useFabricAmps('instance/subscriptions', 2000);
  const rows = useMemo(
    () => [...queues.of].flatMap(([instance, each]) =>
      (each.node ?? NONE).filter((entry) => isOf(entry, name)).map((entry) => ({ ...entry, instance, path: `${QUEUES}/${step(entry.id)}` }))),
    [queues.of, name],
  );
  const topic = found?.topic ?? rows[0]?.topic;
  const consumers = useMemo(
    () => [...subscriptions.of].flatMap(([instance, each]) => subscriberRows(instance, each.node)).filter((each) => each.topic === name || each.topic === topic),
    [subscriptions.of, name, topic],
  );
  const head = html`<${PageHead} crumbs=${[['Queues', href('queues')]]} title=${name} level=${found?.level} state=${found ? whyOf(found) : undefined}>
    ${found && html`<${Facts} facts=${[
      ['Depth', html`<${Depth} row=${found} />`],
      ['Leased', exact(found.leased)],
      ['Oldest lease', duration(found.oldest_lease_s)],
      ['Consumers', exact(found.consumers)],
      ['Topic', found.topic && html`<a href=${href('topic', [found.topic])}>${found.topic}</a>`],
      ['Message type', found.message_type],
    ]} />`}
  </${PageHead}>`;
  if (!fabric.value || (!found && queues.loading)) return html`${head}<${Loading} text="asking every instance for the queue" />`;
  if (!found && !rows.length) {
    return html`${head}<${SilentNotice} silent=${queues.silent} what="Queues" /><${Empty} title=${`There is no queue ${name}`}
      text=${fabric.value.queues?.length ? `The fabric has ${fabric.value.queues.slice(0, 12).map((each) => each.name).join(', ')}.` : 'The fabric has no queue.'} />`;
  }
  const depthLines = found ? linesOf(found, 'queue_depth').slice(0, 6) : [];
  const labels = new Map(depthLines.map(([instance, path]) => [`${instance}:${path}`, instance]));
  const columns = [
    { key: 'instance', title: 'Instance', wide: true, value: (row) => row.instance, cell: (row) => html`<a href=${href('instance', [row.instance, 'queues'])}>${row.instance}</a>` },
    ...QUEUE_NUMBERS.map(([key, title, path, format]) => ({
      key, title, numeric: true, value: (row) => num(leaf(row, path)), text: (row) => format(num(leaf(row, path))), minor: MINOR.has(key) && 'tablet',
      cell: (row) => html`<${Number} instance=${row.instance} path=${`${row.path}/${path}`} label=${`${title} at ${row.instance}`}>${format(num(leaf(row, path)))}</${Number}>`,
    })),
    { key: 'actions', title: 'Proxied', unsorted: true, value: () => '', text: () => '', cell: (row) => html`<${Proxied} row=${row} />` },
  ];
  return html`${head}
    <${SilentNotice} silent=${queues.silent} what=${`The part of ${name}`} />
    ${depthLines.length > 0 && html`<${HistoryPanel} title="Depth" lines=${depthLines} labels=${labels} />`}
    <h2>At each instance</h2>
    <${Table} id="queue-instances" prefix="at" filter=${false} columns=${columns} rows=${rows} rowKey=${(row) => row.instance} sort="-depth" caption=${`${name} at each instance, deepest first`}
      empty=${html`<${Loading} text="asking every instance for the queue" />`} />
    <h2>Consumers</h2>
    <${Table} id="queue-consumers" rows=${consumers} sort="-backlog" rowKey=${(row) => `${row.instance}/${row.id}`} rowHref=${(row) => href('client', [row.client])}
      caption=${`Consumers of ${name}`} columns=${['client', 'instance', 'backlog', 'delivered', 'lag', 'filter'].map((each) => clientColumns[each])}
      empty=${html`<${Empty} title="Nobody consumes it" text=${found?.depth ? `${count(found.depth)} messages wait for a consumer.` : 'Messages will wait for a consumer.'} command=${`raylay subscribe --topic ${JSON.stringify(name)}`} />`} />
    <p class="links-row"><a href=${href('messages', [], { topic: topic ?? name, source: 'replay' })}>Look at its messages</a> <span class="muted">Nothing is taken from the queue.</span></p>`;
}

function Proxied({ row }) {
  const isOn = isTrue(row.proxied_transfer) || isTrue(leaf(row, 'raylay/proxied'));
  const call = isOn ? 'disable_proxied_transfer' : 'enable_proxied_transfer';
  return html`<span data-actions><${Action} instance=${row.instance} path=${actionPath('queues', row.id, call)} label=${`${isOn ? 'disable' : 'enable'} proxied transfer of ${row.id}`}
    text=${isOn ? 'disable' : 'enable'} risk=${isOn ? 'Messages of an owner out of reach wait for it again.'
      : 'Takes over messages of an owner out of reach. If that lives, work may be done twice. At one instance only.'} /></span>`;
}

