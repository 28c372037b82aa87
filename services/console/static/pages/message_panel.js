// One message: headers, body by its type, and what can be done with it.
import { html, useEffect, useMemo, useState } from '../core/html.js';
import { getJson, peerPath } from '../core/api.js';
import { ago, bytes, exact, ms, time } from '../core/format.js';
import { nowUs } from '../core/fabric.js';
import { href, route } from '../core/route.js';
import { Empty, Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { bytesOfHex, colours, hexLine, hexLines, kindsOf, linesOf } from './message_body.js';
import { Code } from './message_code.js';

const NOTE_MS = 2_000;

export const messagePath = (instance, bookmark, rest = '', params = {}) => {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  return peerPath(instance, `raylay/message/${encodeURIComponent(bookmark)}${rest}${query ? `?${query}` : ''}`);
};

// Reads one message again with as much of its body as a page takes. {message, error}
export function useMessage(instance, bookmark, topic, key) {
  const [state, setState] = useState({});
  const [round, setRound] = useState(0);
  const path = messagePath(instance, bookmark, '', { topic, key });
  useEffect(() => {
    const control = new AbortController();
    setState({ path });
    getJson(path, { signal: control.signal }).then(
      (found) => setState({ path, message: { ...found.row, values: found.values, instance: found.instance } }),
      (error) => control.signal.aborted || setState({ path, error }),
    );
    return () => control.abort();
  }, [path, round]);
  return { ...(state.path === path ? state : {}), again: () => setRound(round + 1) };
}

export function Copy({ text, label, title }) {
  const [note, setNote] = useState('');
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === 'function' ? await text() : text);
      setNote('copied');
    } catch {
      setNote('cannot copy here');
    }
    setTimeout(() => setNote(''), NOTE_MS);
  };
  return html`<button type="button" class="button button-small" title=${title} onClick=${copy}>${note || label}</button>`;
}

// `link` is the address of the message's own page; `onPublish` opens the dialog.
export function MessagePanel({ instance, bookmark, topic, sowKey, onPublish, onClose, isPage }) {
  const { message, error, again } = useMessage(instance, bookmark, topic, sowKey);
  if (error) {
    return html`<section class="message-panel" aria-label="message">
      <${PanelHead} title=${bookmark} onClose=${onClose} isPage=${isPage} />
      ${error.status === 404
        ? html`<${Empty} title="The message is not here" text=${error.message}
            command="raylay trace traces/ --message '${bookmark}'" />`
        : html`<${Problem} title="The message could not be read" error=${error} onRetry=${again} />`}
    </section>`;
  }
  if (!message) {
    return html`<section class="message-panel" aria-label="message">
      <${PanelHead} title=${topic || bookmark} onClose=${onClose} isPage=${isPage} /><${Loading} />
    </section>`;
  }
  return html`<section class="message-panel" aria-label="message">
    <${PanelHead} title=${message.topic} onClose=${onClose} isPage=${isPage} />
    <${Headers} message=${message} isPage=${isPage} />
    <${Body} key=${bookmark} message=${message} instance=${instance} topic=${message.topic} sowKey=${sowKey}
      onPublish=${onPublish} />
  </section>`;
}

function PanelHead({ title, onClose, isPage }) {
  if (isPage) return null;
  return html`<header class="panel-head">
    <h2>${title}</h2>
    <button type="button" class="button button-quiet" aria-label="close the message" title="Close"
      onClick=${onClose}>✕</button>
  </header>`;
}

function Headers({ message, isPage }) {
  const { tz } = route.value.params;
  const { timestamp_us: received, published_us: published } = message;
  const tookMs = published && received > published ? (received - published) / 1000 : null;
  return html`<dl class="pairs message-headers">
    <dt>bookmark</dt>
    <dd class="mono">${message.bookmark} <${Copy} text=${message.bookmark} label="copy" title="Copy the bookmark" />
      ${isPage ? null : html` <a class="button button-small" href=${href('message', [message.bookmark], {
        topic: message.topic, i: message.instance, key: message.sow_key })}>its way</a>`}</dd>
    <dt>received</dt>
    <dd>${time(received, tz)} <span class="muted">${ago(received, nowUs.value)}, by ${message.instance}</span></dd>
    ${published ? html`<dt>published</dt><dd>${time(published, tz)}${tookMs === null ? null
      : html` <span class="muted">${ms(tookMs)} before, by the publisher's clock</span>`}</dd>` : null}
    <dt>publisher</dt><dd class="mono">${message.publisher} <span class="muted">message ${exact(message.sequence)}</span></dd>
    <dt>type, size</dt><dd>${message.message_type}, ${bytes(message.size)}${
      message.size >= 1024 ? html` <span class="muted">${exact(message.size)} bytes</span>` : null}</dd>
    ${Object.entries(message.headers).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd class="mono">${value}</dd>`)}
    <dt>trace</dt><dd>${message.traced ? 'sampled' : html`<span class="muted">not sampled</span>`}</dd>
  </dl>`;
}

// The whole body, when it was asked for: bytes, so that a large one is one buffer and no string twice.
function Body({ message, instance, topic, sowKey, onPublish }) {
  const kinds = useMemo(() => kindsOf(message), [message]);
  const [kind, setKind] = useState(kinds[0]);
  const [whole, setWhole] = useState(null);
  const [lines, setLines] = useState(null);
  const [error, setError] = useState(null);
  const [isAsking, setAsking] = useState(false);
  const isCut = message.is_cut && !whole;
  const path = messagePath(instance, message.bookmark, '/body', { topic, key: sowKey });

  const content = useMemo(() => {
    if (whole) return { bytes: whole, text: message.is_text ? new TextDecoder().decode(whole) : '' };
    if (!message.is_text) return { bytes: bytesOfHex(message.body), text: '' };
    return { bytes: null, text: message.body };
  }, [whole, message]);

  useEffect(() => {
    const control = new AbortController();
    setLines(null);
    if (kind === 'hex') {
      const data = content.bytes ?? new TextEncoder().encode(content.text);
      setLines({ count: hexLines(data), line: (number) => [['', hexLine(data, number)]] });
    } else {
      linesOf(kind, message, content.text, isCut, control.signal).then((found) => {
        if (found && !control.signal.aborted) {
          const line = kind === 'text'
            ? (number) => [['', found[number]]]
            : (number) => colours(found[number]);
          setLines({ count: found.length, line });
        }
      });
    }
    return () => control.abort();
  }, [kind, content]);

  const showAll = async () => {
    setAsking(true);
    setError(null);
    try {
      const answer = await fetch(path);
      if (!answer.ok) throw new Error((await answer.json()).error);
      setWhole(new Uint8Array(await answer.arrayBuffer()));
    } catch (failure) {
      setError(failure);
    }
    setAsking(false);
  };
  const wholeText = async () => {
    if (!message.is_text) return [...(content.bytes)].map((each) => each.toString(16).padStart(2, '0')).join('');
    if (!isCut) return content.text;
    const answer = await fetch(path);
    return answer.text();
  };

  return html`<div class="message-body">
    <div class="body-bar">
      <div class="segments" role="group" aria-label="show the body as">
        ${kinds.map((each) => html`<button type="button" key=${each} class="segment" aria-pressed=${kind === each}
          onClick=${() => setKind(each)}>${each}</button>`)}
      </div>
      <span class="spacer"></span>
      <${Copy} text=${wholeText} label="copy" title="Copy the whole body" />
      <a class="button button-small" href=${path} download>download</a>
      <${Copy} text=${() => new URL(href('message', [message.bookmark], { topic: message.topic, i: instance, key: sowKey }), location).href}
        label="link" title="Copy a link to this message" />
      ${onPublish ? html`<button type="button" class="button button-small" data-actions
        onClick=${() => onPublish(message, isCut)}>publish again …</button>` : null}
    </div>
    ${error ? html`<${Problem} title="The body could not be read" error=${error} onRetry=${showAll} />` : null}
    ${isCut
      ? html`<p class="cut-note"><${Status} level="working" text="The first ${bytes(message.is_text ? message.body.length : message.body.length / 2)} of ${bytes(message.size)}." />
          <button type="button" class="button button-small" disabled=${isAsking} onClick=${showAll}>${isAsking ? 'reading …' : 'show all'}</button></p>`
      : null}
    ${message.size === 0 ? html`<p class="muted">The body is empty.</p>`
      : lines ? html`<${Code} count=${lines.count} line=${lines.line} label="body" />`
        : html`<${Loading} text="preparing" />`}
  </div>`;
}
