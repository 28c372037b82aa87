// The state of the page is the fragment of its address: #/page/name/name?q=…&sort=…
import { signal } from './html.js';

// A time zone and a range go along from page to page; a filter and an order do not.
const CARRIED = ['tz', 'from', 'to'];

function read(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const parts = path.split('/').filter(Boolean).map(decode);
  return {
    page: parts[0] ?? '',
    names: parts.slice(1),
    params: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // A % that somebody typed.
  }
}

function write(page, names, params) {
  const path = [page, ...names].filter((each) => each !== '').map(encodeURIComponent).join('/');
  const query = new URLSearchParams(
    Object.entries(params).filter(([, value]) => value != null && value !== ''),
  ).toString();
  // `~` separates the ends of a link: people read these addresses.
  return `#/${path.replaceAll('%7E', '~')}${query ? `?${query}` : ''}`;
}

export const route = signal(read(location.hash));

// Returns the address of a page, with the time zone and the range of this one.
export function href(page, names = [], params = {}) {
  const carried = {};
  for (const name of CARRIED) carried[name] = route.value.params[name];
  return write(page === 'overview' ? '' : page, names, { ...carried, ...params });
}

export function go(hash) {
  if (location.hash !== hash) location.hash = hash;
}

// Changes one parameter in place: going back leaves the page, not the filter's last letter.
export function setParam(name, value) {
  const { page, names, params } = route.peek();
  const next = { ...params, [name]: value };
  if (value == null || value === '') delete next[name];
  history.replaceState(history.state, '', write(page, names, next));
  route.value = { page, names, params: next };
}

addEventListener('hashchange', () => {
  route.value = read(location.hash);
});
