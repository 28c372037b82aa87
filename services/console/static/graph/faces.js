/*
 * How the state of links, bundles, instances and regions reads on the graph: kind of line, level, texts from long to short.
 * Pure. Ages and trends are the servers'; what is unknown is a dash and in no sum.
 */
import { count, duration, isKnown, lag as lagText, ms, plural, rate } from '../core/format.js';
import { badness, levelOf } from '../core/status.js';

const TREND = { growing: '▲', shrinking: '▼', steady: '=' };
const KINDS = new Set(['sync', 'async', 'downgraded', 'catching_up', 'disconnected', 'refused', 'unknown']);
const WORD = { catching_up: 'catching up' };

/** Width of a line by its rate in messages a second, in three steps that the legend names. */
export function widthOf(perSecond) {
  if (!isKnown(perSecond) || perSecond < 100) return 0;
  return perSecond < 5000 ? 1 : 2;
}

export const kindOf = (link) => (KINDS.has(link.state) ? link.state : 'unknown');

/** The level of a link by its state where the server gives none that is known. */
export function linkLevel(link) {
  const kind = kindOf(link);
  if (kind === 'unknown') return 'unknown';
  return levelOf(link.level);
}

/** Lag in seconds with the sign of its trend: 3.2 s ▲. */
export function shortLag(seconds, trend) {
  if (!isKnown(seconds)) return '–';
  return TREND[trend] && Number(seconds) > 0 ? `${duration(seconds)} ${TREND[trend]}` : duration(seconds);
}

function since(link, nowUs) {
  return isKnown(link.since_us) && isKnown(nowUs) ? duration(Math.max(0, Math.floor((nowUs - link.since_us) / 1e6))) : '';
}

/** The first unit of a duration: 2 m of 2 m 10 s. */
const coarse = (age) => age.split(' ').slice(0, 2).join(' ');

function owes(link) {
  const owed = isKnown(link.lag) ? `owes ${count(link.lag)}` : 'catching up';
  return isKnown(link.seconds_left) ? `${owed}, ${duration(link.seconds_left)} left` : owed;
}

/** Clients fail over within a group, or along a sync link: of the others nothing is promised, and nothing is a worry. */
export const isUnsafe = (link) =>
  link.safe === false && (link.configured_type === 'sync' || link.from_group === link.to_group);

export function unsafeText(link) {
  if (!isUnsafe(link)) return '';
  return isKnown(link.lag) && link.lag > 0 ? `unsafe: owes ${count(link.lag)}` : 'unsafe to fail over';
}

/**
 * The lines of a link's card, each a list of texts from long to short, of which the first that fits is shown.
 * The first line says the state, or for a healthy link its lag; the second what goes with it.
 */
export function linkLines(link, nowUs) {
  const kind = kindOf(link);
  const behind = [lagText(link), shortLag(link.seconds_behind, link.trend)];
  const safe = unsafeText(link);
  if (kind === 'unknown') {
    const text = link.text || 'no answer';
    return [[text, text.replace(/^last answer /, ''), 'unknown'], []];
  }
  if (kind === 'disconnected' || kind === 'refused') {
    const age = since(link, nowUs);
    const first = [link.text, age ? `${kind} ${age}` : kind, age ? `${kind} ${coarse(age)}` : kind, age || kind, coarse(age) || kind].filter(Boolean);
    return [first, safe ? [safe] : link.why ? [link.why] : []];
  }
  if (kind === 'catching_up') {
    const left = isKnown(link.seconds_left) ? `${duration(link.seconds_left)} left` : 'catching up';
    return [[owes(link), left, shortLag(link.seconds_behind, link.trend)], safe ? [safe] : behind];
  }
  if (kind === 'downgraded') {
    const age = since(link, nowUs);
    return [[link.text || 'downgraded', age ? `downgraded ${age}` : 'downgraded', age ? `downgraded ${coarse(age)}` : 'downgraded', age || 'downgraded', coarse(age) || 'downgraded'], safe ? [safe, 'unsafe'] : behind];
  }
  return [behind, safe ? [safe, 'unsafe'] : [`${kind} ${rate(link.rate_per_sec)}`, rate(link.rate_per_sec)]];
}

/** The glyph before a card's text: that of the level, or ⊘ for a link that is cut. */
export function linkGlyph(kind, level) {
  if (kind === 'disconnected' || kind === 'refused') return '⊘';
  if (kind === 'downgraded') return '▲';
  if (kind === 'unknown') return '?';
  if (kind === 'catching_up') return '»';
  return { attention: '▲', act: '■', working: '◐' }[level] || '';
}

/** The sentence of a link, as its name for assistive technology. */
export function linkSentence(link, nowUs) {
  const kind = kindOf(link);
  const [first, second] = linkLines(link, nowUs);
  const words = [`${link.from} to ${link.destination || link.to_group}: ${WORD[kind] || kind}`];
  const healthy = kind === 'sync' || kind === 'async';
  if (healthy) words.push(rate(link.rate_per_sec), isKnown(link.seconds_behind) ? `${lagText(link)} behind` : 'lag unknown');
  else words.push(first[0], ...second.slice(0, 1));
  if (isUnsafe(link)) words.push(link.why_unsafe || 'unsafe to fail over');
  return [...new Set(words.filter((word) => word && word !== kind))].join(', ');
}

function worseLink(a, b) {
  const byLevel = badness(linkLevel(a)) - badness(linkLevel(b));
  if (byLevel) return byLevel > 0;
  return (a.seconds_behind ?? -1) > (b.seconds_behind ?? -1);
}

/** The state of a line: of its one link, or of a bundle, where the worst state wins, rates add up and lag is the maximum. */
export function lineFace(links, type) {
  let worst = null;
  let total = null;
  let lag = null;
  let trend = null;
  let unknown = 0;
  let unsafe = 0;
  let troubled = 0;
  for (const link of links) {
    if (!worst || worseLink(link, worst)) worst = link;
    const level = linkLevel(link);
    if (level === 'unknown') unknown += 1;
    else {
      if (isKnown(link.rate_per_sec)) total = (total ?? 0) + link.rate_per_sec;
      if (isKnown(link.seconds_behind) && (lag === null || link.seconds_behind > lag)) ({ seconds_behind: lag, trend } = link);
    }
    if (level !== 'ready') troubled += 1;
    if (isUnsafe(link)) unsafe += 1;
  }
  if (!worst) return { kind: 'unknown', level: 'unknown', type, width: 0, unsafe: 0, worst: null, lag, trend, rate: total, unknown, troubled, count: 0 };
  return { kind: kindOf(worst), level: linkLevel(worst), type, width: widthOf(total), unsafe, worst, lag, trend, rate: total, unknown, troubled, count: links.length };
}

/** A bundle's text, long to short: 8 links, worst 3.2 s ▲. */
export function bundleTexts(face) {
  const lag = shortLag(face.lag, face.trend);
  const some = plural(face.count, 'link');
  const missing = face.unknown ? `${face.count - face.unknown} of ${face.count} answered` : '';
  const texts = [];
  if (missing && face.kind === 'unknown') texts.push(missing, `${face.count - face.unknown} of ${face.count}`);
  texts.push(`${some}, worst ${lag}`, `${some}, ${lag}`, `${face.count} · ${lag}`, lag);
  return texts;
}

export function bundleSentence(from, to, face) {
  const words = [`${from} to ${to}: ${plural(face.count, `${face.type} link`)}`, `worst ${WORD[face.kind] || face.kind}`, `lag ${shortLag(face.lag, face.trend)}`, rate(face.rate)];
  if (face.unknown) words.push(`${face.count - face.unknown} of ${face.count} answered`);
  if (face.unsafe) words.push(`${face.unsafe} unsafe`);
  return words.join(', ');
}

export const instanceLevel = (instance) => (instance ? levelOf(instance.level) : 'unknown');

const STATE = { catching_up: 'catching up' };

/** The word for an instance's state, or why it is not known. */
export function instanceState(instance) {
  if (!instance) return 'unknown';
  if (instanceLevel(instance) === 'unknown') {
    if (isKnown(instance.age_s)) return `last answer ${duration(instance.age_s)} ago`;
    return { never: 'never answered', not_entitled: 'not entitled', version: 'another version' }[instance.missing] || 'no answer';
  }
  return STATE[instance.state] || instance.state || '–';
}

export function instanceSentence(instance, name) {
  if (!instance) return `${name}: unknown`;
  const words = [`${name}: ${instanceState(instance)}`];
  if (instance.why) words.push(instance.why);
  if (instanceLevel(instance) === 'unknown') words.push(...(instance.seen_by_others || []).slice(0, 2).map((seen) => `${seen.by}: ${seen.text}`));
  else words.push(`${rate(instance.acks_per_sec)} acknowledged`, `p99 ${ms(instance.ack_ms_p99)}`);
  if (instance.may_fail_over === false) words.push(`clients may not fail over to it: ${instance.why_not || 'unsafe'}`);
  return words.join(', ');
}

/** What a region sums up: how many answered, rates of those, its worst level. */
export function regionFace(instances) {
  let answered = 0;
  let acks = null;
  let level = 'ready';
  for (const instance of instances) {
    const own = instanceLevel(instance);
    if (badness(own) > badness(level)) level = own;
    if (own === 'unknown') continue;
    answered += 1;
    if (isKnown(instance.acks_per_sec)) acks = (acks ?? 0) + instance.acks_per_sec;
  }
  return { answered, of: instances.length, acks, level };
}

/** Links that need somebody, worst first: the level, then the lag. */
export function troubledLinks(links) {
  return links
    .filter((link) => linkLevel(link) !== 'ready' || link.safe === false)
    .sort((a, b) => badness(linkLevel(b)) - badness(linkLevel(a)) || (b.seconds_behind ?? -1) - (a.seconds_behind ?? -1) || (a.id < b.id ? -1 : 1));
}
