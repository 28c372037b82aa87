// A problem: what, since when and where it goes, what happened just before, and what to do.
import { html, useEffect, useState } from './html.js';
import { nowUs } from './fabric.js';
import { clock, duration, isKnown, TRENDS } from './format.js';
import { href, route } from './route.js';
import { GLYPHS, levelOf, WORDS } from './status.js';

const EVENTS_SHOWN = 3;

export function ProblemCard({ problem, isTitleLink = true }) {
  const level = levelOf(problem.level);
  const { tz } = route.value.params;
  const { do: toDo } = problem;
  const title = html`<span class="glyph" aria-hidden="true">${GLYPHS[level]}</span>
    <span class="hidden-text">${WORDS[level]}: </span>${problem.text}`;
  return html`<article class="problem problem-${level}" data-row data-problem=${problem.id}>
    ${isTitleLink && problem.href
      ? html`<a class="problem-title" href=${withZone(problem.href)}>${title}</a>`
      : html`<p class="problem-title">${title}</p>`}
    <p class="problem-when">
      ${isKnown(problem.since_us)
        ? html`since <time>${clock(problem.since_us, tz)}</time>,${' '}
            ${duration(Math.max(0, Math.floor((nowUs.value - problem.since_us) / 1e6)))}`
        : 'since when is not known'}
      ${TRENDS[problem.trend] ? html` <span class="trend">${TRENDS[problem.trend]}</span>` : null}
    </p>
    ${problem.events?.length
      ? html`<ul class="problem-before" aria-label="just before">
          ${problem.events.slice(-EVENTS_SHOWN).map((event) => html`<li
              key=${`${event.instance} ${event.number}`}>
            <time>${clock(event.time_us, tz)}</time>
            <span>${event.instance}: ${eventText(event)}</span></li>`)}
        </ul>`
      : null}
    ${toDo?.text || toDo?.action
      ? html`<div class="problem-do">
          ${toDo.action ? html`<${LazyAction} ...${toDo.action} />` : null}
          <p class="muted">${toDo.text}</p>
          ${toDo.page ? html`<p class="muted">${pageOf(toDo.page)}</p>` : null}
        </div>`
      : null}
  </article>`;
}

// A page of the documentation that is not served here: its file and heading.
function pageOf(page) {
  const [file, heading] = page.split('#');
  return html`see <code>docs/${file}</code>${heading ? `, “${heading.replaceAll('-', ' ')}”` : ''}`;
}

// The address that a server gives, in the time zone and range of this page.
function withZone(address) {
  const [path, query = ''] = address.replace(/^#\//, '').split('?');
  const [page, ...names] = path.split('/').map((each) => {
    try {
      return decodeURIComponent(each);
    } catch {
      return each;
    }
  });
  return href(page, names, Object.fromEntries(new URLSearchParams(query)));
}

export const eventText = ({ event, text }) =>
  text?.toLowerCase().startsWith(event?.replaceAll('_', ' ').toLowerCase())
    ? text
    : [event?.replaceAll('_', ' '), text].filter(Boolean).join(': ');

// The dialogs of actions are read when the first button is shown: a healthy fabric needs none.
export function LazyAction(props) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    import('./action.js').then((module) => setFound({ view: module.Action }), () => {});
  }, []);
  return found
    ? html`<${found.view} ...${props} />`
    : html`<button type="button" class="button" disabled>${props.label}</button>`;
}
