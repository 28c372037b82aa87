// Actions of all instances: what they did, how often they failed, and why the last time.
import { html } from '../core/html.js';
import { fabric, nowUs } from '../core/fabric.js';
import { ago, count, exact, plural, time } from '../core/format.js';
import { PageHead } from '../core/parts.js';
import { href, route } from '../core/route.js';
import { Empty, Loading } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';

const NONE = [];

const number = (key, title, hint) => ({
  key, title, hint, numeric: true, value: (row) => row[key], text: (row) => exact(row[key]),
});

function stateOf(row) {
  if (row.failures > 0) return plural(row.failures, 'failed run');
  if (row.dropped > 0) return `${count(row.dropped)} dropped`;
  return row.runs > 0 ? 'ready' : 'never ran';
}

const lastOf = (row) => (row.last_run_us > 0 ? ago(row.last_run_us, nowUs.value) : 'never');

export default function Page() {
  const known = fabric.value;
  const head = html`<${PageHead} title="Actions" />`;
  if (!known) return html`${head}<${Loading} text="asking for the fabric" />`;
  const rows = known.actions ?? NONE;
  const { tz } = route.value.params;
  const columns = [
    { key: 'name', title: 'Action', wide: true, value: (row) => row.name },
    { key: 'instance', title: 'Instance', value: (row) => row.instance,
      cell: (row) => html`<a href=${href('instance', [row.instance])}>${row.instance}</a>` },
    { key: 'level', title: 'State', value: (row) => row.level, text: stateOf,
      cell: (row) => html`<${Status} level=${row.level} text=${stateOf(row)} />` },
    number('runs', 'Runs', 'runs that ended'),
    number('failures', 'Failed', 'runs that a failing step ended'),
    number('waiting', 'Waiting', 'occurrences that wait for a run'),
    { ...number('dropped', 'Dropped', 'occurrences beyond the bound of those that wait'), minor: 'tablet' },
    { key: 'last', title: 'Last run', value: (row) => row.last_run_us, text: lastOf,
      cell: (row) => html`<span title=${row.last_run_us > 0 ? time(row.last_run_us, tz, { seconds: true }) : ''}>${lastOf(row)}</span>` },
    { key: 'error', title: 'Last error', wide: true, value: (row) => row.last_error || '' },
  ];
  return html`${head}
    <${Table} id="automation" columns=${columns} rows=${rows} sort="-failures" caption="Actions, those that failed first"
      rowKey=${(row) => `${row.instance}/${row.name}`}
      empty=${html`<${Empty} title="No action is configured" text="An action does something when something happens. Actions are declared in the fabric's configuration; see docs/actions.md." command="raylay up fabric.yaml" />`} />`;
}
