// The message browser, and the page of one message. The address holds what is asked: i (instance), topic,
// start, filter, limit, follow, run (how often), and m (the message whose panel is open).
import { html, useEffect, useMemo, useRef, useState } from '../core/html.js';
import { ApiError, lines, peerPath } from '../core/api.js';
import { bytes, clock, count, exact, plural, rate, time } from '../core/format.js';
import { fabric, nowUs } from '../core/fabric.js';
import { go, href, route } from '../core/route.js';
import { Command, Empty, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';
import { MessagePanel } from './message_panel.js';
import { PublishDialog } from './message_publish.js';
import { Way } from './message_way.js';

const ROWS_KEPT = 10_000;
const DRAW_MS = 200;
const PREVIEW_CHARACTERS = 240;
const LIMITS = ['100', '200', '1000', '10000'];
const STARTS = [
  ['now', 'as they come'],
  ['-5m', 'the last 5 minutes'],
  ['-1h', 'the last hour'],
  ['-24h', 'the last 24 hours'],
  ['epoch', 'the beginning'],
  ['sow', 'current records (SOW)'],
  ['at', 'a time or bookmark …'],
];
const BACK_S = { m: 60, h: 3_600, d: 86_400 };

export default function Page({ page, names, params }) {
  return page === 'message'
    ? html`<${MessagePage} bookmark=${names[0] ?? ''} params=${params} />`
    : html`<${Browser} params=${params} />`;
}

const servedBy = () => fabric.value?.served_by ?? '';

// -- one message ---------------------------------------------------------------------------------

function MessagePage({ bookmark, params }) {
  const instance = params.i || servedBy();
  const [published, setPublished] = useState(null);
  if (!bookmark) {
    return html`<${Empty} title="No message is named" text="Its address is #/message/ followed by its bookmark." />`;
  }
  const instances = fabric.value?.instances ?? [];
  return html`<div class="message-page">
    <div class="page-head"><p class="crumbs"><a href=${href('messages', [], { i: instance, topic: params.topic })}>Messages</a></p>
      <h1>Message ${params.topic ? html`on <span class="mono">${params.topic}</span>` : ''}</h1>
      <span class="spacer"></span>
      <label class="inline">as stored at <select value=${instance}
        onChange=${(event) => go(href('message', [bookmark], { ...own(params), i: event.target.value }))}>
        ${withOwn(instances, instance).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    </div>
    ${instance ? html`<div class="stack">
      <${Way} bookmark=${bookmark} topic=${params.topic} />
      <section><div class="section-head"><h2>Message</h2></div>
        <${MessagePanel} key=${instance} instance=${instance} bookmark=${bookmark} topic=${params.topic} sowKey=${params.key} isPage
          onPublish=${(message, isCut) => setPublished({ message, isCut })} /></section>
    </div>` : null}
    ${published ? html`<${PublishDialog} instance=${instance} ...${published} onClose=${() => setPublished(null)} />` : null}
  </div>`;
}

const own = ({ i, topic, key }) => ({ i, topic, key });

function withOwn(instances, name) {
  const found = instances.map((each) => each.name);
  return found.includes(name) || !name ? found : [name, ...found];
}

// -- the browser ---------------------------------------------------------------------------------

// What the bar asks, from the address.
function askedOf(params) {
  // Other pages lead here by what is to be read, too: source=live, source=sow.
  const bySource = { live: 'now', sow: 'sow' }[params.source];
  return {
    i: params.i || params.at || '',
    topic: params.topic ?? '',
    start: params.start || bySource || '-5m',
    filter: params.filter ?? '',
    limit: LIMITS.includes(params.limit) ? params.limit : '200',
    follow: params.follow === '1',
  };
}

// Returns the path of a stream. A relative start is taken from the server's clock.
function streamPath(asked, from) {
  const { i, topic, start, filter, limit, follow } = asked;
  const query = new URLSearchParams({ topic, filter, limit });
  const back = /^-(\d+)([mhd])$/.exec(start);
  if (start === 'sow') query.set('source', 'sow');
  else if (start === 'now' && !from) query.set('source', 'live');
  else {
    query.set('source', 'replay');
    query.set('follow', follow || start === 'now' ? '1' : '0');
    const sinceUs = back && nowUs.peek() - Number(back[1]) * BACK_S[back[2]] * 1e6;
    query.set('start', from || (back ? new Date(sinceUs / 1000).toISOString() : start));
  }
  return peerPath(i || servedBy(), `raylay/messages?${query}`);
}

const NO_RUN = { rows: [], progress: null, end: null, error: null, isRunning: false, held: 0 };

// Reads a stream into rows, drawn at most five times a second. While `isHeld`, rows that follow wait.
function useStream(isHeld) {
  const [state, setState] = useState(NO_RUN);
  const run = useRef({ control: null, rows: [], held: [], number: 0 });
  const held = useRef(isHeld);
  held.current = isHeld;

  const stop = (why = 'stopped') => {
    const { control } = run.current;
    if (!control) return;
    control.abort();
    run.current.control = null;
    setState((last) => ({ ...last, isRunning: false, end: { why, position: last.progress?.position ?? '' } }));
  };

  const start = async (path, isNewestFirst, keep = false) => {
    run.current.control?.abort();
    const control = new AbortController();
    const current = (run.current = {
      control, rows: keep ? run.current.rows : [], held: [], number: keep ? run.current.number : 0,
    });
    let progress = null;
    let end = null;
    let failure = null;
    let timer = 0;
    const before = keep ? (state.progress ?? null) : null;
    const draw = (isRunning = true) => {
      clearTimeout(timer);
      timer = 0;
      if (run.current !== current) return;
      if (current.held.length && !(held.current && isNewestFirst)) release(current, isNewestFirst);
      setState({
        rows: current.rows, progress: added(before, progress), end, error: failure, isRunning, held: current.held.length, isNewestFirst,
      });
    };
    setState({ ...NO_RUN, rows: current.rows, isRunning: true, progress: before, isNewestFirst });
    try {
      await lines(path, (line) => {
        if (line.row) {
          current.number += 1;
          current.held.push({ ...line.row, n: current.number });
          // What waits is bounded like what is shown.
          if (current.held.length > ROWS_KEPT) current.held.splice(0, current.held.length - ROWS_KEPT);
        }
        if (line.progress) progress = line.progress;
        if (line.end) end = line.end;
        if (line.error) failure = new ApiError(409, line.error);
        timer = timer || setTimeout(draw, DRAW_MS);
      }, { signal: control.signal });
      if (!end && !failure) end = { why: 'gone', position: progress?.position ?? '' };
    } catch (error) {
      if (control.signal.aborted) {
        clearTimeout(timer);
        return;
      }
      failure = error;
    }
    if (run.current === current) current.control = null;
    draw(false);
  };

  const show = () => {
    const current = run.current;
    release(current, true);
    setState((last) => ({ ...last, rows: current.rows, held: 0 }));
  };
  useEffect(() => () => run.current.control?.abort(), []);
  const clear = () => {
    run.current.control?.abort();
    run.current = { control: null, rows: [], held: [], number: 0 };
    setState(NO_RUN);
  };
  return { ...state, start, stop, show, clear };
}

function release(current, isNewestFirst) {
  const { held } = current;
  current.held = [];
  current.rows = isNewestFirst
    ? [...held.reverse(), ...current.rows].slice(0, ROWS_KEPT)
    : [...current.rows, ...held].slice(-ROWS_KEPT);
}

// What was found and read before somebody went on counts on.
function added(before, progress) {
  if (!before || !progress) return progress ?? before;
  const sum = (name) => (before[name] ?? 0) + (progress[name] ?? 0);
  return {
    ...progress, found: sum('found'), read: progress.read === null ? null : sum('read'),
    dropped: sum('dropped'), unreadable: sum('unreadable'), at_us: progress.at_us ?? before.at_us,
  };
}

function Browser({ params }) {
  const asked = askedOf(params);
  const [draft, setDraft] = useState(asked);
  const [published, setPublished] = useState(null);
  const isOpen = Boolean(params.m);
  const stream = useStream(isOpen);
  const isReady = Boolean(asked.i || servedBy());
  const running = useRef('');
  const wanted = asked.topic ? JSON.stringify([asked, params.run]) : '';

  // The address is what runs: a link, a reload and the button do the same.
  useEffect(() => {
    if (!isReady || wanted === running.current) return;
    running.current = wanted;
    setDraft(asked);
    if (wanted) stream.start(streamPath(asked), asked.start === 'now');
    else stream.clear();
  }, [wanted, isReady]);

  const address = (more) => href('messages', [], { ...keptParams(params), ...more });
  const ask = (next = draft) => {
    const { i, topic, start, filter, limit, follow } = next;
    if (!topic.trim()) return;
    go(href('messages', [], {
      i, topic: topic.trim(), start, filter: filter.trim(), limit: limit === '200' ? '' : limit, follow: follow ? '1' : '',
      run: String((Number(params.run) || 0) + 1),
    }));
  };
  const goOn = () => stream.start(streamPath(asked, stream.end.position), asked.start === 'now', true);
  const opened = isOpen ? (stream.rows.find(({ bookmark }) => bookmark === params.m) ?? null) : null;
  const instance = asked.i || servedBy();

  return html`<div class=${isOpen ? 'messages messages-open' : 'messages'}>
    <div class="page-head"><h1>Messages</h1><span class="spacer"></span>
      <button type="button" class="button" data-actions onClick=${() => setPublished({})}>publish a message …</button></div>
    <${Bar} draft=${draft} setDraft=${setDraft} onAsk=${ask} stream=${stream} />
    ${wanted || stream.rows.length ? html`<${Progress} asked=${asked} stream=${stream} onGoOn=${goOn} onAgain=${() => ask(asked)} />` : null}
    ${stream.error ? html`<${Problem} title=${stream.error.status === 400 ? 'That cannot be asked' : 'The messages could not be read'}
      error=${stream.error} onRetry=${stream.error.status === 400 ? undefined : () => ask(asked)} />` : null}
    <div class="messages-split">
      <div class="messages-rows">
        ${wanted
          ? stream.rows.length
            ? html`<${Rows} stream=${stream} address=${address} opened=${params.m} topic=${asked.topic} />`
            : stream.error ? null : html`<${Nothing} asked=${asked} stream=${stream} instance=${instance} />`
          : html`<${Suggestions} start=${draft.start} onAsk=${(topic) => ask({ ...draft, topic })} />`}
      </div>
      ${isOpen ? html`<${MessagePanel} key=${params.m} instance=${instance} bookmark=${params.m} topic=${opened?.topic ?? params.mt}
        sowKey=${opened?.sow_key} onClose=${() => go(address({ m: '', mt: '' }))}
        onPublish=${(message, isCut) => setPublished({ message, isCut })} />` : null}
    </div>
    ${published ? html`<${PublishDialog} instance=${instance} ...${published} onClose=${() => setPublished(null)} />` : null}
  </div>`;
}

const KEPT = ['i', 'topic', 'start', 'filter', 'limit', 'follow', 'run', 'q', 'sort', 'm', 'mt'];
const keptParams = (params) => Object.fromEntries(KEPT.map((name) => [name, params[name]]));

function Bar({ draft, setDraft, onAsk, stream }) {
  const found = fabric.value;
  const set = (name) => (event) => setDraft({ ...draft, [name]: event.target.type === 'checkbox' ? event.target.checked : event.target.value });
  const isListed = STARTS.some(([name]) => name === draft.start);
  const mode = isListed ? draft.start : 'at';
  const isAt = mode === 'at';
  const submit = (event) => {
    event.preventDefault();
    onAsk({ ...draft, start: draft.start === 'at' ? 'epoch' : draft.start });
  };
  return html`<form class="bar" onSubmit=${submit} role="search" aria-label="messages">
    <label class="bar-topic">topic<input value=${draft.topic} list="bar-topics" placeholder="orders, or orders/.*" required
      spellcheck="false" autocomplete="off" onInput=${set('topic')} /></label>
    <datalist id="bar-topics">${(found?.topics ?? []).map(({ name }) => html`<option key=${name} value=${name} />`)}</datalist>
    <label class="bar-filter">filter<input class="mono" value=${draft.filter} placeholder="/price > 100 AND /status = 'open'" spellcheck="false"
      autocomplete="off" onInput=${set('filter')} title="Fields: /price > 100. Headers: TOPIC_NAME(), CORRELATION_ID(), SOW_KEY(), MESSAGE_SIZE()." /></label>
    <label>from<select name="start" value=${mode} onChange=${set('start')}>
      ${STARTS.map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}</select></label>
    ${isAt ? html`<label class="bar-at">time or bookmark<input class="mono" value=${draft.start === 'at' ? '' : draft.start} required spellcheck="false" autocomplete="off"
      placeholder="2026-11-27T04:12:07Z or 42…|17|" onInput=${set('start')} /></label>` : null}
    <label>limit<select name="limit" value=${draft.limit} onChange=${set('limit')} disabled=${mode === 'now'}>
      ${LIMITS.map((each) => html`<option key=${each} value=${each}>${exact(each)}</option>`)}</select></label>
    <label>at<select name="i" value=${draft.i || servedBy()} onChange=${set('i')}>
      ${withOwn(found?.instances ?? [], draft.i).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    <label class="inline bar-follow"><input type="checkbox" checked=${draft.follow || mode === 'now'} disabled=${mode === 'now' || mode === 'sow'}
      onChange=${set('follow')} />follow</label>
    ${stream.isRunning
      ? html`<button key="stop" type="button" class="button bar-go" onClick=${() => stream.stop()}>Stop</button>`
      : html`<button key="read" type="submit" class="button button-main bar-go">Read</button>`}
  </form>`;
}

const WHYS = {
  limit: (asked) => `stopped at the limit of ${exact(asked.limit)}`,
  end: () => 'that is all there is',
  time: () => 'stopped after a minute of reading',
  bytes: () => 'stopped: the page has got 64 MiB',
  stopped: () => 'stopped',
  gone: () => 'the connection has ended',
};

function Progress({ asked, stream, onGoOn, onAgain }) {
  const { progress, end, isRunning } = stream;
  const { tz } = route.value.params;
  const parts = [];
  if (progress) {
    parts.push(`${count(progress.found)} found`);
    if (progress.read !== null) parts.push(`${count(progress.read)} read`);
    if (progress.at_us) parts.push(`at ${clock(progress.at_us, tz)}`);
  }
  const mayGoOn = !isRunning && end?.position && end.why !== 'end';
  return html`<div class="progress" role="status">
    <${Status} level=${isRunning ? 'working' : 'ready'} text=${parts.join(', ') || (isRunning ? 'reading …' : '')} />
    ${isRunning && progress?.follows ? html`<span class="muted">following</span>` : null}
    ${progress?.dropped ? html`<span title="The page shows 200 messages a second at most; nothing waits for it at the instance.">${count(progress.dropped)} more came too fast to be shown</span>` : null}
    ${progress?.unreadable ? html`<span><${Status} level="attention" text="${plural(progress.unreadable, 'body', 'bodies')} could not be read by the filter" /></span>` : null}
    ${!isRunning && end ? html`<span class="muted">${(WHYS[end.why] ?? (() => end.why))(asked)}</span>` : null}
    ${mayGoOn ? html`<button type="button" class="button button-small" onClick=${onGoOn}>go on</button>` : null}
    ${!isRunning && (end || stream.error) ? html`<button type="button" class="button button-quiet button-small" onClick=${onAgain}>read again</button>` : null}
    ${stream.held ? html`<button type="button" class="button button-small" onClick=${stream.show}>▲ show ${plural(stream.held, 'new message')}</button>` : null}
    ${stream.rows.length >= ROWS_KEPT ? html`<span class="muted">the last ${exact(ROWS_KEPT)} are kept</span>` : null}
  </div>`;
}

const DAY_US = 86_400_000_000;

function Rows({ stream, address, opened, topic }) {
  const { tz } = route.value.params;
  const { rows } = stream;
  // One topic, one type, one day: what is the same in all rows is left out.
  const seen = useMemo(() => {
    const topics = new Set();
    const types = new Set();
    let hasHeaders = false;
    for (const row of rows) {
      topics.add(row.topic);
      types.add(row.message_type);
      hasHeaders = hasHeaders || Object.keys(row.headers).length > 0;
    }
    const times = [rows[0].timestamp_us, rows.at(-1).timestamp_us];
    return { topics: topics.size, types: types.size, hasHeaders, isOneDay: Math.abs(times[0] - times[1]) < DAY_US };
  }, [rows]);
  const columns = [
    { key: 'time', title: 'received', value: (row) => row.timestamp_us, text: (row) => timeText(row.timestamp_us, tz, seen.isOneDay) },
    { key: 'topic', title: 'topic', hidden: seen.topics < 2 && rows[0].topic === topic },
    { key: 'type', title: 'type', value: (row) => row.message_type, hidden: seen.types < 2 },
    { key: 'headers', title: 'headers', hidden: !seen.hasHeaders, value: headersText, cell: (row) => html`<span class="cell-headers">${headersText(row)}</span>` },
    { key: 'body', title: 'body', value: (row) => (row.is_text ? row.body : `0x${row.body}`), text: (row) => row.body || '(empty)',
      cell: (row) => html`<span class="cell-body mono">${previewOf(row)}</span>` },
    { key: 'size', title: 'size', numeric: true, text: (row) => bytes(row.size) },
    { key: 'bookmark', title: 'bookmark', value: (row) => row.bookmark, hidden: true },
  ];
  return html`<${Table} id="messages" caption="messages" columns=${columns} rows=${rows} rowKey=${(row) => row.n}
    rowHref=${(row) => address({ m: row.bookmark, mt: row.topic })}
    rowClass=${(row) => (row.bookmark === opened ? 'is-opened' : '')} />`;
}

function timeText(timeUs, tz, isOneDay) {
  const text = time(timeUs, tz);
  return isOneDay ? text.slice(11) : text;
}

const headersText = (row) => Object.entries(row.headers).map(([name, value]) => `${name} ${value}`).join(', ');

// The front of a body on one line.
function previewOf(row) {
  if (!row.size) return html`<span class="muted">empty</span>`;
  const text = row.body.slice(0, PREVIEW_CHARACTERS).replace(/[\u0001\u001e]/g, ' | ').replace(/\s+/g, ' ');
  return row.is_text ? text : html`<span class="muted">0x</span>${text}`;
}

function Nothing({ asked, stream, instance }) {
  if (stream.isRunning) {
    return asked.start === 'now'
      ? html`<${Empty} title="Nothing has come yet" text="Messages appear here as ${instance} receives them."
          command="raylay publish ${asked.topic || 'orders'} '{"id": 1}'" />`
      : html`<div class="state-box"><p class="muted">${asked.filter ? 'No message has passed the filter so far.' : 'Reading …'}</p></div>`;
  }
  if (!stream.end) return null;
  const { progress } = stream;
  const text = asked.start === 'sow'
    ? `The SOW of ${asked.topic} has no record${asked.filter ? ' that passes the filter' : ''}.`
    : progress?.read
      ? `${plural(progress.read, 'message')} read since then, and none passes the filter.`
      : `${instance} has no message on ${asked.topic} since then. Begin earlier, or look at another instance.`;
  return html`<${Empty} title="No message" text=${text}
    command="raylay subscribe ${asked.topic} --bookmark 0 ${asked.filter ? `--filter "${asked.filter}"` : ''}" />`;
}

// Before anything is asked: the topics, the busiest first. One click shows messages.
function Suggestions({ start, onAsk }) {
  const topics = [...(fabric.value?.topics ?? [])].sort((a, b) => (b.in_per_sec ?? 0) - (a.in_per_sec ?? 0)).slice(0, 24);
  if (!topics.length) {
    return html`<div class="state-box"><h3>Which topic?</h3>
      <p class="muted">Name one above, or write an expression that several match. <span class="mono">.*</span> is all of them.</p>
      <${Command} text="raylay subscribe '.*' --bookmark 0" /></div>`;
  }
  return html`<section class="suggestions" aria-label="topics"><h2>Which topic?</h2><p class="muted">One click reads it, from ${(STARTS.find(([name]) => name === start) ?? ['', start])[1]}. Nothing is taken from a queue.</p>
    <ul>${topics.map((topic) => html`<li key=${topic.name}><button type="button" class="topic-card" onClick=${() => onAsk(topic.name)}>
      <strong class="mono">${topic.name}</strong>
      <span class="muted">${[topic.message_type, topic.in_per_sec != null ? rate(topic.in_per_sec) : ''].filter(Boolean).join(' · ')}</span>
      ${topic.sow ? html`<span class="muted">SOW, ${topic.records == null ? '–' : plural(topic.records, 'record')}</span>` : null}
    </button></li>`)}</ul></section>`;
}
