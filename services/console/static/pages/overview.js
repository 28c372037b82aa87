// The first page: is anything wrong, where, since when, and what to do.
import { html, useEffect, useState } from '../core/html.js';
import { events } from '../core/api.js';
import { fabric, fabricError, nowUs } from '../core/fabric.js';
import { clock, count, exact, rate, time } from '../core/format.js';
import { paused } from '../core/poll.js';
import { eventText, ProblemCard } from '../core/problems.js';
import { href, route, setParam } from '../core/route.js';
import { Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Graph } from '../graph/graph.js';

const PROBLEMS_SHOWN = 3; // The graph below is in sight with these.
const EVENTS_SHOWN = 12;

export default function Overview() {
  const found = fabric.value;
  if (!found) {
    return fabricError.value
      ? html`<${Problem} error=${fabricError.value} title="The state of the fabric could not be read" />`
      : html`<${Loading} text="asking the instances" />`;
  }
  return html`<div class="overview stack">
    <${Verdict} found=${found} />
    ${found.problems.length ? html`<${Problems} problems=${found.problems} />` : null}
    <${Graph} fabric=${found} />
    <${RecentEvents} />
  </div>`;
}

function Verdict({ found }) {
  const { verdict, totals } = found;
  const { answered, instances } = totals;
  const { tz } = route.value.params;
  return html`<header class="verdict">
    <div class="verdict-words">
      <h1><${Status} level=${verdict.level} text=${verdict.text} /></h1>
      <p class="muted">${answered === instances
        ? (instances === 1 ? 'it has answered' : `all ${exact(instances)} instances answered`)
        : html`<strong class="some-missing">${exact(answered)} of ${exact(instances)} instances answered</strong>`}
        , as of <time title=${time(nowUs.value, tz)}>${clock(nowUs.value, tz)}</time></p>
    </div>
    <dl class="totals" aria-label="totals of the instances that answered">
      <${Total} label="published" value=${rate(totals.in_per_sec)} precise=${totals.in_per_sec} />
      <${Total} label="acknowledged" value=${rate(totals.acks_per_sec)} precise=${totals.acks_per_sec} />
      <${Total} label="delivered" value=${rate(totals.out_per_sec)} precise=${totals.out_per_sec} />
      <${Total} label="clients" value=${count(totals.clients)} precise=${totals.clients}
        address=${href('clients')} />
      <${Total} label="subscriptions" value=${count(totals.subscriptions)}
        precise=${totals.subscriptions} />
    </dl>
  </header>`;
}

const Total = ({ label, value, precise, address }) => html`<div class="total">
  <dt>${label}</dt>
  <dd class="value" title=${exact(precise)}>${address ? html`<a href=${address}>${value}</a>` : value}</dd>
</div>`;

function Problems({ problems }) {
  const isAll = route.value.params.problems === 'all';
  const shown = isAll || problems.length === PROBLEMS_SHOWN + 1
    ? problems : problems.slice(0, PROBLEMS_SHOWN);
  const more = problems.length - shown.length;
  return html`<section aria-label="problems, the worst first">
    <div class="problems">
      ${shown.map((problem) => html`<${ProblemCard} key=${problem.id} problem=${problem} />`)}
    </div>
    ${more > 0 || (isAll && problems.length > PROBLEMS_SHOWN + 1)
      ? html`<button type="button" class="button more-button" aria-expanded=${isAll}
          onClick=${() => setParam('problems', isAll ? null : 'all')}>
          ${isAll ? 'Show the worst only' : `Show ${exact(more)} more`}</button>`
      : null}
  </section>`;
}

function RecentEvents() {
  const [last, setLast] = useState([]);
  const [isConnected, setConnected] = useState(null);
  const { tz } = route.value.params;
  const isPaused = paused.value;
  useEffect(() => {
    if (isPaused) return undefined;
    let waiting = [];
    let timer = 0;
    const take = () => {
      timer = 0;
      const came = waiting;
      waiting = [];
      setLast((before) => merged(before, came));
    };
    // Many come at once at the beginning: they are drawn together.
    const stop = events('raylay/events', (event) => {
      waiting.push(event);
      timer ||= setTimeout(take, 100);
    }, setConnected);
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [isPaused]);
  return html`<section aria-labelledby="recent">
    <div class="section-head"><h2 id="recent">Recent events</h2>
      <a href=${href('events')}>all events</a>
      ${isConnected === false && !isPaused
        ? html`<${Status} level="unknown" text="events do not come now; the page tries again" />` : null}
    </div>
    ${last.length
      ? html`<ol class="event-list">${last.map((event) => html`<li key=${`${event.instance} ${event.number}`}>
          <time class="muted" title=${time(event.time_us, tz)}>${clock(event.time_us, tz)}</time>
          <a href=${href('instance', [event.instance])}>${event.instance}</a>
          <span class="event-text">${event.level && event.level !== 'info'
            ? html`<${Status} level=${event.level} text=${eventText(event)} />`
            : eventText(event)}</span>
        </li>`)}</ol>`
      : html`<p class="muted">${isConnected === null
          ? 'asking for events …'
          : 'Nothing has happened since the instances started to keep events.'}</p>`}
  </section>`;
}

function merged(before, came) {
  const key = (event) => `${event.instance} ${event.number}`;
  const all = new Map([...before, ...came].map((event) => [key(event), event]));
  return [...all.values()].sort((a, b) => b.time_us - a.time_us).slice(0, EVENTS_SHOWN);
}
