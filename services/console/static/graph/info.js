/* The card beside what is pointed at or has the focus: everything known of it, in words. */
import { html, useLayoutEffect, useRef } from '../core/html.js';
import { bytesRate, clock, count, duration, exact, isKnown, lag, ms, percent, plural, rate } from '../core/format.js';
import { Status } from '../core/status.js';
import { instanceLevel, instanceState, isUnsafe, kindOf, linkLevel, linkLines, regionFace, troubledLinks } from './faces.js';

const rows = (pairs) => pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');

function linkFacts(link, nowUs, tz) {
  const kind = kindOf(link);
  const configured = link.configured_type && link.configured_type !== kind ? `, configured ${link.configured_type}` : '';
  const healthy = kind === 'sync' || kind === 'async';
  return {
    title: `${link.from} → ${link.destination || link.to_group}`,
    level: linkLevel(link),
    state: healthy ? `${kind}${configured}` : `${linkLines(link, nowUs)[0][0]}${configured}`,
    notes: [link.why, isUnsafe(link) ? `Unsafe to fail over: ${link.why_unsafe || 'it lacks acknowledged messages'}.` : '', link.by_hand ? 'By hand: an upgrade by hand ends it.' : '', link.other_end ? `${link.other_end.instance}: ${link.other_end.text}` : ''],
    rows: rows([
      ['connected to', link.connected_to || (kind === 'unknown' ? '–' : 'none')],
      ['since', isKnown(link.since_us) ? clock(link.since_us, tz) : null],
      ['rate', `${rate(link.rate_per_sec)}${isKnown(link.bytes_per_sec) ? `, ${bytesRate(link.bytes_per_sec)}` : ''}`],
      ['behind', lag(link)],
      ['owes', isKnown(link.lag) ? plural(link.lag, 'message') : '–'],
      ['unacknowledged', isKnown(link.unacked) ? exact(link.unacked) : '–'],
      ['oldest', ms(link.age_ms)],
      ['done in', isKnown(link.seconds_left) ? duration(link.seconds_left) : null],
    ]),
  };
}

function instanceFacts(instance, name, owned) {
  if (!instance) return { title: name, level: 'unknown', state: 'unknown', notes: [], rows: [] };
  return {
    title: name,
    level: instanceLevel(instance),
    state: instanceState(instance),
    notes: [instance.why, ...(instance.seen_by_others || []).slice(0, 3).map((seen) => `${seen.by}: ${seen.text}`), instance.may_fail_over === false ? `Clients may not fail over to it: ${instance.why_not || 'it may lack acknowledged messages'}.` : ''],
    rows: rows([
      ['in', rate(instance.in_per_sec)],
      ['out', rate(instance.out_per_sec)],
      ['acknowledged', rate(instance.acks_per_sec)],
      ['ack p50, p99', `${ms(instance.ack_ms_p50)}, ${ms(instance.ack_ms_p99)}`],
      ['unacknowledged', isKnown(instance.unacknowledged) ? `${exact(instance.unacknowledged)}${isKnown(instance.oldest_unacknowledged_ms) && instance.unacknowledged ? `, oldest ${ms(instance.oldest_unacknowledged_ms)}` : ''}` : '–'],
      ['clients', `${count(instance.clients)}${instance.slow_clients ? `, ${instance.slow_clients} slow` : ''}`],
      ['owns', owned || null],
      ['disk free', percent(instance.disk_free_percent)],
    ]),
  };
}

function bundleFacts(line, face, links, nowUs) {
  const states = new Map();
  for (const link of links) states.set(kindOf(link), (states.get(kindOf(link)) || 0) + 1);
  const worst = troubledLinks(links).slice(0, 4);
  return {
    title: `${line.fromRegion} → ${line.toRegion}`,
    level: face.level,
    state: [...states].map(([kind, number]) => `${number} ${kind.replace('_', ' ')}`).join(', '),
    notes: worst.map((link) => `${link.from} → ${link.destination || link.to_group}: ${linkLines(link, nowUs)[0][0]}`),
    rows: rows([
      ['links', `${face.count} ${face.type}${face.unknown ? `, ${face.count - face.unknown} answered` : ''}`],
      ['rate', rate(face.rate)],
      ['worst lag', lag({ seconds_behind: face.lag, trend: face.trend })],
      ['unsafe', face.unsafe ? String(face.unsafe) : null],
    ]),
  };
}

function regionFacts(name, instances, inside, canOpen) {
  const face = regionFace(instances);
  return {
    title: name,
    level: face.level,
    state: face.answered < face.of ? `${face.answered} of ${face.of} answered` : plural(face.of, 'instance'),
    notes: [canOpen ? 'Enter or a click unfolds it.' : ''],
    rows: rows([['acknowledged', rate(face.acks)], ['links inside', inside.length ? String(inside.length) : null]]),
  };
}

export const facts = { link: linkFacts, instance: instanceFacts, bundle: bundleFacts, region: regionFacts };

/** Stands beside `at` (in px of the canvas), inside the canvas, and never takes the pointer. */
export function InfoCard({ found, at, bounds }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const card = ref.current;
    const { offsetWidth: width, offsetHeight: height } = card;
    const gap = 20;
    const within = (value, size, room) => Math.max(8, Math.min(value, room - size - 8));
    let left = at.x + at.half + gap;
    let top = within(at.y - height / 2, height, bounds.height);
    if (at.below) {
      // Beside a line it would hide the line: below it, or above.
      left = within(at.x - width / 2, width, bounds.width);
      top = at.y + at.below + gap;
      if (top + height > bounds.height - 8) top = Math.max(8, at.y - at.below - gap - height);
    } else if (left + width > bounds.width - 8) left = at.x - at.half - gap - width;
    if (left < 8) left = within(at.x - width / 2, width, bounds.width);
    card.style.left = `${Math.round(left)}px`;
    card.style.top = `${Math.round(top)}px`;
  });
  return html`<div class="graph-info" ref=${ref} aria-hidden="true">
    <div class="graph-info-title">${found.title}</div>
    <${Status} level=${found.level} text=${found.state}/>
    ${found.notes.filter(Boolean).map((note) => html`<p class="graph-info-note">${note}</p>`)}
    <dl>${found.rows.map(([word, value]) => html`<div><dt>${word}</dt><dd>${value}</dd></div>`)}</dl>
  </div>`;
}
