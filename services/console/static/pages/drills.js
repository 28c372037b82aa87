// Reports of drills: failures that were rehearsed, and what came of them.
import { html } from '../core/html.js';
import { nowUs } from '../core/fabric.js';
import { ago, duration, time } from '../core/format.js';
import { PageHead } from '../core/parts.js';
import { usePolled } from '../core/poll.js';
import { href, route } from '../core/route.js';
import { Empty, Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';

const ONCE_MS = 60_000;

export function levelOf(verdict) {
  const text = String(verdict ?? '').toLowerCase();
  if (/not |fail|violat|lost|broken|bad/.test(text)) return 'act';
  if (/incomplete|unknown|abort|stopped|inconclusive|unreadable/.test(text)) return 'unknown';
  if (/running/.test(text)) return 'working';
  return /clean|pass|held|hold|ok|sound|kept|success/.test(text) ? 'ready' : 'unknown';
}

const WORDS = { clean: 'every guarantee held', bad: 'a guarantee was broken', unreadable: 'the report cannot be read' };
const wordsOf = (of) => [WORDS[of.verdict] ?? of.verdict, of.why].filter(Boolean).join(': ');

export default function Page({ names }) {
  const { data, error, loading } = usePolled('raylay/drills.json', ONCE_MS);
  const crumbs = names[0] ? [['Drills', href('drills')]] : [];
  const head = html`<${PageHead} crumbs=${crumbs} title=${names[0] ? 'Drill' : 'Drills'} />`;
  if (loading) return html`${head}<${Loading} text="asking for the reports" />`;
  if (!data) return html`${head}<${Problem} error=${error} title="The reports could not be read" />`;
  const rows = data.reports ?? [];
  if (names[0]) {
    const found = rows.find((each) => each.id === names[0]);
    return found
      ? html`<${Report} of=${found} />`
      : html`${head}<${Empty} title=${`There is no report ${names[0]}`} text="It may have been removed from the data directory. The list has those that are there." />`;
  }
  const { tz } = route.value.params;
  const columns = [
    { key: 'name', title: 'Drill', value: (row) => row.name },
    { key: 'verdict', title: 'Verdict', value: (row) => row.verdict, text: wordsOf, wide: true, cell: (row) => html`<${Status} level=${levelOf(row.verdict)} text=${wordsOf(row)} />` },
    { key: 'seconds', title: 'Took', numeric: true, value: (row) => row.seconds, text: (row) => duration(row.seconds) },
    { key: 'time', title: 'Time', value: (row) => row.time_us, numeric: true, text: (row) => time(row.time_us, tz, { seconds: true }),
      cell: (row) => html`${time(row.time_us, tz, { seconds: true })} <span class="muted">${ago(row.time_us, nowUs.value)}</span>` },
    { key: 'report', title: 'Report', unsorted: true, value: (row) => row.id, cell: (row) => html`<${Links} of=${row} />` },
  ];
  return html`<${PageHead} title="Drills"><p class="muted">Failures that were rehearsed on this fabric, and whether its guarantees held.</p></${PageHead}>
    <${Table} id="drills" columns=${columns} rows=${rows} sort="-time" caption="Reports of drills, newest first" rowHref=${(row) => href('drills', [row.id])}
      empty=${html`<${Empty} title="No drill was made yet" text="A drill kills, cuts off or slows down parts of a running fabric, and checks that every guarantee held." command="raylay drill --list" />`} />`;
}

// Reports are documents of their own, served in a sandbox: they open beside the console.
function Links({ of }) {
  if (of.href === null) return html`<span class="muted">–</span>`;
  const address = `raylay/drills/${encodeURIComponent(of.id)}`;
  return html`<span class="actions">
    <a class="button button-small" href=${address} target="_blank" rel="noopener noreferrer">open</a>
    <a class="button button-small" href=${`${address}.json`} download=${`drill-${of.id}.json`}>JSON</a></span>`;
}

function Report({ of }) {
  const { tz } = route.value.params;
  return html`<${PageHead} crumbs=${[['Drills', href('drills')]]} title=${of.name} level=${levelOf(of.verdict)} state=${wordsOf(of)}>
    <p class="muted">${time(of.time_us, tz, { seconds: true })}, ${ago(of.time_us, nowUs.value)}</p>
    <${Links} of=${of} />
    <p class="links-row"><a href=${href('events', [], { from: isoOf(of.time_us - 300e6), to: isoOf(of.time_us + 300e6) })}>Events around it</a>
      <a href=${href('history', [], { from: isoOf(of.time_us - 600e6), to: isoOf(of.time_us + 300e6) })}>History around it</a></p>
  </${PageHead}>`;
}

const isoOf = (us) => new Date(us / 1000).toISOString();
