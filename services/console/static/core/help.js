// What the keys do, and what the marks mean.
import { html } from './html.js';
import { Dialog } from './dialog.js';
import { KEYS } from './keyboard.js';
import { Status } from './status.js';
import { pages } from '../pages.js';

const MEANINGS = [
  ['ready', 'ready', 'as configured'],
  ['working', 'working', 'busy with a recovery, a catch-up or a start: it ends by itself'],
  ['attention', 'attention', 'something is less safe or slower than configured'],
  ['act', 'act now', 'publishers wait or data are at risk'],
  ['unknown', 'unknown', 'no answer came: neither well nor down'],
];

export function Help({ onClose }) {
  return html`<${Dialog} title="Keys and marks" onClose=${onClose} class="help">
    <div class="help-columns">
      <section><h3>Keys</h3><dl class="keys">
        ${KEYS.map(([key, text]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}
      </dl></section>
      <section><h3>Pages</h3><dl class="keys">
        ${Object.values(pages).filter(({ key }) => key).map(({ key, title }) =>
          html`<div key=${key}><dt><kbd>g ${key}</kbd></dt><dd>${title}</dd></div>`)}
      </dl></section>
      <section class="help-marks"><h3>Marks</h3><dl class="marks">
        ${MEANINGS.map(([level, word, text]) => html`<div key=${level}>
          <dt><${Status} level=${level} text=${word} /></dt><dd>${text}</dd></div>`)}
      </dl>
      <p class="muted">A value that is not known is –, and never 0. Values older than 3 s are dim; older
      than 10 s they are unknown, and in no sum. Ages and trends are computed by the instances.</p></section>
    </div>
  <//>`;
}
