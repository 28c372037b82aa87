// All instances as a table.
import { html } from '../core/html.js';
import { fabric, fabricError } from '../core/fabric.js';
import { count, exact, isKnown, ms, percent, plural, rate, UNKNOWN } from '../core/format.js';
import { instanceState } from '../core/instance_state.js';
import { href } from '../core/route.js';
import { Loading, Problem } from '../core/states.js';
import { badness, Status } from '../core/status.js';
import { Table } from '../core/table.js';

function failoverOf({ may_fail_over: may, why_not: why }) {
  if (!isKnown(may)) return UNKNOWN;
  return may ? 'may' : `not now: ${why}`;
}

const number = (key, title, format, hint) =>
  ({ key, title, numeric: true, hint, text: (row) => format(row[key]) });

const clientsOf = ({ clients, slow_clients: slow }) =>
  (slow > 0 ? `${count(clients)}, ${exact(slow)} slow` : count(clients));

const COLUMNS = [
  { key: 'name', title: 'Instance' },
  { key: 'group', title: 'Region', minor: true },
  {
    key: 'state', title: 'State', value: ({ level }) => badness(level), text: instanceState, wide: true,
    cell: (row) => html`<${Status} level=${row.level} text=${instanceState(row)} />`,
  },
  number('in_per_sec', 'Published', rate),
  number('acks_per_sec', 'Acks', rate, 'acknowledgments to publishers'),
  { ...number('ack_ms_p50', 'Ack p50', ms, 'half of the acknowledgments came faster'), minor: 'tablet' },
  number('ack_ms_p99', 'Ack p99', ms, '99 of 100 acknowledgments came faster'),
  {
    ...number('oldest_unacknowledged_ms', 'Oldest', ms, 'age of the oldest message that is not acknowledged'),
    minor: 'tablet',
  },
  { ...number('out_per_sec', 'Delivered', rate), minor: true },
  { key: 'clients', title: 'Clients', numeric: true, text: clientsOf },
  { ...number('disk_free_percent', 'Disk free', percent), minor: 'tablet' },
  {
    key: 'failover', title: 'Failover', hint: 'whether clients may fail over to it', wide: true,
    value: ({ may_fail_over: may }) => (isKnown(may) ? Number(may) : null), text: failoverOf,
    cell: (row) => (row.may_fail_over === false
      ? html`<span class="unsafe-text">${failoverOf(row)}</span>` : failoverOf(row)),
  },
];

export default function Instances() {
  const found = fabric.value;
  if (!found) {
    return fabricError.value
      ? html`<${Problem} error=${fabricError.value} title="The instances could not be read" />`
      : html`<${Loading} text="asking the instances" />`;
  }
  const { answered, instances } = found.totals;
  return html`<div class="page-head"><h1>Instances</h1>
      <p class="muted">${plural(found.regions.length, 'region')}, ${answered === instances
        ? (instances === 1 ? 'it has answered' : `all ${exact(instances)} answered`) : `${exact(answered)} of ${exact(instances)} answered`}</p></div>
    <${Table} id="instances" caption="Instances" columns=${COLUMNS} rows=${found.instances}
      rowHref=${({ name }) => href('instance', [name])} />`;
}
