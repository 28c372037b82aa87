// All links as a table, and one link with both of its ends.
import { html } from '../core/html.js';
import { fabric, fabricError, instancesByName, linksById, nowUs } from '../core/fabric.js';
import {
  bytesRate, clock, count, duration, exact, isKnown, lag, ms, rate, time, TRENDS, UNKNOWN,
} from '../core/format.js';
import { Number as Historic } from '../core/history_link.js';
import { instanceState } from '../core/instance_state.js';
import { LazyAction, ProblemCard } from '../core/problems.js';
import { href, route } from '../core/route.js';
import { Empty, Loading, Problem } from '../core/states.js';
import { badness, Status } from '../core/status.js';
import { Table } from '../core/table.js';

const STATES = {
  sync: 'in step', async: 'in step', downgraded: 'downgraded', catching_up: 'catching up',
  disconnected: 'disconnected', refused: 'refused', unknown: 'unknown',
};

const nameOf = ({ from, destination }) => `${from} → ${destination}`;
const stateOf = (link) => link.text || STATES[link.state] || link.state;

// A filter finds links by the regions of both ends.
const groupOf = ({ from }) => instancesByName.value.get(from)?.group ?? '';

function modeOf({ configured_type: configured, type, state }) {
  return configured === 'sync' && type !== 'sync' && state !== 'unknown' ? 'sync, now async' : configured;
}

// Clients fail over within a group, or along a sync link: of the others nothing is promised.
const isForFailover = (link) =>
  link.configured_type === 'sync' || link.from_group === link.to_group;
const isUnsafe = (link) => link.safe === false && isForFailover(link);

function failoverOf(link) {
  if (!isForFailover(link)) return 'not for failover';
  if (!isKnown(link.safe)) return UNKNOWN;
  return link.safe ? 'safe' : `unsafe: ${link.why_unsafe}`;
}

const COLUMNS = [
  { key: 'link', title: 'Link', value: nameOf },
  {
    key: 'state', title: 'State', value: ({ level }) => badness(level), text: stateOf, wide: true,
    search: (link) => `${STATES[link.state] ?? ''} ${link.to_group ?? ''} ${groupOf(link)}`,
    cell: (link) => html`<${Status} level=${link.level} text=${stateOf(link)} />`,
  },
  { key: 'mode', title: 'Mode', value: modeOf, hint: 'as configured, and now', wraps: true },
  { key: 'rate_per_sec', title: 'Rate', numeric: true, text: (link) => rate(link.rate_per_sec) },
  {
    key: 'lag', title: 'Owes', numeric: true, hint: 'messages that the destination lacks',
    text: (link) => count(link.lag),
    cell: (link) => html`<span title=${exact(link.lag)}>${count(link.lag)}</span>`,
  },
  {
    key: 'seconds_behind', title: 'Behind', numeric: true, hint: 'how old what it lacks is',
    text: (link) => lag({ ...link, trend: link.lag ? link.trend : null }),
  },
  {
    key: 'age_ms', title: 'Oldest', numeric: true, minor: 'tablet', hint: 'age of the oldest unacknowledged message',
    text: (link) => ms(link.age_ms),
  },
  {
    key: 'safe', title: 'Failover', hint: 'whether clients may fail over to the destination',
    value: (link) => (isForFailover(link) && isKnown(link.safe) ? Number(link.safe) : null),
    text: failoverOf, wide: true,
    cell: (link) => (isUnsafe(link)
      ? html`<span class="unsafe-text">${failoverOf(link)}</span>`
      : html`<span class=${isForFailover(link) ? '' : 'muted'}>${failoverOf(link)}</span>`),
  },
];

export default function Links({ page, names }) {
  if (!fabric.value) {
    return fabricError.value
      ? html`<${Problem} error=${fabricError.value} title="The links could not be read" />`
      : html`<${Loading} text="asking the instances" />`;
  }
  return page === 'link' ? html`<${Link} id=${names.join('/')} />` : html`<${All} />`;
}

function All() {
  const { links } = fabric.value;
  const numbers = {};
  for (const { state } of links) numbers[state] = (numbers[state] ?? 0) + 1;
  const inStep = (numbers.sync ?? 0) + (numbers.async ?? 0);
  const others = ['disconnected', 'refused', 'downgraded', 'catching_up', 'unknown']
    .filter((state) => numbers[state])
    .map((state) => `${exact(numbers[state])} ${STATES[state]}`);
  return html`<div class="page-head"><h1>Links</h1>
      ${links.length
        ? html`<p class="muted">${[`${exact(inStep)} in step`, ...others].join(', ')}</p>` : null}</div>
    <${Table} id="links" caption="Links" columns=${COLUMNS} rows=${links} sort="-state"
      rowHref=${({ id }) => href('link', [id])}
      empty=${html`<${Empty} title="There are no links" text=${'A link comes from a destination in'
        + ' the configuration of an instance. Without one, each message stays where it was published.'} />`} />`;
}

function Link({ id }) {
  const link = linksById.value.get(id);
  const head = html`<p class="crumbs"><a href=${href('links')}>Links</a></p>`;
  if (!link) {
    return html`${head}<${Empty} title="There is no link ${id}"
      text="Its destination may have been taken out of the configuration. The others are in the list." />`;
  }
  const problems = fabric.value.problems.filter(({ href: address }) =>
    decodeURIComponent(address ?? '') === `#/link/${id}`);
  return html`
    <div class="page-head">${head}
      <h1>${link.from} → ${link.destination}</h1>
      <${Status} level=${link.level} text=${stateOf(link)} />
      <span class="spacer"></span>
      <${Actions} link=${link} />
    </div>
    <div class="stack">
      ${problems.map((problem) => html`<${ProblemCard} key=${problem.id} problem=${problem}
        isTitleLink=${false} />`)}
      <${Figures} link=${link} />
      <${Ends} link=${link} />
      <${Meaning} link=${link} />
    </div>`;
}

function Actions({ link }) {
  const path = `amps/administrator/replication/${encodeURIComponent(link.destination)}`;
  const verbs = link.configured_type !== 'sync'
    ? []
    : link.type === 'sync' ? ['downgrade'] : link.state === 'downgraded' ? ['upgrade'] : ['downgrade'];
  return html`<div class="page-actions" data-actions>
    ${verbs.map((verb) => html`<${LazyAction} key=${`${link.id} ${verb}`} instance=${link.from}
      path="${path}/${verb}" label="${verb} ${link.destination}" />`)}
    <${LazyAction} key=${`${link.id} reconnect`} instance=${link.from} path="${path}/reconnect"
      label="reconnect ${link.destination}" />
  </div>`;
}

function Figures({ link }) {
  const trend = link.lag ? TRENDS[link.trend] : '';
  const path = `amps/instance/replication/${encodeURIComponent(link.destination)}`;
  const of = (leaf) => ({ instance: link.from, path: `${path}/${leaf}` });
  return html`<dl class="figures card">
    <${Figure} label="sends" value=${rate(link.rate_per_sec)} note=${bytesRate(link.bytes_per_sec)}
      ...${of('messages_out_per_sec')} />
    <${Figure} label="owes" value=${count(link.lag)} note=${link.lag >= 1e6
      ? `${exact(link.lag)} messages` : isKnown(link.lag) ? 'messages' : 'not known'}
      ...${of('raylay/lag')} />
    <${Figure} label="behind" value=${duration(link.seconds_behind)} note=${isKnown(link.seconds_left)
      ? `${duration(link.seconds_left)} left` : trend} ...${of('seconds_behind')} />
    <${Figure} label="oldest" value=${ms(link.age_ms)}
      note=${isKnown(link.unacked) ? `of ${exact(link.unacked)} not acknowledged` : ''}
      ...${of('raylay/age_ms')} />
    <${Figure} label="mode" value=${link.type || UNKNOWN} note=${link.type === link.configured_type
      ? 'as configured' : `configured ${link.configured_type}`} />
  </dl>`;
}

const Figure = ({ label, value, note, instance, path }) => html`<div class="figure">
  <dt>${label}</dt>
  <dd class="value"><${Historic} instance=${instance} path=${path} label=${label}>${value}<//></dd>
  ${note ? html`<dd class="note">${note}</dd>` : null}
</div>`;

function Ends({ link }) {
  const source = instancesByName.value.get(link.from);
  const otherName = link.connected_to || link.other_end?.instance || link.to?.[0];
  const other = instancesByName.value.get(otherName);
  const back = other && fabric.value.links.find(
    ({ from, to, destination }) => from === otherName
      && (destination === link.from || to?.includes(link.from) || destination === source?.group));
  return html`<section class="ends" aria-label="both ends">
    <${End} title="At ${link.from}" instance=${source} name=${link.from} pairs=${[
      ['sends', `${rate(link.rate_per_sec)}, ${bytesRate(link.bytes_per_sec)}`],
      ['owes', lagText(link)],
      ['oldest', ms(link.age_ms)],
      ['since', isKnown(link.since_us) ? sinceText(link.since_us) : null],
      ['by hand', link.by_hand ? 'yes: until an upgrade or a restart' : null],
      ['reason', link.why || null],
    ]} />
    <${Between} link=${link} />
    <${End} title=${link.connected_to ? `At ${link.connected_to}` : `At ${link.destination}`}
      instance=${other} name=${otherName} pairs=${[
        ['says', link.other_end ? link.other_end.text : 'nothing: it has not answered'],
        ['failover list', link.to?.length > 1 ? link.to.join(', ') : null],
        ['sends back', back
          ? html`<a href=${href('link', [back.id])}>${nameOf(back)}</a>: ${rate(back.rate_per_sec)}`
          : null],
      ]} />
  </section>`;
}

const lagText = (link) => (isKnown(link.lag)
  ? `${exact(link.lag)} messages, ${lag({ ...link, trend: link.lag ? link.trend : null })}` : UNKNOWN);

function sinceText(us) {
  const { tz } = route.value.params;
  return `${clock(us, tz)}, ${duration(Math.max(0, Math.floor((nowUs.value - us) / 1e6)))}`;
}

function End({ title, instance, name, pairs }) {
  return html`<div class="card end">
    <h2>${name ? html`<a href=${href('instance', [name])}>${title}</a>` : title}
      ${instance ? html`<${Status} level=${instance.level} text=${instanceState(instance)} />` : null}</h2>
    <dl class="pairs">${pairs.filter(([, value]) => isKnown(value)).map(([label, value]) =>
      html`<dt key=${label}>${label}</dt><dd>${value}</dd>`)}
      ${instance?.missing && isKnown(instance.answered_us)
        ? html`<dt>last answer</dt><dd>${time(instance.answered_us, route.value.params.tz, { seconds: true })}</dd>`
        : null}
    </dl>
  </div>`;
}

// As in the graph: sync is double, async single, downgraded dashed, disconnected has a gap.
function Between({ link }) {
  const { state } = link;
  const dash = { downgraded: '8 6', unknown: '2 6', catching_up: '14 4' }[state];
  const rows = link.configured_type === 'sync' ? [9, 15] : [12];
  const isOpen = state === 'disconnected' || state === 'refused';
  return html`<div class="between">
    <svg class="between-line level-${link.level}" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      ${rows.map((y) => html`<line key=${y} x1="0" x2=${isOpen ? 40 : 100} y1=${y} y2=${y} stroke="currentColor"
        stroke-width="2" vector-effect="non-scaling-stroke" stroke-dasharray=${dash} />`)}
      ${isOpen ? rows.map((y) => html`<line key=${`b${y}`} x1="60" x2="100" y1=${y} y2=${y} stroke="currentColor"
        stroke-width="2" vector-effect="non-scaling-stroke" />`) : null}
    </svg>
    <span>${modeOf(link)}</span>
    <span class="muted">${rate(link.rate_per_sec)}</span>
  </div>`;
}

function Meaning({ link }) {
  const texts = [];
  if (link.type === 'sync') {
    texts.push(`Acknowledgments at ${link.from} wait for ${link.destination}: what a publisher was told is there too.`);
  } else if (link.configured_type === 'sync' && link.state !== 'unknown') {
    texts.push(link.state === 'downgraded' || link.state === 'catching_up'
      ? `Acknowledgments at ${link.from} do not wait for ${link.destination} now, though they should.`
      : `Publishers at ${link.from} wait until ${link.destination} is connected again, or the link is downgraded.`);
  } else if (link.configured_type === 'async') {
    texts.push(`Acknowledgments at ${link.from} never wait for ${link.destination}.`);
  }
  if (!isForFailover(link)) {
    texts.push(`Clients of ${link.from} do not fail over along it: it is async, and goes to another group.`);
  } else if (link.safe === true) texts.push(`Clients may fail over from ${link.from} to ${link.destination}.`);
  if (isUnsafe(link)) {
    texts.push(`Clients of ${link.from} should not fail over to ${link.destination}: ${link.why_unsafe}.`);
  }
  if (isForFailover(link) && !isKnown(link.safe)) texts.push('Whether clients may fail over there is not known.');
  return html`<section class=${isUnsafe(link) ? 'card unsafe' : 'card'}>
    <h2>What this means</h2>
    ${texts.map((text) => html`<p key=${text}>${text}</p>`)}
  </section>`;
}
