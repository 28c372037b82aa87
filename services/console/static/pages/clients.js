// Clients of the whole fabric: subscribers with their lag, publishers with what is unacknowledged,
// and one client. The worst comes first.
import { html, useMemo } from '../core/html.js';
import { Action, actionPath } from '../core/action.js';
import { leaf, num, step, timeOf, useFabricAmps } from '../core/amps.js';
import { nowUs } from '../core/fabric.js';
import { ago, bytes, count, duration, exact, isKnown, ms, plural, rate, time, UNKNOWN } from '../core/format.js';
import { Number } from '../core/history_link.js';
import { Facts, HistoryPanel, Lag, LAG_ATTENTION_S, lagLevel, PageHead, Segments, SilentNotice } from '../core/parts.js';
import { href, route } from '../core/route.js';
import { Empty, Loading } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';

const CLIENTS = 'instance/clients';
const SUBSCRIPTIONS = 'instance/subscriptions';
const KIND_WORDS = { live: 'live', bookmark: 'log', queue: 'queue' };
const TRENDS = { growing: 3, steady: 2, shrinking: 1 };

// -- rows ------------------------------------------------------------------------------------
export function subscriberRows(instance, node) {
  return (node ?? []).map((each) => ({
    id: each.id,
    instance,
    client: each.client_id ?? each.id.split('/')[0],
    subscription: each.sub_id ?? each.id,
    topic: each.topic ?? '',
    messageType: each.message_type ?? '',
    filter: each.filter ?? '',
    bookmark: each.bookmark ?? '',
    options: each.options ?? '',
    kind: leaf(each, 'raylay/kind'),
    orderBy: leaf(each, 'raylay/order_by'),
    pagination: each.pagination_id ?? '',
    seconds: num(each.seconds_behind),
    trend: leaf(each, 'raylay/trend'),
    messages: num(leaf(each, 'raylay/transactions_behind')),
    backlog: num(each.backlog),
    waitsMs: num(leaf(each, 'raylay/age_ms')),
    delivered: num(leaf(each, 'raylay/delivered')),
    path: `${SUBSCRIPTIONS}/${step(each.id)}`,
  }));
}

export function clientRows(instance, node, subscribers = []) {
  const worst = new Map();
  for (const each of subscribers) {
    const before = worst.get(each.client);
    if (!before || (each.seconds ?? -1) > (before.seconds ?? -1)) worst.set(each.client, each);
  }
  return (node ?? []).map((each) => {
    const name = each.client_name ?? each.id;
    const slowest = worst.get(name);
    return {
      id: each.id,
      instance,
      client: name,
      user: each.authenticated_id ?? '',
      address: each.remote_address ?? '',
      transport: each.connection_name ?? '',
      connectedUs: timeOf(each.connect_time),
      state: leaf(each, 'raylay/state'),
      inRate: num(each.messages_in_per_sec ?? each.bytes_in_per_sec),
      inBytes: num(each.bytes_in_per_sec),
      outRate: num(each.messages_out_per_sec),
      outBytes: num(each.bytes_out_per_sec),
      backlog: num(each.queued_bytes_out),
      waitsMs: isKnown(each.queue_max_latency) ? Number(each.queue_max_latency) * 1000 : null,
      offline: num(leaf(each, 'raylay/offline_bytes')),
      seconds: slowest?.seconds ?? num(leaf(each, 'raylay/seconds_behind')),
      trend: slowest?.trend || leaf(each, 'raylay/trend'),
      slowest,
      subscriptions: num(each.subscription_count),
      publisher: each.client_name_hash ?? '',
      sequence: num(leaf(each, 'raylay/published_upto')),
      unacknowledged: num(leaf(each, 'raylay/unacknowledged')),
      oldestMs: num(leaf(each, 'raylay/oldest_unacknowledged_ms')),
      version: each.client_version ?? '',
      deniedReads: num(each.denied_reads),
      deniedWrites: num(each.denied_writes),
      path: `${CLIENTS}/${step(each.id)}`,
    };
  });
}

// The leaf that holds how far a row is behind: of a subscription, or of a client's connection.
const lagPath = (row) =>
  row.subscription ? `${row.path}/seconds_behind` : row.slowest ? `${row.slowest.path}/seconds_behind` : `${row.path}/raylay/seconds_behind`;

const clientHref = (row) => href('client', [row.client]);

// -- columns ---------------------------------------------------------------------------------
// Sorts by lag, and among equals by whether it grows: the slow consumer is on top.
const lagOrder = (row) => (row.seconds === null ? null : row.seconds * 8 + (TRENDS[row.trend] ?? 0));

const number = (row, path, label, text) =>
  html`<${Number} instance=${row.instance} path=${`${row.path}/${path}`} label=${`${label} of ${row.client}`}>${text}</${Number}>`;

const column = {
  client: {
    key: 'client', title: 'Client', wide: true, value: (row) => row.client, text: (row) => row.client,
  },
  instance: {
    key: 'instance', title: 'Instance', value: (row) => row.instance, text: (row) => row.instance,
    cell: (row) => html`<a href=${href('instance', [row.instance, 'clients'])}>${row.instance}</a>`,
  },
  topic: {
    key: 'topic', title: 'Topic', value: (row) => row.topic, text: (row) => row.topic,
    cell: (row) => html`<a href=${href('topic', [row.topic])}>${row.topic}</a>`,
  },
  filter: { key: 'filter', title: 'Filter', value: (row) => row.filter, text: (row) => row.filter || UNKNOWN, wide: true },
  kind: { key: 'kind', title: 'Kind', value: (row) => row.kind, text: (row) => KIND_WORDS[row.kind] ?? (row.kind || UNKNOWN), minor: 'tablet' },
  options: {
    key: 'options', title: 'Options', wide: true, wraps: true, value: (row) => optionsOf(row), text: (row) => optionsOf(row) || UNKNOWN,
  },
  subscription: { key: 'subscription', title: 'Subscription', value: (row) => row.subscription, text: (row) => row.subscription },
  lag: {
    key: 'lag', title: 'Behind', numeric: true, value: lagOrder,
    text: (row) => (row.seconds === null ? UNKNOWN : `${row.seconds} s${row.trend ? ` ${row.trend}` : ''}`),
    cell: (row) => html`<${Lag} seconds=${row.seconds} trend=${row.trend} instance=${row.instance}
      path=${lagPath(row)} label=${`lag of ${row.client}`} />`,
  },
  messages: {
    key: 'messages', title: 'Messages', hint: 'Messages behind', numeric: true, value: (row) => row.messages, text: (row) => exact(row.messages),
    cell: (row) => number(row, 'raylay/transactions_behind', 'messages behind', count(row.messages)),
  },
  backlog: {
    key: 'backlog', title: 'Backlog', numeric: true, value: (row) => row.backlog, text: (row) => bytes(row.backlog),
    cell: (row) => number(row, row.subscription ? 'backlog' : 'queued_bytes_out', 'backlog', bytes(row.backlog)),
  },
  waits: {
    key: 'waits', title: 'Waits', hint: 'How long the oldest message has waited for the client to read it', numeric: true, minor: 'tablet',
    value: (row) => row.waitsMs, text: (row) => ms(row.waitsMs),
    cell: (row) => number(row, row.subscription ? 'raylay/age_ms' : 'queue_max_latency', 'wait of the oldest message', ms(row.waitsMs)),
  },
  offline: {
    key: 'offline', title: 'Offline', numeric: true, minor: 'tablet', value: (row) => row.offline, text: (row) => bytes(row.offline),
    cell: (row) => number(row, 'raylay/offline_bytes', 'offline bytes', bytes(row.offline)),
  },
  delivered: {
    key: 'delivered', title: 'Delivered', numeric: true, minor: 'tablet', value: (row) => row.delivered, text: (row) => exact(row.delivered),
    cell: (row) => number(row, 'raylay/delivered', 'delivered messages', count(row.delivered)),
  },
  out: {
    key: 'out', title: 'Out', numeric: true, value: (row) => row.outRate, text: (row) => rate(row.outRate),
    cell: (row) => number(row, 'messages_out_per_sec', 'messages out', rate(row.outRate)),
  },
  outBytes: {
    key: 'outBytes', title: 'Bytes out', numeric: true, value: (row) => row.outBytes,
    text: (row) => (row.outBytes === null ? UNKNOWN : `${bytes(row.outBytes)}/s`),
    cell: (row) => number(row, 'bytes_out_per_sec', 'bytes out', row.outBytes === null ? UNKNOWN : `${bytes(row.outBytes)}/s`),
  },
  in: {
    key: 'in', title: 'Bytes in', numeric: true, value: (row) => row.inBytes,
    text: (row) => (row.inBytes === null ? UNKNOWN : `${bytes(row.inBytes)}/s`),
    cell: (row) => number(row, 'bytes_in_per_sec', 'bytes in', row.inBytes === null ? UNKNOWN : `${bytes(row.inBytes)}/s`),
  },
  subscriptions: {
    key: 'subscriptions', title: 'Subs', numeric: true, value: (row) => row.subscriptions, text: (row) => exact(row.subscriptions),
    cell: (row) => number(row, 'subscription_count', 'subscriptions', count(row.subscriptions)),
  },
  sequence: {
    key: 'sequence', title: 'Sequence', numeric: true, value: (row) => row.sequence, text: (row) => exact(row.sequence),
    cell: (row) => number(row, 'raylay/published_upto', 'last sequence', exact(row.sequence)),
  },
  unacknowledged: {
    key: 'unacknowledged', title: 'Unacknowledged', numeric: true, value: (row) => row.unacknowledged, text: (row) => exact(row.unacknowledged),
    cell: (row) => html`<span class=${row.unacknowledged > 0 ? 'strong' : ''}>${number(row, 'raylay/unacknowledged', 'unacknowledged messages', exact(row.unacknowledged))}</span>`,
  },
  oldest: {
    key: 'oldest', title: 'Oldest', numeric: true, value: (row) => row.oldestMs, text: (row) => ms(row.oldestMs),
    cell: (row) => number(row, 'raylay/oldest_unacknowledged_ms', 'oldest unacknowledged', ms(row.oldestMs)),
  },
  user: { key: 'user', title: 'User', minor: true, value: (row) => row.user, text: (row) => row.user || UNKNOWN },
  address: { key: 'address', title: 'Address', minor: true, value: (row) => row.address, text: (row) => row.address },
  state: {
    key: 'state', title: 'State', value: (row) => row.state, text: (row) => row.state,
    cell: (row) => (row.state ? html`<${Status} level=${stateLevel(row)} text=${row.state} />` : UNKNOWN),
  },
  connected: {
    key: 'connected', title: 'Connected', numeric: true, minor: true, value: (row) => row.connectedUs, text: (row) => time(row.connectedUs, route.value.params.tz),
    cell: (row) => html`<span title=${time(row.connectedUs, route.value.params.tz)}>${ago(row.connectedUs, nowUs.value)}</span>`,
  },
};

// The options that the client gave, with the order of a page, which is none of them. They may wrap
// between two options.
const optionsOf = (row) => [row.options.replace(/,(?![^[]*\])/g, ', '), row.orderBy && `order by ${row.orderBy}`].filter(Boolean).join(', ');

const stateLevel = (row) => {
  if (/offline|slow|paused/.test(row.state)) return 'attention';
  if (/closing|disconnect/.test(row.state)) return 'act';
  return lagLevel(row.seconds ?? 0, row.trend) === 'act' ? 'act' : 'ready';
};

const VIEWS = {
  subscribers: [column.client, column.lag, column.topic, column.instance, column.messages, column.backlog, column.waits, column.delivered, column.kind, column.filter],
  publishers: [column.client, column.unacknowledged, column.oldest, column.sequence, column.instance, column.in, column.user, column.address],
  all: [
    column.client, column.state, column.lag, column.instance, column.out, column.in, column.backlog, column.waits, column.offline,
    column.unacknowledged, column.user, column.address, column.connected,
  ],
};
const ORDER = { subscribers: '-lag', publishers: '-unacknowledged', all: '-lag' };

// The tables of clients, for the fabric's page and an instance's tab.
// `isPartial`: instances are still asked for the first time; the rows are put in order once all are there.
export function ClientTables({ clients, subscribers, isOneInstance = false, isPartial = false, id }) {
  const view = VIEWS[route.value.params.show] ? route.value.params.show : 'subscribers';
  const publishers = useMemo(
    () => clients.filter((each) => each.sequence || each.unacknowledged),
    [clients],
  );
  const rows = { subscribers, publishers, all: clients }[view];
  const columns = VIEWS[view].filter((each) => !isOneInstance || each.key !== 'instance');
  return html`<${Slowest} subscribers=${subscribers} isOneInstance=${isOneInstance} />
    <${Segments} name="show" label="Which clients" fallback="subscribers" options=${[
      ['subscribers', `Subscribers ${count(subscribers.length)}`],
      ['publishers', `Publishers ${count(publishers.length)}`],
      ['all', `All connections ${count(clients.length)}`],
    ]} />
    <${Table} key=${`${view} ${isPartial}`} id=${`${id}-${view}`} columns=${columns} rows=${rows} sort=${ORDER[view]}
      rowHref=${clientHref} rowKey=${(row) => `${row.instance}/${row.id}`}
      caption=${{ subscribers: 'Subscribers, furthest behind first', publishers: 'Publishers, most unacknowledged first', all: 'Connections of clients' }[view]}
      empty=${html`<${Empty} ...${NOTHING[view]} />`} />`;
}

const NOTHING = {
  subscribers: { title: 'Nobody subscribes', text: 'A subscriber appears here as soon as it has subscribed.', command: "raylay subscribe --topic 'orders/.*'" },
  publishers: { title: 'Nobody has published', text: 'A publisher appears here with its first message.', command: "raylay publish --topic orders '{\"id\": 1}'" },
  all: { title: 'No clients are connected', text: 'They connect to a client transport of an instance.', command: 'raylay status' },
};

// The answer to the question that this page is opened for.
function Slowest({ subscribers, isOneInstance }) {
  const [worst, slow] = useMemo(() => {
    let found = null;
    let slower = 0;
    for (const each of subscribers) {
      if ((each.seconds ?? 0) >= LAG_ATTENTION_S) slower += 1;
      if (each.seconds !== null && (!found || lagOrder(each) > lagOrder(found))) found = each;
    }
    return [found, slower];
  }, [subscribers]);
  if (!subscribers.length) return null;
  if (!worst) return html`<p class="callout"><${Status} level="unknown" text="How far subscribers are behind is not known" /></p>`;
  if (!slow) {
    return html`<p class="callout"><${Status} level="ready" text=${`Nobody is ${LAG_ATTENTION_S} s behind`} />
      ${worst.seconds > 0 && html` · furthest: <a href=${clientHref(worst)}>${worst.client}</a>, ${duration(worst.seconds)}`}</p>`;
  }
  const level = lagLevel(worst.seconds, worst.trend);
  return html`<p class=${`callout callout-${level}`}>
    <${Status} level=${level} text="Slowest:" />${' '}<a href=${clientHref(worst)}><strong>${worst.client}</strong></a>
    ${!isOneInstance && html` at <a href=${href('instance', [worst.instance, 'slow'])}>${worst.instance}</a>`}, on ${worst.topic},
    is <${Lag} seconds=${worst.seconds} trend=${worst.trend} instance=${worst.instance} path=${`${worst.path}/seconds_behind`} /> behind
    ${slow > 1 && html` · ${plural(slow, 'subscription')} ${slow === 1 ? 'is' : 'are'} ${LAG_ATTENTION_S} s behind or more`}</p>`;
}

function useClients() {
  const clients = useFabricAmps(CLIENTS, 2000);
  const subscriptions = useFabricAmps(SUBSCRIPTIONS, 2000);
  const subscribers = useMemo(
    () => [...subscriptions.of].flatMap(([name, each]) => subscriberRows(name, each.node)),
    [subscriptions.of],
  );
  const rows = useMemo(() => {
    const of = new Map();
    for (const each of subscribers) of.set(each.instance, [...(of.get(each.instance) ?? []), each]);
    return [...clients.of].flatMap(([name, each]) => clientRows(name, each.node, of.get(name)));
  }, [clients.of, subscribers]);
  return {
    clients: rows, subscribers, silent: clients.silent, loading: clients.loading || subscriptions.loading,
    isPartial: clients.isFirst || subscriptions.isFirst,
  };
}

// -- the pages -------------------------------------------------------------------------------
export default function Page({ names }) {
  return route.value.page === 'client' && names[0]
    ? html`<${ClientPage} key=${names[0]} name=${names[0]} />`
    : html`<${ClientsPage} />`;
}

function ClientsPage() {
  const { clients, subscribers, silent, loading, isPartial } = useClients();
  return html`<${PageHead} title="Clients" />
    <${SilentNotice} silent=${silent} what="Clients" />
    ${loading
      ? html`<${Loading} text="asking every instance for its clients" />`
      : html`${isPartial && html`<p class="muted" role="status" data-partial>◐ more instances are being asked …</p>`}
        <${ClientTables} id="clients" clients=${clients} subscribers=${subscribers} isPartial=${isPartial} />`}`;
}

function ClientPage({ name }) {
  const { clients, subscribers, silent, loading } = useClients();
  const own = clients.filter((each) => each.client === name);
  const subs = subscribers.filter((each) => each.client === name);
  const head = html`<${PageHead} crumbs=${[['Clients', href('clients')]]} title=${name} level=${own.length ? stateLevel(worstOf(own)) : loading ? undefined : 'unknown'}
    state=${own.length ? stateWords(own) : loading ? undefined : 'not connected'} />`;
  if (loading) return html`${head}<${Loading} text=${`asking every instance for ${name}`} />`;
  if (!own.length && !subs.length) {
    return html`${head}<${SilentNotice} silent=${silent} what="Clients" />
      <${Empty} title=${`${name} is connected to no instance that answers`}
        text="It may have left, or it connects again just now. The events say when it was last seen." />
      <p><a class="button" href=${href('events', [], { q: name })}>Events of ${name}</a>
      ${' '}<a class="button" href=${href('clients')}>All clients</a></p>`;
  }
  return html`${head}
    <${SilentNotice} silent=${silent} what="Clients" />
    <${Charts} subs=${subs} />
    ${[...own].sort((a, b) => (lagOrder(b) ?? -1) - (lagOrder(a) ?? -1)).map((each) => html`<${Connection} key=${`${each.instance}/${each.id}`} row=${each} />`)}
    <h2>Subscriptions</h2>
    <${Table} id="client-subscriptions" columns=${[column.topic, column.kind, column.lag, column.messages, column.backlog, column.delivered, column.options, column.filter, column.subscription, column.instance]}
      rows=${subs} sort="-lag" rowKey=${(row) => `${row.instance}/${row.id}`} caption=${`Subscriptions of ${name}, furthest behind first`}
      empty=${html`<${Empty} title="It subscribes to nothing" text="It publishes only, or has not subscribed yet." />`} />
    <p class="links-row"><a href=${href('events', [], { q: name })}>Events of this client</a></p>`;
}

function stateWords(own) {
  const worst = worstOf(own);
  return `${worst.state || 'connected'} at ${worst.instance}${own.length > 1 ? `, connected to ${plural(own.length - 1, 'other instance')}` : ''}`;
}

// How far its subscriptions were behind.
function Charts({ subs }) {
  const lines = [...subs].sort((a, b) => (lagOrder(b) ?? -1) - (lagOrder(a) ?? -1)).slice(0, 6).map((each) => [each.instance, lagPath(each)]);
  if (!lines.length) return null;
  return html`<${HistoryPanel} title="How far behind it was" lines=${lines} labels=${labelsOf(subs)} />`;
}

const labelsOf = (subs) => new Map(subs.map((each) => [`${each.instance}:${lagPath(each)}`, `${each.instance} ${each.topic}`]));

const worstOf = (rows) => rows.reduce((found, each) => ((each.seconds ?? -1) > (found.seconds ?? -1) ? each : found));

function Connection({ row }) {
  const of = (path, label, text) => number(row, path, label, text);
  const { tz } = route.value.params;
  return html`<section class="card">
    <header class="card-head"><h2>At <a href=${href('instance', [row.instance])}>${row.instance}</a></h2>
      <${Action} instance=${row.instance} path=${actionPath('clients', row.id, 'disconnect')} label=${`disconnect ${row.client}`}
        risk="It may come back. Its queue messages go to others; live subscriptions miss what comes meanwhile." />
    </header>
    <${Facts} facts=${[
      ['Behind', html`<${Lag} seconds=${row.seconds} trend=${row.trend} instance=${row.instance}
        path=${lagPath(row)} label="lag" />`],
      ['Backlog', of('queued_bytes_out', 'backlog', bytes(row.backlog))],
      ['Offline', of('raylay/offline_bytes', 'offline bytes', bytes(row.offline))],
      ['Out', html`${of('messages_out_per_sec', 'messages out', rate(row.outRate))} · ${of('bytes_out_per_sec', 'bytes out', row.outBytes === null ? UNKNOWN : `${bytes(row.outBytes)}/s`)}`],
      ['In', of('bytes_in_per_sec', 'bytes in', row.inBytes === null ? UNKNOWN : `${bytes(row.inBytes)}/s`)],
      ['Last sequence', of('raylay/published_upto', 'last sequence', exact(row.sequence))],
      ['Unacknowledged', of('raylay/unacknowledged', 'unacknowledged', exact(row.unacknowledged))],
      ['Oldest unacknowledged', row.oldestMs === null ? null : of('raylay/oldest_unacknowledged_ms', 'oldest unacknowledged', ms(row.oldestMs))],
      ['User', row.user],
      ['Address', row.address],
      ['Transport', row.transport],
      ['Publisher', row.publisher],
      ['Version', row.version],
      ['Denied', row.deniedReads === null && row.deniedWrites === null ? null : `${exact(row.deniedReads)} reads, ${exact(row.deniedWrites)} writes`],
      ['Connected', row.connectedUs === null ? null : `${time(row.connectedUs, tz, { seconds: true })}, ${ago(row.connectedUs, nowUs.value)}`],
    ]} />
  </section>`;
}

export { column as clientColumns };
