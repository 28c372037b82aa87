// The frame of every page: navigation, verdict, banner, live region, keyboard, find, help.
import {
  classes, Component, effect, html, render, signal, useEffect, useRef, useState,
} from './html.js';
import { fabric, fabricAgeS, fabricError, nowUs, startFabric } from './fabric.js';
import { clock, duration, time } from './format.js';
import { Find } from './find.js';
import { Help } from './help.js';
import { onKey } from './keyboard.js';
import { paused } from './poll.js';
import { href, route, setParam } from './route.js';
import { Empty, Loading, Problem } from './states.js';
import { GLYPHS, levelOf, Status } from './status.js';
import { nextTheme, theme } from './theme.js';
import { pages } from '../pages.js';

const STALE_S = 3;
const UNKNOWN_S = 10;

export const opened = signal(''); // 'find', 'help' or nothing.

function Navigation() {
  const current = route.value.page;
  const under = pages[current]?.under ?? current;
  return html`<nav class="nav" aria-label="pages"><ul>
    ${Object.entries(pages)
      .filter(([, { nav }]) => nav)
      .map(([name, { title, key }]) => html`<li key=${name}>
        <a href=${href(name)} aria-current=${name === under ? 'page' : undefined}
          aria-keyshortcuts="g ${key}" title="g ${key}">${title}<${Badge} name=${name} /></a>
      </li>`)}
  </ul></nav>`;
}

// How much of a page asks for attention, beside its name.
function Badge({ name }) {
  const found = fabric.value;
  if (!found) return null;
  const bad = (each) => each.level === 'act' || each.level === 'attention';
  const lists = { '': found.problems, instances: found.instances, links: found.links, queues: found.queues, views: found.views };
  const number = (lists[name] ?? []).filter(bad).length;
  if (!number) return null;
  const level = lists[name].some((each) => each.level === 'act') ? 'act' : 'attention';
  return html`<span class="badge badge-${level}">
    <span aria-hidden="true">${GLYPHS[level]}</span> ${number}
    <span class="hidden-text">${level === 'act' ? 'with something to do now' : 'to look at'}</span>
  </span>`;
}

function TimeZone() {
  const tz = route.value.params.tz === 'local' ? 'local' : 'utc';
  const next = tz === 'local' ? 'UTC' : 'local time';
  const shown = time(nowUs.value ?? Date.now() * 1000, tz, { seconds: true });
  return html`<button type="button" class="button button-quiet clock" title="Show times in ${next}"
    aria-label="times are in ${tz === 'local' ? 'local time' : 'UTC'}: change to ${next}"
    onClick=${() => setParam('tz', tz === 'local' ? null : 'local')}>
    <time>${nowUs.value ? shown.slice(11) : shown.slice(20)}</time></button>`;
}

function Tools() {
  return html`<div class="tools">
    <button type="button" class="button find-button" onClick=${() => (opened.value = 'find')}
      aria-keyshortcuts="Control+K"><span>Find</span><kbd>Ctrl K</kbd></button>
    <${TimeZone} />
    <button type="button" class=${classes('button button-quiet', paused.value && 'is-pressed')}
      aria-pressed=${paused.value} aria-keyshortcuts="p" title="Stop asking for new values (p)"
      onClick=${() => (paused.value = !paused.value)}>${paused.value ? 'Go on' : 'Pause'}</button>
    <button type="button" class="button button-quiet" onClick=${nextTheme}
      aria-label="colours: ${theme.value}" title="Colours: ${theme.value}">
      <span aria-hidden="true">${{ auto: '◑', light: '☀', dark: '☾' }[theme.value]}</span></button>
    <button type="button" class="button button-quiet" onClick=${() => (opened.value = 'help')}
      aria-label="help" aria-keyshortcuts="?" title="Help (?)">?</button>
  </div>`;
}

function Header({ isMenuOpen, onMenu }) {
  const found = fabric.value;
  const verdict = found?.verdict;
  return html`<header class="header">
    <button type="button" class="button button-quiet menu-button" aria-expanded=${isMenuOpen}
      aria-label="pages" onClick=${onMenu}>☰</button>
    <a class="brand" href=${href('')}>
      <img src="console/icon.svg" alt="" width="24" height="24" />
      <span class="brand-name">${found?.fabric || 'Raylay'}</span>
    </a>
    ${verdict && route.value.page !== ''
      ? html`<a class="header-verdict" href=${href('')} aria-label=${isLost() ? 'unknown' : verdict.text}><${Status} level=${isLost() ? 'unknown' : verdict.level}
          text=${isLost() ? 'unknown' : verdict.text} /></a>`
      : null}
    <span class="spacer"></span>
    <${Tools} />
  </header>`;
}

const isLost = () => Boolean(fabricError.value) && (fabricAgeS.value ?? 0) >= UNKNOWN_S;

// Where the serving instance is gone: the others' addresses. Else where the page is paused.
function Banner() {
  const error = fabricError.value;
  const found = fabric.value;
  const ageS = fabricAgeS.value;
  if (error && found && (ageS ?? 0) >= STALE_S) {
    const others = found.instances.filter(
      ({ name, admin_address: address }) => name !== found.served_by && address,
    );
    return html`<div class="banner banner-attention" role="alert">
      <${Status} level="attention"
        text="${found.served_by} does not answer. What you see is ${duration(ageS)} old." />
      <span>${error.message}.</span>
      ${others.length
        ? html`<span>The same page at: ${others.slice(0, 8).map(
            ({ name, admin_address: address }) => html`<a key=${name} class="banner-link"
              href="${location.protocol}//${address}/${location.hash}">${name}</a>`)}</span>`
        : null}
    </div>`;
  }
  if (paused.value) {
    return html`<div class="banner" role="status">
      <${Status} level="unknown" text="Paused: values of ${clock(nowUs.value, route.value.params.tz)}." />
      <button type="button" class="button" onClick=${() => (paused.value = false)}>Go on</button>
    </div>`;
  }
  return null;
}

// Says each new verdict once to a screen reader.
function LiveRegion() {
  const verdict = fabric.value?.verdict;
  const text = verdict ? verdict.text : '';
  return html`<div class="hidden-text" role="status" aria-live="polite">${text}</div>`;
}

// A page that fails shows what happened; the frame stays.
class Guard extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  componentWillReceiveProps(next) {
    if (next.page !== this.props.page) this.setState({ error: null });
  }

  render() {
    return this.state.error
      ? html`<${Problem} title="This page failed" error=${this.state.error}
          onRetry=${() => this.setState({ error: null })} />`
      : this.props.children;
  }
}

function Page() {
  const { page, names, params } = route.value;
  const [loaded, setLoaded] = useState({});
  const entry = pages[page];
  useEffect(() => {
    if (!entry || loaded[page]) return;
    entry.load().then(
      (module) => setLoaded((last) => ({ ...last, [page]: { view: module.default } })),
      (error) => setLoaded((last) => ({ ...last, [page]: { error } })),
    );
  }, [page]);
  if (!entry) {
    return html`<${Empty} title="There is no page “${page}”"
      text="The address may have been cut off. The pages are in the list." />`;
  }
  const found = loaded[page];
  if (!found) return html`<${Loading} />`;
  if (found.error) return html`<${Problem} title="This page could not be loaded" error=${found.error} />`;
  return html`<${Guard} page=${route.value.page + names.join('/')}>
    <${found.view} page=${page} names=${names} params=${params} /><//>`;
}

function App() {
  const [isMenuOpen, setMenuOpen] = useState(false);
  const main = useRef(null);
  const { page, names } = route.value;
  const place = [page, ...names].join('/');
  const isFirst = useRef(true);
  useEffect(() => {
    setMenuOpen(false);
    // A new page begins at its top, and a screen reader at its heading.
    if (!isFirst.current) {
      scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [place]);
  const ageS = fabricError.value ? (fabricAgeS.value ?? 0) : 0;
  const dim = ageS >= UNKNOWN_S ? 'is-unknown' : ageS >= STALE_S ? 'is-stale' : '';
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      main.current.focus();
    }}>to the page</a>
    <${Header} isMenuOpen=${isMenuOpen} onMenu=${() => setMenuOpen(!isMenuOpen)} />
    <${Banner} />
    <div class=${classes('frame', isMenuOpen && 'menu-open')}>
      <${Navigation} />
      <main class=${classes('main', dim)} id="main" tabindex="-1" ref=${main}
        data-time-us=${nowUs.value}><${Page} /></main>
    </div>
    <${LiveRegion} />
    ${opened.value === 'find' ? html`<${Find} onClose=${() => (opened.value = '')} />` : null}
    ${opened.value === 'help' ? html`<${Help} onClose=${() => (opened.value = '')} />` : null}`;
}

startFabric();
addEventListener('keydown', (event) => onKey(event, opened));
// The tab tells where it is, and that there is something to do.
effect(() => {
  const { page, names } = route.value;
  const level = levelOf(fabric.value?.verdict.level);
  const mark = level === 'act' || level === 'attention' ? `${GLYPHS[level]} ` : '';
  const parts = [names.join(' '), pages[page]?.title, fabric.value?.fabric, 'Raylay'];
  document.title = mark + parts.filter(Boolean).join(' · ');
});
const root = document.getElementById('app');
root.replaceChildren();
render(html`<${App} />`, root);
