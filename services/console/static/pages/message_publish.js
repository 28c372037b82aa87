// Publishes a message, a new one or one again that was edited.
import { html, useState } from '../core/html.js';
import { peerPath, postJson } from '../core/api.js';
import { bytes, ms, plural } from '../core/format.js';
import { fabric } from '../core/fabric.js';
import { Dialog } from '../core/dialog.js';
import { href } from '../core/route.js';
import { Status } from '../core/status.js';

const BODY_BYTES_MAX = 48 * 1024; // What one request may bring, with the rest of it.
const TYPES = ['json', 'fix', 'nvfix', 'xml', 'bson', 'msgpack', 'binary'];

export function PublishDialog({ instance: first, message, isCut, onClose, onPublished }) {
  const [instance, setInstance] = useState(first);
  const [topic, setTopic] = useState(message?.topic ?? '');
  const [type, setType] = useState(message?.message_type ?? 'json');
  const isHex = Boolean(message && !message.is_text);
  const [body, setBody] = useState(isCut ? '' : (message?.body ?? ''));
  const [key, setKey] = useState(message?.headers?.['SOW key'] ?? '');
  const [correlation, setCorrelation] = useState(message?.headers?.['correlation id'] ?? '');
  const [state, setState] = useState({});
  const found = fabric.value;
  const known = found?.topics?.find(({ name }) => name === topic);
  const sizeBytes = isHex ? body.replace(/\s/g, '').length / 2 : new TextEncoder().encode(body).length;
  const problem = problemOf({ topic, type, body, isHex, sizeBytes });
  const subscribers = known?.subscribers;

  const publish = async (event) => {
    event.preventDefault();
    if (problem || state.isSending) return;
    setState({ isSending: true });
    try {
      const headers = {};
      if (key) headers.key = key;
      if (correlation) headers.correlation = correlation;
      const content = isHex ? { body_hex: body.replace(/\s/g, '') } : { body };
      const told = await postJson(peerPath(instance, 'raylay/publish'), { topic, message_type: type, ...content, headers });
      setState({ told });
      onPublished?.({ ...told, topic });
    } catch (error) {
      setState({ error });
    }
  };
  const { told } = state;
  return html`<${Dialog} title=${message ? 'Publish again' : 'Publish a message'} onClose=${onClose} class="publish">
    <form class="publish-form" onSubmit=${publish}>
      <div class="publish-row">
        <label>instance<select value=${instance} onChange=${(event) => setInstance(event.target.value)}>
          ${(found?.instances ?? [{ name: first }]).map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <label class="grow">topic<input value=${topic} list="publish-topics" required spellcheck="false" autocomplete="off" data-focus=${message ? undefined : true}
          onInput=${(event) => setTopic(event.target.value)} /></label>
        <datalist id="publish-topics">${(found?.topics ?? []).map(({ name }) => html`<option key=${name} value=${name} />`)}</datalist>
        <label>type<input value=${type} list="publish-types" size="8" spellcheck="false" autocomplete="off" onInput=${(event) => setType(event.target.value)} /></label>
        <datalist id="publish-types">${TYPES.map((each) => html`<option key=${each} value=${each} />`)}</datalist>
      </div>
      <label><span>body${isHex ? ', as hexadecimal digits' : ''}, ${bytes(sizeBytes)}</span>
        <textarea class="mono" rows="10" value=${body} spellcheck="false" onInput=${(event) => setBody(event.target.value)}></textarea></label>
      <details open=${Boolean(key || correlation)}><summary>headers</summary>
        <div class="publish-row">
          <label class="grow">SOW key, where publishers give it<input value=${key} autocomplete="off" spellcheck="false" onInput=${(event) => setKey(event.target.value)} /></label>
          <label class="grow">correlation id<input value=${correlation} autocomplete="off" spellcheck="false" onInput=${(event) => setCorrelation(event.target.value)} /></label>
        </div></details>
      ${isCut ? html`<p><${Status} level="attention" text="The body is too large for a page: download it, and publish it with raylay publish." /></p>` : null}
      <p class="risk">It is journaled, replicated, and delivered to ${subscribers === undefined || subscribers === null
        ? 'every subscriber of the topic' : plural(subscribers, 'subscriber')}${known?.queue ? ' and the queue’s consumers' : ''}. There is no way back.</p>
      ${state.error ? html`<p role="alert"><${Status} level="attention" text=${state.error.message} /></p>` : null}
      ${told ? html`<p role="status" class="publish-done"><${Status} level=${told.persisted_ms === null ? 'working' : 'ready'}
          text=${told.persisted_ms === null ? `sent, and not acknowledged yet: ${told.why}` : `persisted after ${ms(told.persisted_ms)}`} />
        <a href=${href('message', [told.bookmark], { topic, i: instance })} onClick=${onClose}>see it, and its way</a></p>` : null}
      <footer class="dialog-foot">
        <button type="button" class="button" data-focus=${message ? true : undefined} onClick=${onClose}>${told ? 'Close' : 'Cancel'}</button>
        <button type="submit" class="button button-main" disabled=${Boolean(problem) || state.isSending} title=${problem}>
          ${state.isSending ? 'publishing …' : `${told ? 'Publish another one' : 'Publish'}${topic ? ` to ${topic}` : ''}`}</button>
      </footer>
      ${problem && (topic || body) ? html`<p class="muted publish-problem">${problem}</p>` : null}
    </form>
  <//>`;
}

function problemOf({ topic, type, body, isHex, sizeBytes }) {
  if (!topic) return 'Name a topic.';
  if (sizeBytes > BODY_BYTES_MAX) return `The page sends ${bytes(BODY_BYTES_MAX)} at most: use raylay publish for more.`;
  if (isHex && !/^(\s*[0-9a-f]{2})*\s*$/i.test(body)) return 'These are no hexadecimal digits.';
  if (!isHex && type === 'json' && body) {
    try {
      JSON.parse(body);
    } catch (error) {
      return `This is no JSON: ${error.message}`;
    }
  }
  return '';
}
