// An administrator's action: a button, and the dialog that says what it risks in live numbers, gives
// the same as curl and raylay, and stays until the effect shows. Without permission the button is
// disabled and says which permission it needs.
import { html, render, useEffect, useMemo, useRef, useState } from './html.js';
import { getJson, postJson } from './api.js';
import { Dialog } from './dialog.js';
import { ampsUrl, nodeAt, step } from './amps.js';
import { fabric } from './fabric.js';

const EFFECT_EVERY_MS = 500;
const EFFECT_PATIENCE_MS = 60_000;
const CHECK = 'administrator/authorization/entitlement/transports/amps-admin/check';

// What was asked for is kept for a minute: a table of links would ask for each of its rows.
const answers = new Map();
const KEPT_MS = 60_000;

function kept(key, ask) {
  const before = answers.get(key);
  if (before && performance.now() - before.at < KEPT_MS) return before.answer;
  const answer = ask().catch(() => {
    answers.delete(key);
    return null;
  });
  answers.set(key, { answer, at: performance.now() });
  return answer;
}

// Whether this user may perform an action; null: not known. The list of a kind answers for all of
// its rows at once. Clients are too many for that.
export async function mayPerform(instance, path) {
  const [, , kind] = path.split('/');
  if (kind !== 'clients') {
    const list = `administrator/${kind}`;
    const found = await kept(`${instance} ${list}`, () => getJson(ampsUrl(instance, list)));
    const listed = nodeAt(found, path.replace(/^amps\//, ''));
    if (listed === 'true' || listed === 'false') return listed === 'true';
  }
  return kept(`${instance} ${path}`, () =>
    getJson(`${ampsUrl(instance, CHECK)}?path=${encodeURIComponent(`/${path}`)}`).then(
      (found) => found === true || found === 'true',
    ),
  );
}

// The path of an action: names inside are encoded.
export const actionPath = (...steps) => ['amps/administrator', ...steps.map(step)].join('/');


/*
 instance: that performs it.  path: 'amps/administrator/replication/London/downgrade'.
 label: of the button ('downgrade London').  risk: a sentence that is shown until the instance has
 answered with live numbers.  typed: name to type although the instance asks for none.
 text: shorter label inside a table.  disabled: a reason why it makes no sense now.
*/
export function Action({ instance, path, label, risk = '', typed = '', text, disabled = '', onDone }) {
  const [isAllowed, setIsAllowed] = useState(null);
  const user = fabric.value?.viewer?.user;
  useEffect(() => {
    let isCurrent = true;
    mayPerform(instance, path).then((found) => isCurrent && setIsAllowed(found));
    return () => {
      isCurrent = false;
    };
  }, [instance, path]);
  const why =
    isAllowed === false
      ? `${user || 'You'} may not: this needs read of /${path} in the list admin of your permissions`
      : disabled;
  return html`<span class="action">
    <button type="button" aria-disabled=${Boolean(why)} title=${why || `${label} at ${instance}`}
      aria-label=${text ? `${label} at ${instance}` : undefined}
      data-actions class=${`button ${text ? "button-small" : ""} ${why ? "is-disabled" : ""}`} onClick=${() => !why && openAction({ instance, path, label, risk, typed, onDone })}>
      ${text ?? label}
    </button>
    ${why && !text && html`<small class="action-why muted">${why}</small>`}
  </span>`;
}

// Opens the dialog of an action beside the page: what it was opened for stays, although the button's
// row changes or goes, as by the action itself.
export function openAction({ onDone, ...of }) {
  const place = document.createElement('div');
  const opener = document.activeElement;
  document.body.append(place);
  const close = (isDone) => {
    removeEventListener('hashchange', leave);
    render(null, place);
    place.remove();
    setTimeout(() => focusAgain(opener));
    if (isDone) onDone?.();
  };
  const leave = () => close(false);
  addEventListener('hashchange', leave);
  render(html`<${ActionDialog} ...${of} onClose=${close} />`, place);
}

// Gives the focus back to the button of a dialog, or to the one that has taken its place.
function focusAgain(opener) {
  if (document.activeElement !== document.body) return;
  const label = opener?.getAttribute?.('aria-label');
  const found = opener?.isConnected
    ? opener
    : [...document.querySelectorAll('main .action button')].find((each) => label && each.getAttribute('aria-label') === label);
  found?.focus();
}

export function ActionDialog({ instance, path, label, risk, typed, onClose }) {
  const [told, setTold] = useState(null);
  const [error, setError] = useState(null);
  const [answer, setAnswer] = useState('');
  const [phase, setPhase] = useState('asking'); // asking, sending, waiting, done, late, failed
  const [result, setResult] = useState(null);
  const startedAt = useRef(0);
  const [tookS, setTookS] = useState(0);
  const isShown = useRef(true);

  useEffect(() => {
    isShown.current = true;
    return () => {
      isShown.current = false;
    };
  }, []);

  // Live numbers: asked again each second until the button is pressed.
  useEffect(() => {
    if (phase !== 'asking') return undefined;
    const control = new AbortController();
    let timer = 0;
    const url = `raylay/peer/${step(instance)}/raylay/risk?path=${encodeURIComponent(path)}`;
    const ask = async () => {
      try {
        const found = await getJson(url, { signal: control.signal });
        setTold(found);
        setError(null);
      } catch (failure) {
        if (control.signal.aborted) return;
        setError(failure);
      }
      timer = setTimeout(ask, 1000);
    };
    ask();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [phase, instance, path]);

  const wanted = told?.typed || typed;
  const isTyped = !wanted || answer === wanted;
  const isRefused = told?.allowed === false;
  const isReady = (told !== null || error !== null) && isTyped && !isRefused && phase === 'asking';
  const same = useMemo(() => sameByHand(instance, path, told), [instance, path, told]);

  async function perform(event) {
    event?.preventDefault();
    if (!isReady) return;
    setPhase('sending');
    startedAt.current = performance.now();
    try {
      const found = await postJson(`raylay/peer/${step(instance)}/${path}`, {});
      if (!isShown.current) return;
      setResult(found);
      const effect = told?.effect ?? effectOf(path);
      if (effect) setPhase('waiting');
      const next = effect ? await untilShown(instance, effect, isShown) : 'done';
      if (!isShown.current) return;
      setTookS((performance.now() - startedAt.current) / 1000);
      setPhase(next);
    } catch (failure) {
      if (!isShown.current) return;
      setError(failure);
      setPhase('failed');
    }
  }

  const isOver = ['done', 'late', 'failed'].includes(phase);
  const close = () => onClose(phase === 'done');
  return html`<${Dialog} title=${`${label} at ${instance}?`} onClose=${close}>
    <form class="action-dialog" onSubmit=${perform} data-phase=${phase}>
      <div class="risk" aria-live="polite">
        <h3>What it risks</h3>
        ${told
          ? html`<ul>${[told.risk].flat().map((each) => html`<li key=${each}>${each}</li>`)}</ul>
              ${told.takes && html`<p class="muted">It takes ${told.takes}.</p>`}`
          : error
            ? html`${risk && html`<p>${risk}</p>`}<p class="attention-text">▲ The numbers of ${instance} are not
                known now: ${error.message}</p>`
            : html`<p>${risk || 'Asking the instance for its numbers now …'}</p>`}
        ${isRefused && html`<p class="act-text">■ ${told.why_not || 'It cannot be done now.'}</p>`}
      </div>
      <details class="same">
        <summary>The same from a shell</summary>
        ${same.map(
          ([name, text]) => html`<div class="same-line" key=${name}>
            <span class="muted">${name}</span><code tabindex="0">${text}</code><${Copy} text=${text} what=${name} />
          </div>`,
        )}
      </details>
      ${wanted && !isOver && html`<label class="typed">Type <strong>${wanted}</strong> to go on
        <input type="text" name="typed" autocomplete="off" spellcheck="false" value=${answer}
          onInput=${(event) => setAnswer(event.target.value)} /></label>`}
      <p class="action-state" role="status">${stateText(phase, label, result, tookS, error)}</p>
      <footer>
        <button type="button" class="button" data-focus onClick=${close}>${
          isOver ? 'Close' : phase === 'asking' ? 'Cancel' : 'Close, it goes on'
        }</button>
        ${!isOver && html`<button type="submit" class="button button-danger" aria-disabled=${!isReady}
          disabled=${phase !== 'asking'}>${phase === 'sending' || phase === 'waiting' ? '◐ ' : ''}${label}</button>`}
      </footer>
    </form>
  </${Dialog}>`;
}

function stateText(phase, label, result, tookS, error) {
  const user = fabric.value?.viewer?.user;
  switch (phase) {
    case 'sending':
      return `◐ ${label}: sent, waiting for the answer …`;
    case 'waiting':
      return `◐ Accepted. Waiting until the effect shows …`;
    case 'done':
      return `● Done: ${label}${user ? `, by ${user}` : ''}, ${tookS < 0.1 ? 'at once' : `after ${tookS.toFixed(1)} s`}. The event names who did it.`;
    case 'late':
      return `▲ Accepted, but the effect does not show after ${EFFECT_PATIENCE_MS / 1000} s. Look at the events for why.`;
    case 'failed':
      return `■ Not done: ${error?.message ?? result?.error ?? 'the instance gave no reason'}`;
    default:
      return '';
  }
}

// Polls a leaf until it has the value that shows the effect; null: until it is gone.
async function untilShown(instance, effect, isShown) {
  const path = effect.path.replace(/^amps\//, '');
  const end = performance.now() + EFFECT_PATIENCE_MS;
  while (isShown.current && performance.now() < end) {
    try {
      const found = nodeAt(await getJson(ampsUrl(instance, path)), path);
      if (effect.value === null ? found === undefined : String(found) === String(effect.value)) return 'done';
    } catch (error) {
      if (effect.value === null && error.status === 404) return 'done';
    }
    await new Promise((resume) => setTimeout(resume, EFFECT_EVERY_MS));
  }
  return 'late';
}

// The leaf that shows an effect, where the instance names none.
export function effectOf(path) {
  const steps = path.replace(/^amps\/administrator\//, '').split('/');
  const [kind, id] = steps;
  switch (`${kind}/${steps.at(-1)}`) {
    case 'replication/downgrade':
      return { path: `instance/replication/${id}/raylay/is_downgraded`, value: 'true' };
    case 'replication/upgrade':
      return { path: `instance/replication/${id}/raylay/is_downgraded`, value: 'false' };
    case 'transports/enable':
      return { path: `instance/transports/${id}/is_enabled`, value: 'true' };
    case 'transports/disable':
      return { path: `instance/transports/${id}/is_enabled`, value: 'false' };
    case 'clients/disconnect':
      return { path: `instance/clients/${id}/client_name`, value: null };
    default:
      return null;
  }
}

function sameByHand(instance, path, told) {
  const found = [];
  const base = `${location.origin}${location.pathname.replace(/[^/]*$/, '')}`;
  found.push([
    'curl',
    told?.curl ?? `curl -X POST -H 'X-Raylay: 1' '${base}raylay/peer/${step(instance)}/${path}'`,
  ]);
  // Several fabrics may run on a host: without a name the shell asks which is meant.
  const name = fabric.value?.fabric ?? '';
  const which = /^[\w.][\w.-]*$/.test(name) ? ` --fabric ${name}` : '';
  if (told?.raylay) found.push(['raylay', `${told.raylay}${which}`]);
  return found;
}

export function Copy({ text, what }) {
  const [isCopied, setIsCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setIsCopied(true);
      setTimeout(() => setIsCopied(false), 1500);
    } catch {
      setIsCopied(false);
    }
  };
  return html`<button type="button" class="button button-quiet button-small" aria-label=${`Copy ${what}`} onClick=${copy}>${
    isCopied ? 'copied' : 'copy'
  }</button>`;
}

