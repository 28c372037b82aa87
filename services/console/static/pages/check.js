// The topology check of the running configuration.
import { html, useState } from '../core/html.js';
import { fabric, nowUs } from '../core/fabric.js';
import { ago, plural, time } from '../core/format.js';
import { PageHead } from '../core/parts.js';
import { usePolled } from '../core/poll.js';
import { route } from '../core/route.js';
import { Loading, Problem } from '../core/states.js';
import { badness, Status, worst } from '../core/status.js';
import { Table } from '../core/table.js';

const LEVELS = { error: 'act', fault: 'act', act: 'act', warning: 'attention', attention: 'attention', note: 'working', hint: 'working', info: 'ready', working: 'working', ready: 'ready' };
const WORDS = { act: 'fault', attention: 'warning', working: 'hint', ready: 'note', unknown: 'unknown' };
const ONCE_MS = 60_000;

export default function Page() {
  const [asked, setAsked] = useState(0);
  const { data, error, loading } = usePolled(asked ? `raylay/check.json?again=${asked}` : 'raylay/check.json', ONCE_MS);
  const head = html`<${PageHead} title="Topology check" />`;
  if (loading) return html`${head}<${Loading} text="checking the running configuration" />`;
  if (!data) return html`${head}<${Problem} error=${error} title="The check could not be made" onRetry=${() => setAsked(asked + 1)} />`;
  const rows = (data.findings ?? [])
    .map((each, id) => ({ ...each, id, shown: LEVELS[each.level] ?? 'unknown' }))
    .sort((a, b) => badness(b.shown) - badness(a.shown));
  const level = worst(rows.map((each) => each.shown));
  const { tz } = route.value.params;
  const columns = [
    { key: 'level', title: 'Level', value: (row) => badness(row.shown), text: (row) => WORDS[row.shown], cell: (row) => html`<${Status} level=${row.shown} text=${WORDS[row.shown]} />` },
    { key: 'text', title: 'Finding', value: (row) => row.text, wide: true },
    { key: 'where', title: 'Where', value: (row) => whereOf(row), cell: (row) => html`<code>${whereOf(row)}</code>` },
    { key: 'what_to_do', title: 'What to do', value: (row) => row.what_to_do, text: (row) => row.what_to_do || '', wide: true },
  ];
  return html`<${PageHead} title="Topology check" level=${rows.length ? level : 'ready'}
      state=${rows.length ? plural(rows.length, 'finding') : 'nothing found'}>
    <p class="muted">The configuration that ${fabric.value?.served_by ?? 'the instance'} runs with, checked ${time(data.checked_us, tz, { seconds: true })}, ${ago(data.checked_us, nowUs.value)}.
      <button type="button" class="button button-small" onClick=${() => setAsked(asked + 1)}>Check again</button></p>
  </${PageHead}>
  ${data.problem && html`<p class="notice" role="status"><${Status} level="attention" text=${data.problem} /></p>`}
  ${rows.length
    ? html`<${Table} id="check" columns=${columns} rows=${rows} caption="Findings of the topology check, worst first" />`
    : data.problem ? null : html`<div class="state-box"><h2><${Status} level="ready" text="The topology is sound" /></h2>
        <p class="muted">Every message reaches every instance that wants it, also while one instance is away. The same from a shell:</p>
        <code>raylay check fabric.yaml</code></div>`}`;
}

const whereOf = (row) => (Array.isArray(row.where) ? row.where.join(', ') : (row.where ?? ''));
