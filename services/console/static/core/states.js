// A place without data says why, and what to do.
import { html, useEffect, useState } from './html.js';
import { Status } from './status.js';

const PATIENCE_MS = 300;

// The frame stays; nothing pretends to be a zero. Quick answers show no flicker.
export function Loading({ text = 'loading' }) {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="state-box" role="status">
    ${isLate ? html`<${Status} level="working" text="${text} …" />` : null}
  </div>`;
}

export function Empty({ title, text, command }) {
  return html`<div class="state-box">
    <h2>${title}</h2>
    ${text ? html`<p class="muted">${text}</p>` : null}
    ${command ? html`<${Command} text=${command} />` : null}
  </div>`;
}

export function Problem({ error, title = 'This part could not be read', onRetry }) {
  return html`<div class="state-box" role="alert">
    <${Status} level="attention" text=${title} />
    <p>${error?.message ?? String(error)}</p>
    <p class="muted">${advice(error)}</p>
    ${onRetry ? html`<button type="button" class="button" onClick=${onRetry}>Try again</button>` : null}
  </div>`;
}

function advice(error) {
  switch (error?.status) {
    case 0: return 'The page asks again by itself. The rest of it still works.';
    case 401: return 'Reload the page to log on again.';
    case 403: return 'Ask whoever administers the fabric for this entitlement.';
    case 404: return 'It may have ended, or the address may be wrong: see the list it belongs to.';
    case 503: return 'The instance is away or busy. The page asks again by itself.';
    default: return '';
  }
}

// A command that can be copied.
export function Command({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 2_000);
    } catch {
      // Without TLS there is no clipboard: the text can be selected.
    }
  };
  return html`<div class="command">
    <code>${text}</code>
    ${navigator.clipboard
      ? html`<button type="button" class="button button-small" onClick=${copy}>
          ${isCopied ? 'copied' : 'copy'}
        </button>`
      : null}
  </div>`;
}
