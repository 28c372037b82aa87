/*
 * The drawn parts of the graph: lines by kind, heads, cards, boxes of instances, frames of regions.
 * Each is a component that is drawn again only when what it shows has changed, so that a thousand lines refresh in a few milliseconds.
 */
import { Component, html } from '../core/html.js';
import { GLYPHS } from '../core/status.js';
import { count, ms, rate } from '../core/format.js';
import { fitting, shortened, textWidth } from './text.js';
import { pointAt } from './routes.js';
import { bundleTexts, instanceLevel, instanceState, linkGlyph, linkLines, regionFace, shortLag } from './faces.js';

/** A component that is drawn again only when its text `face` or its `route` changes. */
class Kept extends Component {
  shouldComponentUpdate(next) {
    return next.face !== this.props.face || next.place !== this.props.place || next.href !== this.props.href;
  }
}

const SHIELD = 'M0 -7L6 -5V0C6 4 3 6 0 7.5C-3 6 -6 4 -6 0V-5Z';

/** The barred shield: clients may not fail over there without loss. */
export function Shield({ x, y, scale = 1 }) {
  return html`<g class="g-shield" transform="translate(${n1(x)} ${n1(y)}) scale(${scale})">
    <path class="g-shield-body" d=${SHIELD}/><path class="g-shield-bar" d="M-4.5 4.5L4.5 -4.5"/></g>`;
}

const n1 = (value) => Math.round(value * 10) / 10;

/* Outer widths of lines by rate; a double line has a gap between its two strokes. */
const SINGLE = [1.25, 2, 3];
const DOUBLE = [4, 4.75, 6];
const GAP = [1.25, 1.5, 2];

/** A part of a curve, between two values of t. */
function part(route, from, to) {
  let path = '';
  for (let i = 0; i <= 12; i += 1) {
    const { x, y } = pointAt(route, from + ((to - from) * i) / 12);
    path += `${i ? 'L' : 'M'}${n1(x)} ${n1(y)}`;
  }
  return path;
}

function chevrons(route) {
  const number = Math.max(3, Math.min(24, Math.round(route.length / 26)));
  let path = '';
  for (let i = 1; i < number; i += 1) {
    const { x, y, angle } = pointAt(route, i / number);
    const turn = (angle * Math.PI) / 180;
    const cos = Math.cos(turn);
    const sin = Math.sin(turn);
    const at = (dx, dy) => `${n1(x + dx * cos - dy * sin)} ${n1(y + dx * sin + dy * cos)}`;
    path += `M${at(-4, -5)}L${at(2, 0)}L${at(-4, 5)}`;
  }
  return path;
}

function head(route, size) {
  // The angle a little before the end: the last point of a bent curve says too little.
  const { angle } = pointAt(route, 0.97);
  return html`<path class="g-head" d="M1 0L${-size} ${n1(size * 0.55)}L${n1(-size * 0.75)} 0L${-size} ${n1(-size * 0.55)}Z"
    transform="translate(${n1(route.p1.x)} ${n1(route.p1.y)}) rotate(${n1(angle)})"/>`;
}

/** The text by which a line is drawn again: what `LineShape` shows of its face. */
export const lineKey = (face) => `${face.kind}|${face.level}|${face.type}|${face.width}|${face.unsafe ? 1 : 0}`;

/** The strokes of a line: double when sync, dashed when downgraded, cut when disconnected, dotted when unknown. */
export function LineShape({ route, face, at = 0.5, mark = true, thin = false }) {
  const { kind, type } = face;
  const double = type === 'sync' && kind !== 'disconnected' && kind !== 'refused' && kind !== 'unknown' && !thin;
  const width = thin ? [1, 1.5, 2.5][face.width] : double ? DOUBLE[face.width] : SINGLE[face.width];
  const shield = face.unsafe ? pointAt(route, Math.max(0.5, 1 - 22 / Math.max(route.length, 44))) : null;
  const spot = pointAt(route, at);
  if (kind === 'disconnected' || kind === 'refused') {
    const gap = Math.min(0.18, 13 / Math.max(route.length, 1));
    return html`<path class="g-stroke" stroke-width=${Math.max(width, 1.5)} d=${part(route, 0, at - gap)}/>
      <path class="g-stroke" stroke-width=${Math.max(width, 1.5)} d=${part(route, at + gap, 1)}/>
      ${head(route, 9)}
      ${mark ? html`<g class="g-cut" transform="translate(${n1(spot.x)} ${n1(spot.y)})"><circle r="7"/><path d="M-5 5L5 -5"/></g>` : null}
      ${shield ? html`<${Shield} ...${shield}/>` : null}`;
  }
  const dash = kind === 'downgraded' ? '9 6' : kind === 'unknown' ? '0.1 6' : null;
  const glyph = kind === 'downgraded' ? '▲' : kind === 'unknown' ? '?' : face.level === 'attention' ? '▲' : face.level === 'act' ? '■' : '';
  return html`<path class="g-stroke" stroke-width=${kind === 'unknown' ? 2.5 : width} stroke-dasharray=${dash} stroke-linecap=${kind === 'unknown' ? 'round' : null} d=${route.path}/>
    ${double ? html`<path class="g-inner" stroke-width=${width - 2 * GAP[face.width]} d=${route.path}/>` : null}
    ${kind === 'catching_up' ? html`<path class="g-chevrons" d=${chevrons(route)}/>` : null}
    ${head(route, thin ? 7 : [9, 10, 12][face.width])}
    ${mark && glyph ? html`<g class="g-mark" transform="translate(${n1(spot.x)} ${n1(spot.y)})"><circle r="7"/><text y="3.5">${glyph}</text></g>` : null}
    ${shield ? html`<${Shield} ...${shield}/>` : null}`;
}

/** A line that opens its page: {href, name, face (LineShape's key), shown (the face), place (its route)}. */
export class Line extends Kept {
  shouldComponentUpdate(next) {
    return super.shouldComponentUpdate(next) || next.name !== this.props.name;
  }

  render({ id, href, name, shown, place, at, mark, thin, faint = '' }) {
    return html`<a class="g-line is-${shown.level} kind-${shown.kind} ${faint}" href=${href} data-key=${id} tabindex="-1" aria-label=${name}>
      <path class="g-hit" d=${place.path}/>
      <${LineShape} route=${place} face=${shown} at=${at} mark=${mark} thin=${thin}/>
    </a>`;
  }
}

/** Width left for a card's text beside its glyph and padding. */
const inner = (card, glyph) => card.width - 14 - (glyph ? 16 : 0);

/** The second line: a reason is shortened only where most of it is left. */
function secondText(texts, width) {
  const text = fitting(texts, width);
  return text.endsWith('…') && width < 110 ? '' : text;
}

/** What a card shows, as {glyph, first, second}: texts that fit into it. */
export function cardTexts(line, face, card, nowUs) {
  const glyph = linkGlyph(face.kind, face.level);
  const width = inner(card, glyph);
  if (line.links.length > 1) return { glyph, first: fitting(bundleTexts(face), width), second: '' };
  const [first, second] = linkLines(face.worst, nowUs);
  const bold = face.level === 'attention' || face.level === 'act';
  const tall = card.height >= 34;
  if (!tall) return { glyph, first: fitting(face.kind === 'unknown' ? first : [shortLag(face.lag, face.trend), ...first.slice(1)], width, 12, bold), second: '' };
  return { glyph, first: fitting(first, width, 12, bold), second: second.length ? secondText(second, card.width - 14) : '' };
}

/** A card on a line, centred in its reserved place. */
export class Card extends Kept {
  render({ id, href, shown, texts, place }) {
    const { glyph, first, second } = texts;
    const bold = shown.level === 'attention' || shown.level === 'act';
    const firstWidth = textWidth(first, 12, bold) + (glyph ? 16 : 0);
    const width = Math.min(place.width, Math.ceil((Math.max(firstWidth, second ? textWidth(second, 12) : 0) + 14) / 2) * 2);
    const height = second ? Math.min(36, place.height) : Math.min(20, place.height);
    const x = place.x + place.width / 2;
    const y = place.y + place.height / 2;
    const top = second ? y - 4 : y + 4;
    const leader = place.moved ? `M${n1(place.at.x)} ${n1(place.at.y)}V${n1(place.at.y < y ? y - height / 2 : y + height / 2)}` : '';
    return html`<g class="g-card is-${shown.level} kind-${shown.kind}" data-key=${id} data-href=${href} aria-hidden="true">
      ${leader ? html`<path class="g-leader" d=${leader}/>` : null}
      <rect x=${n1(x - width / 2)} y=${n1(y - height / 2)} width=${width} height=${height} rx="5"/>
      ${glyph ? html`<text class="g-card-glyph" x=${n1(x - firstWidth / 2)} y=${n1(top)}>${glyph}</text>` : null}
      <text class="g-card-first" x=${n1(x - firstWidth / 2 + (glyph ? 16 : 0))} y=${n1(top)}>${first}</text>
      ${second ? html`<text class="g-card-second" x=${n1(x)} y=${n1(y + 11)} text-anchor="middle">${second}</text>` : null}
    </g>`;
  }
}

/** A small run of the last minute's values; gaps stay gaps. */
function spark(values, x, y, width, height) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const top = Math.max(...known, 1e-9) * 1.1;
  const step = width / 59;
  const begin = x + width - (values.length - 1) * step;
  let line = '';
  let area = '';
  let open = null;
  values.forEach((value, i) => {
    const px = n1(begin + i * step);
    if (value === null) {
      if (open !== null) area += `L${n1(px - step)} ${y + height}Z`;
      open = null;
      return;
    }
    const py = n1(y + height - (value / top) * height);
    line += `${open === null ? 'M' : 'L'}${px} ${py}`;
    area += open === null ? `M${px} ${y + height}L${px} ${py}` : `L${px} ${py}`;
    open = px;
  });
  if (open !== null) area += `L${open} ${y + height}Z`;
  return html`<path class="g-spark-base" d=${`M${x} ${y + height}H${x + width}`}/><path class="g-spark-area" d=${area}/><path class="g-spark" d=${line}/>`;
}

/** What an instance's box shows, as a text: it is drawn again when that changes. */
export function instanceKey(instance, detail, queues, values) {
  if (!instance) return 'unknown';
  const base = `${instanceLevel(instance)}|${instance.state}|${instanceState(instance)}|${instance.may_fail_over}|${instance.slow_clients}`;
  if (detail === 'names' || detail === 'cells') return base;
  const figures = `${base}|${instance.acks_per_sec}|${instance.ack_ms_p99}`;
  return detail === 'boxes' ? figures : `${figures}|${instance.in_per_sec}|${instance.out_per_sec}|${instance.clients}|${instance.ack_ms_p50}|${queues}|${values.length}|${values[values.length - 1]}|${instance.why}`;
}

export class Instance extends Kept {
  render({ id, href, name, label, instance, place, detail, queues, values }) {
    const level = instanceLevel(instance);
    const { x, y, width, height } = place;
    const unsafe = instance && instance.may_fail_over === false;
    const body = { full: fullBody, boxes: boxBody, names: nameBody, cells: cellBody }[detail];
    return html`<a class="g-instance is-${level}" href=${href} data-key=${id} tabindex="-1" aria-label=${label}>
      <rect class="g-box" x=${x} y=${y} width=${width} height=${height} rx=${detail === 'cells' ? 5 : 7}/>
      ${level === 'unknown' ? html`<rect class="g-hatched" x=${x} y=${y} width=${width} height=${height} rx=${detail === 'cells' ? 5 : 7} fill="url(#g-hatch)"/>` : null}
      ${body({ name, instance, level, place, unsafe, queues, values })}
    </a>`;
  }
}

function title(name, level, place, unsafe, y, size = 13, right = 0) {
  const { x, width } = place;
  return html`<text class="g-glyph" x=${x + 16} y=${y} text-anchor="middle">${GLYPHS[level]}</text>
    <text class="g-name" x=${x + 28} y=${y} font-size=${size}>${shortened(name, width - 40 - (unsafe ? 20 : 0) - right, size, true)}</text>
    ${unsafe ? html`<${Shield} x=${x + width - 16} y=${y - 4}/>` : null}`;
}

function nameBody({ name, level, place, unsafe }) {
  return title(name, level, place, unsafe, place.y + 18);
}

function cellBody({ level, place, unsafe }) {
  return html`<text class="g-glyph" x=${place.cx} y=${place.cy + 4.5} text-anchor="middle">${GLYPHS[level]}</text>
    ${unsafe ? html`<${Shield} x=${place.x + place.width - 3} y=${place.y + 4} scale="0.7"/>` : null}`;
}

const stateful = (instance, level) => level === 'unknown' || level === 'act' || (instance.state && instance.state !== 'ready');

function boxBody({ name, instance, level, place, unsafe }) {
  const { x, y, width } = place;
  const second = !instance || stateful(instance, level)
    ? [instanceState(instance)]
    : [`${rate(instance.acks_per_sec)} · p99 ${ms(instance.ack_ms_p99)}`, `${rate(instance.acks_per_sec)} · ${ms(instance.ack_ms_p99)}`];
  return html`${title(name, level, place, unsafe, y + 26)}
    <text class="g-figures" x=${x + 28} y=${y + 47}>${fitting(second, width - 36)}</text>`;
}

function fullBody({ name, instance, level, place, unsafe, queues, values }) {
  const { x, y, width } = place;
  const known = instance && level !== 'unknown';
  const state = instance && instance.why ? `${instanceState(instance)}: ${instance.why}` : instanceState(instance);
  const second = level === 'ready' && queues ? `ready, owns ${queues}` : state;
  const seen = !known && instance ? (instance.seen_by_others || []).slice(0, 2) : [];
  const column = (width - 32) / 3;
  const figures = known
    ? [['in', rate(instance.in_per_sec)], ['out', rate(instance.out_per_sec)], ['clients', count(instance.clients)],
      ['acks', rate(instance.acks_per_sec)], ['ack p50', ms(instance.ack_ms_p50)], ['ack p99', ms(instance.ack_ms_p99)]]
    : [];
  return html`${title(name, level, place, unsafe, y + 26)}
    <text class="g-figures" x=${x + 28} y=${y + 44}>${shortened(second, width - 40)}</text>
    ${seen.map((one, i) => html`<text class="g-label" x=${x + 28} y=${y + 72 + i * 40}>${shortened(`${one.by} says`, width - 40)}</text>
      <text class="g-value" x=${x + 28} y=${y + 89 + i * 40}>${shortened(one.text, width - 40, 13, true)}</text>`)}
    ${figures.map(([word, text], i) => {
      const left = x + 16 + (i % 3) * column;
      const top = y + 68 + Math.floor(i / 3) * 36;
      return html`<text class="g-label" x=${left} y=${top}>${word}</text><text class="g-value" x=${left} y=${top + 16}>${shortened(text, column - 8, 13, true)}</text>`;
    })}
    ${known ? spark(values, x + 16, y + 128, width - 32, 26) : null}`;
}

/** What a region's frame shows; drawn again when that changes. */
export function regionKey(face, chip, open) {
  return `${face.answered}|${face.of}|${face.acks}|${face.level}|${chip ? `${chip.text}${chip.level}` : ''}|${open}`;
}

export function regionTexts(instances, insideFace) {
  const face = regionFace(instances);
  const chip = insideFace && insideFace.count
    ? { level: insideFace.level, glyph: linkGlyph(insideFace.kind, insideFace.level), texts: [`${insideFace.count} links inside, worst ${shortLag(insideFace.lag, insideFace.trend)}`, `${insideFace.count} inside, worst ${shortLag(insideFace.lag, insideFace.trend)}`, `${insideFace.count} inside, ${shortLag(insideFace.lag, insideFace.trend)}`, `${insideFace.count} inside`] }
    : null;
  if (chip) chip.text = chip.texts[0];
  return { face, chip };
}

/**
 * The frame of a region and its texts; `part` draws only one of the two, where lines go between them. The frame is the part with the name
 * and the focus.
 */
export class Region extends Kept {
  render({ part, id, name, label, shown, place, detail, frameless, open, canOpen }) {
    const { x, y, width, height } = place;
    if (frameless) return null;
    const { face, chip } = shown;
    const missing = face.answered < face.of ? `${face.answered} of ${face.of} answered` : '';
    const cells = place.head >= 48;
    const right = missing || (detail === 'full' ? '' : detail === 'cells' ? rate(face.acks) : '');
    const rightText = right ? fitting(missing ? [missing, `${face.answered} of ${face.of}`] : [right], width - 36 - Math.min(textWidth(name, 13, true), width * 0.5)) : '';
    const rightWidth = rightText ? textWidth(rightText, 12) + 12 : 0;
    const chipBold = chip && (chip.level === 'attention' || chip.level === 'act');
    const chipText = chip ? fitting(chip.texts, cells ? width - 24 - (chip.glyph ? 16 : 0) : width - 40 - rightWidth - textWidth(name, 13, true) - (chip.glyph ? 16 : 0), 12, chipBold) : '';
    const chipX = cells ? x + 12 : x + width - 12 - rightWidth - textWidth(chipText, 12) - (chip && chip.glyph ? 16 : 0);
    const chipY = cells ? y + 39 : y + 21;
    const chipFits = chip && (cells || chipX > x + 20 + textWidth(name, 13, true));
    const nameWidth = width - 24 - rightWidth - (cells || !chipFits ? 0 : x + width - rightWidth - chipX);
    const texts = part === 'frame' ? null : html`<text class="g-title" x=${x + 12} y=${y + 21}>${shortened(name, nameWidth, 13, true)}</text>
      ${rightText ? html`<text class=${missing ? 'g-missing' : 'g-figures'} x=${x + width - 12} y=${y + 21} text-anchor="end">${rightText}</text>` : null}
      ${chipFits ? html`<g class="g-chip is-${chip.level}">${chip.glyph ? html`<text class="g-card-glyph" x=${chipX} y=${chipY}>${chip.glyph}</text>` : null}
        <text x=${chipX + (chip.glyph ? 16 : 0)} y=${chipY}>${chipText}</text></g>` : null}`;
    if (part === 'texts') return html`<g class="g-region g-over is-${face.level}" aria-hidden="true">${texts}</g>`;
    return html`<g class="g-region is-${face.level}" data-key=${id} role=${canOpen ? 'button' : 'group'} tabindex="-1" aria-label=${label} aria-expanded=${canOpen ? String(open) : null}>
      <rect class="g-frame" x=${x} y=${y} width=${width} height=${height} rx="10"/>${texts}
    </g>`;
  }
}
