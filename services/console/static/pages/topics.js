// Topics of the whole fabric, and one topic: its rate, publishers, subscribers and records.
import { html, useMemo } from '../core/html.js';
import { Action, actionPath } from '../core/action.js';
import { isTrue, leaf, num, step, useFabricAmps } from '../core/amps.js';
import { fabric, nowUs } from '../core/fabric.js';
import { ago, bytes, count, exact, rate, time, UNKNOWN } from '../core/format.js';
import { Number } from '../core/history_link.js';
import { Facts, HistoryPanel, PageHead, Segments, SilentNotice } from '../core/parts.js';
import { href, route } from '../core/route.js';
import { Empty, Loading } from '../core/states.js';
import { Table } from '../core/table.js';
import { clientColumns, subscriberRows } from './clients.js';

const SOW = 'instance/sow';
const NONE = [];

// How many messages of a topic come, at each of the first instances that have it.
const rateLines = (topic) =>
  (topic.instances ?? NONE)
    .slice(0, 6)
    .map((each) => [each.name ?? each, `instance/raylay/topics/${step(`${topic.name}!${topic.message_type}`)}/messages_per_sec`]);

// The lines of a number's history: the same leaf of each instance that has it. A SOW topic is called
// by its message type and its name.
const linesOf = (topic, path) =>
  (topic.instances ?? NONE).map((each) => [each.name ?? each, `${SOW}/${step(`${topic.message_type}/${topic.name}`)}/${path}`]);

export default function Page({ names }) {
  return route.value.page === 'topic' && names.length
    ? html`<${TopicPage} key=${names.join('/')} name=${names.join('/')} />`
    : html`<${TopicsPage} />`;
}

// A column of times: how long ago, and the time itself for the pointer.
const when = (key, title, field) => ({
  key, title, numeric: true, minor: true, value: (row) => row[field], text: (row) => time(row[field], 'utc', { seconds: true }),
  cell: (row) => html`<span title=${time(row[field], 'utc', { seconds: true })}>${row[field] ? ago(row[field], nowUs.value) : UNKNOWN}</span>`,
});

function TopicsPage() {
  const known = fabric.value;
  if (!known) return html`<${PageHead} title="Topics" /><${Loading} text="asking for the fabric" />`;
  const show = route.value.params.show ?? 'all';
  const topics = known.topics ?? NONE;
  const rows = show === 'sow' ? topics.filter((each) => each.sow) : topics;
  const columns = [
    { key: 'name', title: 'Topic', wide: true, value: (row) => row.name },
    { key: 'type', title: 'Type', value: (row) => row.message_type, text: (row) => row.message_type || UNKNOWN },
    { key: 'messages', title: 'Messages', numeric: true, value: (row) => row.messages, text: (row) => exact(row.messages) },
    { key: 'bytes', title: 'Size', numeric: true, value: (row) => row.bytes, text: (row) => bytes(row.bytes) },
    when('oldest', 'Oldest', 'oldest_us'),
    when('newest', 'Newest', 'newest_us'),
    { key: 'in', title: 'In', numeric: true, value: (row) => row.in_per_sec, text: (row) => rate(row.in_per_sec),
      cell: (row) => html`<${Number} lines=${rateLines(row)} label=${`messages of ${row.name}`}>${rate(row.in_per_sec)}</${Number}>` },
    { key: 'publishers', title: 'Publishers', numeric: true, value: (row) => row.publishers },
    { key: 'subscribers', title: 'Subscribers', numeric: true, value: (row) => row.subscribers },
    { key: 'sow', title: 'SOW', value: (row) => (row.sow ? 'yes' : 'no'), text: (row) => (row.sow ? 'yes' : 'no') },
    { key: 'records', title: 'Records', numeric: true, value: (row) => row.records, text: (row) => exact(row.records),
      cell: (row) => row.sow ? html`<${Number} lines=${linesOf(row, 'valid_keys')} label=${`records of ${row.name}`}>${exact(row.records)}</${Number}>` : UNKNOWN },
    { key: 'instances', title: 'Instances', numeric: true, value: (row) => row.instances?.length },
    { key: 'look', title: 'Look', unsorted: true, value: () => '', text: () => '',
      cell: (row) => html`<span class="actions"><a class="button button-small" href=${href('messages', [], { topic: row.name, source: 'live', follow: '1' })}>follow</a>
        ${row.sow && html`<a class="button button-small" href=${href('messages', [], { topic: row.name, source: 'sow' })}>records</a>`}</span>` },
  ];
  return html`<${PageHead} title="Topics" />
    <${Segments} name="show" label="Which topics" fallback="all" options=${[
      ['all', `All ${count(topics.length)}`], ['sow', `With a SOW ${count(topics.filter((each) => each.sow).length)}`],
    ]} />
    <${Table} id="topics" columns=${columns} rows=${rows} sort="-in" caption="Topics, busiest first" rowKey=${(row) => `${row.name}/${row.message_type}`}
      rowHref=${(row) => href('topic', [row.name])}
      empty=${html`<${Empty} title="No topic has a message yet" text="A topic appears here with its first message or subscriber." command=${"raylay publish --topic orders '{\"id\": 1}'"} />`} />`;
}

function TopicPage({ name }) {
  const found = (fabric.value?.topics ?? NONE).filter((each) => each.name === name);
  const sow = useFabricAmps(SOW, 2000);
  const subscriptions = useFabricAmps('instance/subscriptions', 2000);
  const subscribers = useMemo(
    () => [...subscriptions.of].flatMap(([instance, each]) => subscriberRows(instance, each.node)).filter((each) => matches(each.topic, name)),
    [subscriptions.of, name],
  );
  const rows = useMemo(
    () => [...sow.of].flatMap(([instance, each]) =>
      (each.node ?? NONE).filter((entry) => (entry.topic ?? entry.id) === name).map((entry) => ({ ...entry, instance, path: `${SOW}/${step(entry.id)}` }))),
    [sow.of, name],
  );
  const topic = found[0];
  const silent = sow.silent;
  const head = html`<${PageHead} crumbs=${[['Topics', href('topics')]]} title=${name}>
    <${Facts} facts=${[
      ['Message type', topic?.message_type],
      ['Messages', topic ? exact(topic.messages) : null],
      ['Size', topic ? bytes(topic.bytes) : null],
      ['Oldest', topic ? time(topic.oldest_us, 'utc', { seconds: true }) : null],
      ['Newest', topic ? time(topic.newest_us, 'utc', { seconds: true }) : null],
      ['In', topic ? rate(topic.in_per_sec) : null],
      ['Publishers', topic ? exact(topic.publishers) : null],
      ['Subscribers', subscriptions.loading ? null : exact(subscribers.length)],
      ['Records', topic?.sow ? html`<${Number} lines=${linesOf(topic, 'valid_keys')} label="records">${exact(topic.records)}</${Number}>` : topic ? 'keeps none (no SOW)' : null],
    ]} />
    <p class="links-row">
      <a class="button" href=${href('messages', [], { topic: name, source: 'live', follow: '1' })}>Follow live</a>
      <a class="button" href=${href('messages', [], { topic: name, source: 'replay' })}>Replay from a time</a>
      ${(topic?.sow || rows.length > 0) && html`<a class="button" href=${href('messages', [], { topic: name, source: 'sow' })}>Look into its SOW</a>`}
      ${fabric.value?.views?.some((each) => each.name === name) && html`<a class="button" href=${href('view', [name])}>Its definition and its rows</a>`}
    </p>
  </${PageHead}>`;
  if (!fabric.value) return html`${head}<${Loading} text="asking for the fabric" />`;
  if (!topic && !rows.length && !subscribers.length && !sow.loading && !subscriptions.loading) {
    return html`${head}<${SilentNotice} silent=${silent} what="Topics" />
      <${Empty} title=${`Nobody has published or subscribed to ${name}`} text="The name may be wrong, or an instance that has it does not answer."
      command=${`raylay publish --topic ${JSON.stringify(name)} '{"id": 1}'`} />`;
  }
  const number = (key, title, path, format) => ({
    key, title, numeric: true, value: (row) => num(leaf(row, path)), text: (row) => format(num(leaf(row, path))),
    cell: (row) => html`<${Number} instance=${row.instance} path=${`${row.path}/${path}`} label=${`${title} at ${row.instance}`}>${format(num(leaf(row, path)))}</${Number}>`,
  });
  return html`${head}
    <${SilentNotice} silent=${silent} what=${`The part of ${name}`} />
    ${topic && html`<${HistoryPanel} title="Messages in per second" lines=${rateLines(topic)} labels=${new Map(rateLines(topic).map(([instance, path]) => [`${instance}:${path}`, instance]))} />`}
    ${rows.length > 0 && html`<h2>Its SOW at each instance</h2>
      <${Table} id="topic-sow" prefix="sow" rows=${rows} rowKey=${(row) => row.instance} sort="instance" caption=${`SOW of ${name} at each instance`} columns=${[
        { key: 'instance', title: 'Instance', wide: true, value: (row) => row.instance, cell: (row) => html`<a href=${href('instance', [row.instance, 'sow'])}>${row.instance}</a>` },
        number('records', 'Records', 'valid_keys', exact),
        number('inserts', 'Inserts', 'inserts_per_sec', rate),
        number('updates', 'Updates', 'updates_per_sec', rate),
        number('deletes', 'Deletes', 'deletes_per_sec', rate),
        number('bytes', 'Stored', 'stored_bytes', bytes),
        { key: 'actions', title: 'Actions', unsorted: true, value: () => '', text: () => '', cell: (row) => !isTrue(leaf(row, 'raylay/computed')) && html`<span data-actions><${Action} instance=${row.instance}
          path=${actionPath('sow', row.id, 'compact')} label=${`compact ${row.id}`} text="compact" risk="Queries and publishes of this topic are slower meanwhile." /></span>` },
      ]} />`}
    <h2>Subscribers</h2>
    ${subscriptions.loading ? html`<${Loading} text="asking every instance for subscribers" />` : html`<${Table} key=${String(subscriptions.isFirst)} id="topic-subscribers" rows=${subscribers} sort="-lag" rowKey=${(row) => `${row.instance}/${row.id}`}
      rowHref=${(row) => href('client', [row.client])} caption=${`Subscribers of ${name}, furthest behind first`}
      columns=${['client', 'lag', 'instance', 'kind', 'messages', 'backlog', 'delivered', 'filter'].map((each) => clientColumns[each])}
      empty=${html`<${Empty} title="Nobody subscribes to it" text="Messages are journaled and replicated all the same." command=${`raylay subscribe --topic ${JSON.stringify(name)}`} />`} />`}`;
}

// Whether a subscription's topic, which may be a regular expression, covers a topic.
export function matches(pattern, name) {
  if (pattern === name) return true;
  if (!/[\\^$.*+?()[\]{}|]/.test(pattern)) return false;
  try {
    return new RegExp(`^(?:${pattern})$`).test(name);
  } catch {
    return false;
  }
}
