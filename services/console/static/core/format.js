// Numbers, sizes and times as people read them. What is unknown is a dash, and never 0.

export const UNKNOWN = '–';

export const isKnown = (value) => value != null && value !== '' && !Number.isNaN(value);

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const LARGE = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M']];
const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

// Three digits that matter: 1.23, 12.3, 123.
function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

// Groups the digits of a whole number. A text stays a text: 64 bits are not rounded.
export function exact(value) {
  if (!isKnown(value)) return UNKNOWN;
  const text = typeof value === 'number' ? String(Math.round(value)) : String(value);
  const found = /^(-?)(\d+)$/.exec(text);
  return found ? found[1] + found[2].replace(/\B(?=(\d{3})+$)/g, ',') : text;
}

export function count(value) {
  if (!isKnown(value)) return UNKNOWN;
  const number = Number(value);
  if (Number.isNaN(number)) return String(value);
  for (const [size, letter] of LARGE) {
    if (Math.abs(number) >= size) return `${three(number / size)} ${letter}`;
  }
  return grouped.format(number);
}

export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  const number = Number(value);
  if (number > 0 && number < 9.95) return `${number.toFixed(1)}/s`;
  return `${count(number)}/s`;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  let size = Number(value);
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? three(size) : grouped.format(size)} ${SIZES[unit]}`;
}

export const bytesRate = (value) => (isKnown(value) ? `${bytes(value)}/s` : UNKNOWN);

export function percent(value) {
  if (!isKnown(value)) return UNKNOWN;
  const number = Number(value);
  return `${number < 9.95 ? number.toFixed(1) : number.toFixed(0)} %`;
}

const STEPS = [[86_400, 'd'], [3_600, 'h'], [60, 'm'], [1, 's']];

export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const number = Number(seconds);
  if (number < 0) return `−${duration(-number)}`;
  if (number === 0) return '0 s';
  if (number < 1) return ms(number * 1000);
  if (number < 9.95) return `${number.toFixed(1)} s`;
  const whole = Math.round(number);
  const first = STEPS.findIndex(([size]) => whole >= size);
  const [size, letter] = STEPS[first];
  const text = `${Math.floor(whole / size)} ${letter}`;
  if (first === STEPS.length - 1) return text;
  const [smaller, name] = STEPS[first + 1];
  const rest = Math.floor((whole % size) / smaller);
  return rest ? `${text} ${rest} ${name}` : text;
}

export function ms(value) {
  if (!isKnown(value)) return UNKNOWN;
  const number = Number(value);
  if (number === 0) return '0 ms';
  if (Math.abs(number) < 1) return `${Math.round(number * 1000)} µs`;
  if (Math.abs(number) < 99.95) return `${number.toFixed(1)} ms`;
  if (Math.abs(number) < 1000) return `${Math.round(number)} ms`;
  return duration(number / 1000);
}

export const us = (value) => (isKnown(value) ? ms(Number(value) / 1000) : UNKNOWN);

const two = (value) => String(value).padStart(2, '0');

// Returns 2026-11-27 04:12:07.123 UTC, or with tz 'local' the offset of this browser's zone.
export function time(timeUs, tz = 'utc', { seconds = false } = {}) {
  if (!isKnown(timeUs)) return UNKNOWN;
  const date = new Date(Number(timeUs) / 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  const [day, clock] = zoned(date, tz).toISOString().slice(0, -1).split('T');
  return `${day} ${seconds ? clock.slice(0, 8) : clock} ${zone(date, tz)}`;
}

// Returns 04:12:07 UTC: for what happened within the last day.
export function clock(timeUs, tz = 'utc') {
  if (!isKnown(timeUs)) return UNKNOWN;
  return time(timeUs, tz, { seconds: true }).slice(11);
}

function zoned(date, tz) {
  return tz === 'local' ? new Date(date.getTime() - date.getTimezoneOffset() * 60_000) : date;
}

function zone(date, tz) {
  if (tz !== 'local') return 'UTC';
  const offset = -date.getTimezoneOffset();
  const size = Math.abs(offset);
  return `${offset < 0 ? '−' : '+'}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

// Both times are the server's: the browser's clock may be wrong.
export function ago(timeUs, nowUs) {
  if (!isKnown(timeUs) || !isKnown(nowUs)) return UNKNOWN;
  const seconds = (Number(nowUs) - Number(timeUs)) / 1e6;
  return seconds < 1 ? 'now' : `${duration(Math.floor(seconds))} ago`;
}

export const TRENDS = { growing: '▲ growing', shrinking: '▼ shrinking', steady: '= steady' };

export function lag({ seconds_behind: seconds, trend }) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (Number(seconds) === 0) return '0 s';
  return [duration(seconds), TRENDS[trend]].filter(Boolean).join(' ');
}

export const plural = (number, one, many = `${one}s`) =>
  `${count(number)} ${Number(number) === 1 ? one : many}`;
